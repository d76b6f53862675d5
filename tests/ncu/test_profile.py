"""`abprof profile` and `--probe ncu` with a simulated ncu: the metric table, its files, and errors."""

import io
import shutil
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import msgspec
import pytest

from abprof.evidence.ncu import capture, recording, traffic
from abprof.records import KernelProfile, Profile, Run, ncu
from abprof.records.errors import Exit
from abprof.report import probes
from abprof.store import runfolder
from tests.blocks import head

from . import fake_ncu
from .fake import launching_repo, with_ncu

CPU = ("--device", "cpu")
HIT, TENSOR = "lts__t_sector_hit_rate.pct", "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"


def measured(name: str = "attn_fwd", **more: Any) -> KernelProfile:
    usual = {ncu.TIME: 1000.0, "dram__bytes_read.sum": 1024.0, "dram__bytes_write.sum": 1024.0}
    fields = {"grid": "(132, 1, 1)", "block": "(384, 1, 1)", "kind": "compute", "launches": 5, "launches_a_call": 1}
    given = more.pop("metrics", {})
    return KernelProfile(name=name, metrics=usual | given, **(fields | more))


def under_ncu(base: tuple[KernelProfile, ...], target: tuple[KernelProfile, ...] | None, **more: Any) -> Run:
    run = head(1)
    fields = {"cell": run.cells[0].id, "purpose": "profile", "warmup": 2, "runs": 3, "csv": "ncu/a.csv"}
    made = [Profile(arm="base", kernels=base, file="ncu/a.ncu-rep", **(fields | more))]
    made += [Profile(arm="target", kernels=target, **fields)] if target is not None else []
    return msgspec.structs.replace(run, profiles=tuple(made))


def table(run: Run, which: int = 0) -> dict[str, tuple[str, ...]]:
    (part,) = probes.counters(run)
    return {row[0]: row[1:] for row in part.tables[which].rows}


def test_differences_are_per_cent_of_sums_points_of_shares_and_waits_as_they_are() -> None:
    stalls = [ncu.stall(reason) for reason in ("long_scoreboard", "wait", "barrier", "membar", "drain")]
    base = measured(
        metrics={HIT: 80.0, TENSOR: 60.0, CONFLICTS: 0.0, **dict(zip(stalls, (4.0, 2, 1, 0.5, 0), strict=True))}
    )
    target = measured(
        launches_a_call=2,
        metrics={HIT: 70.5, TENSOR: 66.0, CONFLICTS: 512.0, **dict(zip(stalls, (6.5, 2, 1, 3.0, 0), strict=True))},
    )
    rows = table(under_ncu((base,), (target,)))
    assert rows["launches a call"] == ("1", "2", "")
    assert rows["time under ncu"] == ("1.000 µs", "2.000 µs", "+100.0 %"), "of a call: two launches"
    assert rows["DRAM bytes"] == ("2.0 KiB", "4.0 KiB", "+100.0 %"), "read and written, where their sum is not there"
    assert rows["L2 hit rate"] == ("80.0 %", "70.5 %", "-9.5 points")
    assert rows["tensor cores busy"] == ("60.0 %", "66.0 %", "+6.0 points")
    assert rows["shared bank conflicts"] == ("0", "1,024", "from none")
    waits = [name for name in rows if name.startswith("waits: ")]
    assert waits == ["waits: long scoreboard", "waits: membar", "waits: wait", "waits: barrier"], "three of either side"
    assert rows["waits: long scoreboard"] == ("4.00", "6.50", "+2.50")
    assert "L1 hit rate" not in rows, "not recorded on either side"


