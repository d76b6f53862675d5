"""`abprof memory BASE TARGET`, driven through an ncu that is not there (fake_ncu.py)."""

import csv
import json
import shutil
from pathlib import Path

import pytest

from abprof.cli import run_command_line
from abprof.records import Run
from abprof.records.errors import Exit
from abprof.store import runfolder
from tests.gitrepo import GitRepo
from tests.tinyrepo import Done

from .fake import ONCE, launching_repo, with_ncu

CALLS = ("--warmup", "2", "--runs", "3")
CPU = ("--device", "cpu")
COPIES = ONCE + '\nlaunch("copy_kernel", 4 * x.numel())\nlaunch("copy_kernel", 4 * x.numel())'
# Its third call, the second that is counted, launches once more.
UNEVEN = ONCE + "\nif calls == 2: " + ONCE
CHANGING = 'launch("twice_kernel", 8 * x.numel(), grid=f"({calls % 2}, 1, 1)")'


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def folder(repo: GitRepo) -> Path:
    (made,) = (path for path in (repo.path / "runs").iterdir() if path.is_dir())
    return made


def loaded(repo: GitRepo) -> Run:
    run, _, _ = runfolder.read(folder(repo))
    return run


@pytest.mark.slow
def test_both_sides_and_a_peer_with_what_is_kept(tmp_path: Path) -> None:
    repo = launching_repo(tmp_path / "repo", peers=True, more=COPIES)
    out = tmp_path / "t.json"
    words = ("memory", "main", "more", *CALLS, *CPU, "--preset", "two", "--only", "n=8192", "--out", str(out))
    done = with_ncu(*words, repo=repo, home=tmp_path)
    assert done.code == Exit.OK, done.err
    kept = folder(repo)
    by = {(row["arm"], row["kernel"], row["kind"]): row for row in rows(kept / "memory.csv")}
    twice = by["base", "twice_kernel", "compute"]
    assert (twice["launches"], twice["launches_a_call"]) == ("5", "1"), "the call that compiles is not among them"
    assert float(twice["dram_bytes_a_call"]) == 8 * 8192
    copies = by["target", "copy_kernel", "other"]
    assert (copies["launches"], copies["launches_a_call"], copies["in_files"]) == ("10", "2", "target only")
    whole = by["target", "", "all"]
    assert (float(whole["dram_change_pct"]), float(whole["dram_minimum_bytes"])) == (100.0, 8 * 8192)
    assert float(by["peer:torch", "at::mul", "compute"]["l1_bytes_a_call"]) == 240
    text = (kept / "report.md").read_text()
    assert "| all kernels |  |  |  | 1 → 3 | 64.0 KiB → 128.0 KiB, +100.0 % |" in text
    assert "| predicted minimum |  |  |  |  | 64.0 KiB |" in text
    assert "10 launches are 2 a call in 5 calls" in text
    assert json.loads(out.read_text())["rows"]
    run = loaded(repo)
    assert [(one.arm, one.status) for one in run.profiles] == [("base", "ok"), ("target", "ok"), ("peer:torch", "ok")]
    for one in run.profiles:
        assert (kept / one.file).read_bytes().startswith(b"NVR")
        assert (kept / one.csv).stat().st_size
        assert one.ncu == "2025.1.1.0"
    assert run.header
    assert run.header.sentence == "1 cell under Nsight Compute, nothing was timed"
    again = run_command_line(["memory", "--from", str(kept / run.profiles[0].csv), *CALLS])
    assert again == Exit.OK, "what was kept is a file that can be read again"
    assert run_command_line(["report", str(kept)]) == Exit.OK
    assert (kept / "report.md").read_text() == text
    assert run_command_line(["rerun", str(kept)]) == Exit.CANNOT_RUN, "there is nothing to measure again"


ODD = {
    "uneven": (
        UNEVEN,
        "the number of launches is no multiple of 5 (2 warm-up + 3 runs): twice_kernel grid (132, 1, 1) block (128, 1, 1): 6",
    ),
    "changing": (CHANGING, "twice_kernel grid (1, 1, 1) block (128, 1, 1): 3"),
    "silent": ("pass", "ncu saw no kernel in the calls"),
    "raising": ("if calls > 3: raise ValueError('not today')", "crash: ValueError: not today"),
}


