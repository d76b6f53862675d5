"""Whole runs with real torch workers and a C kernel: planted differences, and kernels that misbehave."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.gitrepo import GitRepo
from tests.sandboxes import needs_sandbox
from tests.sides.conftest import fingerprint as everything
from tests.tinyrepo import PACKAGE, WORKLOAD, Done, abprof, source, tiny_repo

CELL = "tiny/n=4096"
CPU = ("--device", "cpu", "--no-peers", "--json")


def fingerprint(repo: GitRepo) -> dict[str, str]:
    """path -> mode and content of everything, .git included, runs/ not."""
    return {name: mark for name, mark in everything(repo.path).items() if not name.startswith("runs")}


@dataclass(frozen=True)
class Slip:
    """A run of `main .` on a working tree with four times the work, and the repository's state before and after."""

    repo: GitRepo
    home: Path
    done: Done
    before: dict[str, str]
    after: dict[str, str]

    @property
    def folder(self) -> Path:
        return Path(self.done.run["run_dir"])


@pytest.fixture(scope="module")
def slip(tmp_path_factory: pytest.TempPathFactory) -> Slip:
    home = tmp_path_factory.mktemp("slip")
    repo = tiny_repo(home / "repo")
    repo.write({"kernels/tiny/tiny.c": source(100), "staged.txt": "staged\n", "kernels/tiny/new.h": "// not added\n"})
    repo.git("add", "staged.txt")
    repo.write({"kernels/tiny/tiny.c": source(400)})
    before = fingerprint(repo)
    done = abprof("main", ".", *CPU, cwd=repo.path, home=home)
    return Slip(repo, home, done, before, fingerprint(repo))


def test_an_uncommitted_slip_is_found(slip: Slip) -> None:
    assert slip.done.verdicts() == {CELL: "slower"}
    assert slip.done.code == 1
    (row,) = (row for row in slip.done.run["comparisons"] if row["to"] == "target")
    assert row["low_pct"] > 15, "far beyond the threshold"
    assert row["low_pct"] <= row["pct"] <= row["high_pct"]
    assert row["high_pct"] > 100, "four times the work"
    assert [(side["kind"], side["spec"]) for side in slip.done.run["sides"]] == [("commit", "main"), ("worktree", ".")]


def test_index_and_tree_stay_as_they_were(slip: Slip) -> None:
    assert slip.after == slip.before
    assert slip.repo.git("status", "--porcelain").splitlines() == [
        " M kernels/tiny/tiny.c",
        "A  staged.txt",
        "?? kernels/tiny/new.h",
    ]
    assert slip.repo.git("worktree", "list").count("\n") == 0
    trees = slip.home / "cache" / "worktrees"
    assert not [path for path in trees.rglob("*") if path.name == "tiny.c"]


def test_outputs_are_checked_once(slip: Slip) -> None:
    blocks = [json.loads(line) for line in (slip.folder / "rounds.jsonl").read_bytes().splitlines()]
    assert 0 < blocks[0]["check_seconds"] < blocks[0]["seconds"]
    assert [block["check_seconds"] for block in blocks[1:]] == [0.0] * (len(blocks) - 1)


def test_a_rerun_of_other_code_is_refused(slip: Slip) -> None:
    rounds = (slip.folder / "rounds.jsonl").read_bytes()
    slip.repo.write({"kernels/tiny/tiny.c": source(500)})
    done = abprof("rerun", str(slip.folder), "--json", cwd=slip.repo.path, home=slip.home)
    slip.repo.write({"kernels/tiny/tiny.c": source(400)})
    assert done.code == 2
    assert done.run["error"] == {
        "what": ". has changed since the run",
        "where": "side target",
        "advice": "start a new run",
    }
    assert (slip.folder / "rounds.jsonl").read_bytes() == rounds
    assert json.loads((slip.folder / "run.json").read_bytes())["status"] == "complete"