def page(folder: Path, launches: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The raw page of these launches, as the stand-in prints it."""
    monkeypatch.setenv("LC_ALL", "C")
    report, out = folder / "r.ncu-rep", io.StringIO()
    report.write_bytes(b"NVR\0" + msgspec.json.encode({"metrics": list(recording.PROFILE), "launches": launches}))
    with redirect_stdout(out):
        fake_ncu.show({"--import": str(report), "--csv": "", "--page": "raw", "--print-units": "base"})
    (folder / "r.csv").write_text(out.getvalue())
    return folder / "r.csv"


def test_sums_are_means_over_launches_and_rates_are_weighted_by_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two launches a call, one of three times the other's length, after two warm-up calls whose numbers do not count."""
    cold = {"kernel": "k", "bytes": 7_000_000, HIT: 1.0}
    call = [{"kernel": "k", "bytes": 1_000_000, HIT: 20.0}, {"kernel": "k", "bytes": 3_000_000, HIT: 60.0}]
    path = page(tmp_path, [cold] * 4 + call * 3, monkeypatch)
    made, _ = traffic.count(recording.read(path, recording.PROFILE), capture.PROFILE, path, whole=True)
    (kernel,) = made.kernels
    assert (kernel.launches, kernel.launches_a_call) == (10, 2)
    assert kernel.metrics["dram__bytes.sum"] == kernel.metrics[ncu.TIME] == 2e6
    assert kernel.metrics[HIT] == pytest.approx(50.0)
    assert made.notes == ("k grid (132, 1, 1) block (128, 1, 1): 10 launches are 2 a call in 5 calls",)


@pytest.mark.slow
def test_refs_then_a_run_then_the_main_job(tmp_path: Path) -> None:
    """Three commands on one repository: the kernel's report, the kept files, and unchanged times of a run."""
    package = 'launch("twice_kernel", 8 * x.numel(), **{"lts__t_sector_hit_rate.pct": %d, "%s": 3.0})'
    base, hotter = (package % (rate, ncu.stall("long_scoreboard")) for rate in (80, 30))
    repo = launching_repo(tmp_path / "repo", base, hotter=hotter + '\nlaunch("copy_kernel", 4)')
    done = with_ncu("profile", "main", "hotter", *CPU, repo=repo, home=tmp_path, FAKE_NCU_LACKS=TENSOR)
    assert done.code == Exit.OK, done.err
    out = " ".join(done.out.split())
    assert "L2 hit rate 80.0 % 30.0 % -50.0 points" in out
    assert "waits: long scoreboard 3.00 3.00 +0.00" in out
    assert f"target: this ncu has no {TENSOR} here" in out
    (folder,) = (repo.path / "runs").glob("2*")
    assert {path.suffix for path in (folder / "ncu").iterdir()} == {".csv", ".ncu-rep"}
    assert "L2 hit rate" in (folder / "report.html").read_text()
    assert "twice_kernel" in (folder / "memory.csv").read_text()
    shutil.rmtree(folder)

    quick = ("run", "main", "--quick", "--probe", "ncu", "--json", *CPU)
    probed = with_ncu(*quick, repo=repo, home=tmp_path)
    (folder,) = (repo.path / "runs").glob("2*")
    before, _, _ = runfolder.read(folder)
    assert [one.status for one in before.profiles] == ["ok"], probed.err
    samples = recording.sampled(folder / before.profiles[0].source, before.profiles[0].kernels[0].name)
    assert sum(sum(stalls.values()) for stalls in samples.values()) == 1478 * len(
        recording.read(folder / before.profiles[0].csv)
    )
    assert before.observations[0].metrics, "it was timed too"
    more = with_ncu("profile", str(folder), "--json", repo=repo, home=tmp_path)
    assert more.code == Exit.OK, more.err
    after, _, _ = runfolder.read(folder)
    assert [(one.arm, one.status, one.kernels[0].name) for one in after.profiles] == [("base", "ok", "twice_kernel")]
    assert after.observations == before.observations
    assert after.header == before.header
    assert "L2 hit rate" in (folder / "report.md").read_text()
    shutil.rmtree(folder)

    (profile,) = with_ncu(*quick, repo=repo, home=tmp_path, FAKE_NCU="unsourced").run["profiles"]
    assert (profile["status"], profile["source"]) == ("ok", "")
    assert profile["notes"][-1] == "no samples by line: ncu could not export its report (exit code 1)"
    denied = with_ncu(*quick, repo=repo, home=tmp_path, FAKE_NCU="denied")
    assert denied.code == probed.code
    assert "NVreg_RestrictProfilingToAdminUsers=0" in denied.err


@pytest.mark.slow
def test_an_interrupted_profile_compares_the_code_of_both_sides(tmp_path: Path) -> None:
    repo = launching_repo(tmp_path / "repo", hotter='launch("copy_kernel", 4)')
    with_ncu("main", "hotter", "--quick", *CPU, repo=repo, home=tmp_path, FAKE_NCU="interrupts")  # a build's key has it
    (file,) = (repo.path / "runs").glob("2*/run.json")
    run = msgspec.json.decode(file.read_bytes())
    assert run.pop("hunks")
    file.write_bytes(msgspec.json.encode(run))
    words = ("profile", str(file.parent), "--only", run["cells"][0]["id"])
    done = with_ncu(*words, repo=repo, home=tmp_path, FAKE_NCU="interrupts")
    assert done.code == Exit.INTERRUPTED, done.err
    assert msgspec.json.decode(file.read_bytes())["hunks"], "samples are joined to lines in the same step"


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.skipif(not shutil.which("ncu"), reason="needs Nsight Compute")
def test_real_ncu_knows_the_metrics_and_sees_what_changed(tmp_path: Path) -> None:
    """A strided store wastes three quarters of each sector: efficiency falls, bytes of L2 rise."""
    from tests.tinyrepo import WORKLOAD, abprof, tiny_repo

    from .test_memory_of_refs import TRITON

    repo = tiny_repo(tmp_path / "repo", 1)
    here = "torch.randn(case['n'], generator=torch.Generator().manual_seed(seed)).to(device)"
    workload = WORKLOAD.replace('torch.randn(case["n"], generator=torch.Generator().manual_seed(seed))', here)
    repo.commit("triton", {"kernels/tiny/__init__.py": TRITON, "workloads/tiny.py": workload})
    repo.git("checkout", "-q", "-b", "strided")
    strided = TRITON.replace("torch.empty_like(x)", "x.new_empty(4 * x.numel())").replace("y + i,", "y + 4 * i,")
    repo.commit("strided", {"kernels/tiny/__init__.py": strided.replace("return y", "return y[::4]")})
    done = abprof("profile", "main", "strided", "--set", "n=16777216", "--json", cwd=repo.path, home=tmp_path / "home")
    assert done.code == Exit.OK, done.err + done.out
    base, target = (one["kernels"][0]["metrics"] for one in done.run["profiles"])
    lacking = [name for name in recording.PROFILE if name not in base]
    assert len(lacking) <= 4, f"not known here: {lacking}"
    name = "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct"
    assert base[name] > 90
    assert target[name] < 40
    assert target["lts__t_bytes.sum"] > 1.3 * base["lts__t_bytes.sum"]
    assert 0 < base["sm__warps_active.avg.pct_of_peak_sustained_active"] <= 100
    assert base["launch__registers_per_thread"] > 0
    assert any(base[ncu.stall(reason)] > 0 for reason in ncu.STALLS if ncu.stall(reason) in base)