@pytest.mark.slow
def test_an_arm_that_does_not_add_up_is_an_error_row_and_the_others_stand(tmp_path: Path) -> None:
    repo = launching_repo(tmp_path / "repo", **{name: launches for name, (launches, _) in ODD.items()})
    repo.write({"workloads/torn.py": "raise ValueError('no such mask')\n"})
    done = with_ncu("memory", "main", *ODD, *CALLS, *CPU, repo=repo, home=tmp_path)
    assert done.code == Exit.CANNOT_RUN
    made = rows(folder(repo) / "memory.csv")
    assert {row["arm"] for row in made if row["kind"] == "all"} == {"base"}
    (torn,) = (row for row in made if row["cell"] == "torn/")
    assert "crash: ValueError: no such mask" in torn["reason"], "a workload that is broken is not passed over"
    failed = {row["arm"]: row["reason"] for row in made if row["kind"] == "error" and row["cell"] != "torn/"}
    for arm, (_, said) in zip(("target", "target2", "target3", "target4"), ODD.values(), strict=True):
        assert said in failed[arm]
        assert f"tiny/n=4096 {arm}: {failed[arm]}" in " ".join(done.out.split())
    run = loaded(repo)
    assert [one.status for one in run.profiles] == ["crash", "ok", "error", "error", "error", "crash"]
    assert run.header
    assert "5 of 6 arms failed, first torn/ base: ValueError: no such mask" in run.header.sentence


@pytest.mark.slow
def test_without_permission_nothing_goes_on(tmp_path: Path) -> None:
    repo = launching_repo(tmp_path / "repo")
    done = with_ncu("memory", "main", *CALLS, *CPU, repo=repo, home=tmp_path, FAKE_NCU="denied")
    assert done.code == Exit.CANNOT_RUN
    (line,) = (line for line in done.err.splitlines() if line.startswith("abprof: "))
    assert "ncu may not read the GPU's counters (ERR_NVGPUCTRPERM)" in line
    assert "options nvidia NVreg_RestrictProfilingToAdminUsers=0" in line
    assert "CAP_SYS_ADMIN" in line
    assert "--cap-add=SYS_ADMIN" in line
    assert not list((repo.path / "runs").glob("2*")), "no dead run is left"


TRITON = """
import torch, triton
import triton.language as tl

@triton.jit
def twice(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, 2 * tl.load(x + i, mask=i < n), mask=i < n)

def double(x):
    y = torch.empty_like(x)
    twice[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), B=1024)
    return y
"""


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.skipif(not shutil.which("ncu"), reason="needs Nsight Compute")
def test_real_ncu_counts_a_triton_kernel_and_a_copy_more(tmp_path: Path) -> None:
    """16 Mi floats: read once and written once is 128 MiB, of which L2 keeps a part of what is written; the branch reads its
    result and writes it again, which doubles it."""
    from tests.tinyrepo import WORKLOAD, abprof, tiny_repo

    repo = tiny_repo(tmp_path / "repo", 1)
    here = "torch.randn(case['n'], generator=torch.Generator().manual_seed(seed)).to(device)"
    workload = WORKLOAD.replace('torch.randn(case["n"], generator=torch.Generator().manual_seed(seed))', here)
    repo.commit("triton", {"kernels/tiny/__init__.py": TRITON, "workloads/tiny.py": workload})
    repo.git("checkout", "-q", "-b", "copies")
    repo.commit("a copy more", {"kernels/tiny/__init__.py": TRITON.replace("return y", "return y + 0")})
    words = ("memory", "main", "copies", "--set", "n=16777216", "--warmup", "2", "--runs", "5", "--runs-dir", "runs")
    done: Done = abprof(*words, cwd=repo.path, home=tmp_path / "home")
    assert done.code == Exit.OK, done.err + done.out
    by = {(row["arm"], row["kind"]): row for row in rows(folder(repo) / "memory.csv") if not row["kernel"]}
    moved = {arm: float(by[arm, "all"]["dram_bytes_a_call"]) for arm in ("base", "target")}
    assert 0.6 * (128 << 20) < moved["base"] < 1.2 * (128 << 20)
    assert 1.7 < moved["target"] / moved["base"] < 2.3
    assert (by["base", "all"]["launches_a_call"], by["target", "all"]["launches_a_call"]) == ("1", "2")
    assert len(list((folder(repo) / "ncu").glob("*.ncu-rep"))) == 2