DEEDS_WORKLOAD = (
    WORKLOAD.replace('{"n": [4096]}', '{"n": [4096], "deed": DEEDS}').replace(
        "kernel.double(inputs)", 'kernel.act(case["deed"], inputs)'
    )
    + """
PHASES = {"run": ("tiny.run", "the kernel itself"), "never": ("tiny.never", "a phase that is declared and not run")}
"""
)
PLAIN_ACT = """
def act(deed, x):
    with torch.profiler.record_function("tiny.run"):
        return double(x)
"""
FAST_ACT = """
import ctypes, subprocess, sys, time
done = set()

def act(deed, x):
    first = deed not in done
    done.add(deed)
    if deed == "nan":
        return double(x) * float("nan")
    if deed == "shape":
        return double(x)[:-1]
    if deed == "zeros":
        return torch.zeros_like(x)  # a kernel that is never called
    if deed == "nothing":
        return None
    if deed == "exit":
        sys.exit(3)
    if deed == "os_exit":
        os._exit(5)
    if deed == "parent" and os.getppid() > 1:  # a builder's is the sandbox itself
        os.kill(os.getppid(), 9)  # the fork server, in this side's sandbox, which ends
        time.sleep(60)
    if deed == "segfault":
        ctypes.string_at(0)
    if deed == "raise":
        raise ValueError("as planted,\\non two lines")
    if deed == "memory":
        bytearray(1 << 46)
    if deed == "tensors":
        held = []
        while True:
            held.append(torch.empty(1 << 31, dtype=torch.uint8))  # never touched: no page of it is taken
    if deed == "print" and first:
        line = "x" * 999 + "\\n"
        for _ in range(1000):
            sys.stdout.write(line * 1000)
    if deed == "fork" and first:
        subprocess.Popen(["sleep", "LONG"], start_new_session=True)
    return double(x)
"""
# deed -> the arm's status, and words of its reason
OUTCOMES = {
    "ok": ("ok", ""), "nan": ("wrong", ""), "shape": ("wrong", "shape"), "zeros": ("wrong", ""),
    "nothing": ("wrong", "0 outputs, 1 expected"), "exit": ("crash", "called exit(3)"),
    "os_exit": ("crash", "exit code 5"), "segfault": ("crash", "SIGSEGV"),
    "raise": ("crash", "ValueError: as planted, on two lines"), "memory": ("oom", "MemoryError"),
    "tensors": ("oom", "allocate"), "print": ("ok", ""), "fork": ("ok", ""), "last": ("ok", ""),
}  # fmt: skip
BAD_WORKLOADS = {
    "raises": ("raise RuntimeError('as planted')\n", "RuntimeError: as planted"),
    "exits": ("import sys\nsys.exit(0)\n", "called exit(0)"),
    "newer": ("API = 2\n", "API is 2"),
    "empty": ("", "API is None"),
}


@pytest.mark.slow
@pytest.mark.parametrize("contain", ["never", pytest.param("always", marks=needs_sandbox)])
def test_each_misdeed_is_its_own_cells_outcome_and_the_run_goes_on(tmp_path: Path, contain: str) -> None:
    repo = tiny_repo(tmp_path / "repo")
    outcomes = {"parent": ("crash", "killed by SIGKILL")} if contain == "always" else {}
    outcomes |= OUTCOMES
    judge = DEEDS_WORKLOAD.replace("API = 1", f"API = 1\nDEEDS = {list(outcomes)}")
    chatty = WORKLOAD.replace("API = 1", 'API = 1\nprint("x" * 5_000_000)').replace(
        'SUITE = "tiny"', 'SUITE = "chatty"'
    )
    repo.commit(
        "deeds",
        {"kernels/tiny/__init__.py": PACKAGE + PLAIN_ACT, "workloads/tiny.py": judge, "workloads/chatty.py": chatty}
        | {f"workloads/{name}.py": text for name, (text, _) in BAD_WORKLOADS.items()},
    )
    repo.branch("fast")
    long = str(86400 + os.getpid())  # no other process sleeps as long
    act = FAST_ACT.replace("LONG", long)
    repo.commit("misdeeds", {"kernels/tiny/__init__.py": PACKAGE + act, "kernels/tiny/tiny.c": source(101)})
    repo.checkout("main")
    before = fingerprint(repo)
    done = abprof("main", "fast", "--quick", "--contain", contain, *CPU, cwd=repo.path, home=tmp_path)
    assert {proof["forked"] for proof in done.run["proofs"]} == {True}
    observed = {(row["cell"], row["arm"]): row for row in done.run["observations"]}
    for deed, (status, reason) in outcomes.items():
        cell = f"tiny/n=4096,deed={deed}"
        mine = observed[cell, "target"]
        assert (mine["status"], reason in mine["reason"]) == (status, True), (deed, mine)
        assert observed[cell, "base"]["status"] == "ok", deed
        assert done.verdicts()[cell] == "broken" if status != "ok" else done.verdicts()[cell] != "broken", deed
        assert bool(mine["metrics"]) == (status == "ok"), deed
    for name, (_, reason) in BAD_WORKLOADS.items():
        for arm in ("base", "target"):
            assert observed[f"{name}/", arm]["status"] == "crash"
            assert reason in observed[f"{name}/", arm]["reason"]
    assert observed["chatty/n=4096", "target"]["status"] == "ok"
    assert done.code == 1
    assert fingerprint(repo) == before
    _a_phase_that_never_ran_is_not_recorded(observed["tiny/n=4096,deed=ok", "base"]["phases"])
    sizes = [path.stat().st_size for path in Path(done.run["run_dir"]).rglob("*") if path.is_file()]
    assert sum(sizes) < 80_000_000, "of the printed gigabyte a part is kept"
    assert not [p for p in psutil.process_iter(["cmdline"]) if (p.info["cmdline"] or [])[:2] == ["sleep", long]]
    assert not [path for path in (tmp_path / "cache" / "worktrees").iterdir() if path.is_dir()]


def _a_phase_that_never_ran_is_not_recorded(phases: dict[str, float | None]) -> None:
    """One of the programs that abprof replaces summed a main phase of no time at all into its published times."""
    assert phases["never"] is None
    run, total = phases["run"], phases["total"]
    assert 0 < run <= total
    assert phases["residual"] == pytest.approx(total - run)
