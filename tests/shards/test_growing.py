"""Builds beside measuring: a package's cells go out as soon as it is built, and what is said in the end is what one device says.

A build that waits for a file stands for a slow one. That cells of another package are there before the file is shows the
order, whatever the machine's speed.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from abprof.fleet import processors
from abprof.measure import growing
from abprof.records import Run
from abprof.store import runfolder
from tests.shards.test_losses import programs
from tests.shards.test_pool import SIZES, TWO, blocks, homes, once_each, scenario
from tests.simulated.lab import Lab, Result
from tests.simulated.processes import alive, noted
from tests.simulated.scenario import Fault, Scenario, Time, Workload
from tests.test_interruptions import wait_for

GO = "go"
SHORT = ("--epochs", "1")
LATE = Fault("wait", "build", cell="j", side="target", text=GO)
SOONER = {f"w/n={n}" for n in SIZES[:4]}  # k's cells
LATER = {f"v/n={n}" for n in SIZES[4:]}  # j's
SAYS = dict.fromkeys(SOONER | LATER, "same") | {"w/n=2": "slower", "v/n=7": "faster"}
BUILT = {(kernel, side) for kernel in "kj" for side in ("base", "target")}


def timed_by_the_device(*faults: Fault, plain: Scenario | None = None) -> Scenario:
    """Where a host's clock is judged nothing is built beside measuring."""
    now = plain or scenario()
    loads = {name: replace(load, judge="gpu") for name, load in now.workloads.items()}
    return replace(now, workloads=loads, faults=list(faults))


def folder(lab: Lab) -> Path:
    newest = lab.newest()
    assert newest
    return newest


def measured(lab: Lab) -> Counter[str]:
    """Cell -> blocks of it in the newest run folder, by now."""
    there = lab.newest() is not None and (folder(lab) / "rounds.jsonl").exists()
    return Counter(block.cell for block in runfolder.read_blocks(folder(lab))[0]) if there else Counter()


def until_the_first_is_measured(lab: Lab, *more: str) -> subprocess.Popen[str]:
    """The lab's first run, on two devices, when all cells of one package have blocks, and the other is still being built."""
    process = lab.start("main", "fast", *TWO, *more)
    wait_for(lambda: measured(lab).keys() >= SOONER, process)
    assert measured(lab).keys() == SOONER
    head = msgspec.json.decode((folder(lab) / "run.json").read_bytes(), type=Run)
    assert [(build.side, build.kernel) for build in head.builds] == [("base", "k"), ("target", "k")]
    return process


def go(lab: Lab) -> None:
    """The build that waits is done with."""
    (lab.folder / GO).touch()


def statuses(result: Result) -> dict[tuple[str, str], tuple[str, str]]:
    seen = (one for one in result.run.observations if one.arm != "control")
    return {(one.cell, one.arm): (one.status, one.reason) for one in seen}


def nothing_is_missing(lab: Lab, result: Result) -> None:
    """Every cell is measured, on one device; and nothing is left behind."""
    assert result.run.status == "complete"
    assert {status for status, _ in statuses(result).values()} == {"ok"}
    assert {(build.kernel, build.side) for build in result.run.builds} == BUILT
    once_each(result.run, blocks(result))
    assert lab.left_behind() == []


def test_cells_are_measured_while_other_packages_are_built(tmp_path: Path) -> None:
    lab = Lab(tmp_path, timed_by_the_device(LATE))
    process = until_the_first_is_measured(lab)
    assert set().union(*homes(runfolder.read_blocks(folder(lab))[0]).values()) == {"simulated:1"}, "0 is the builders'"
    go(lab)
    two = lab.finish(process)
    assert set().union(*homes(blocks(two)).values()) == {"simulated:0", "simulated:1"}
    nothing_is_missing(lab, two)
    assert (two.code, two.table()) == (1, SAYS)
    assert len(two.run.controls) >= 6
    assert two.run.touched == ()
    one = lab.abprof("main", "fast")
    assert (one.code, one.table(), statuses(one)) == (two.code, two.table(), statuses(two)), "as one device says"
    made = [[(build.kernel, build.side, build.key) for build in each.run.builds] for each in (one, two)]
    assert made[0] == made[1]


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (Fault("kill", "build"), "killed by SIGKILL"),
        (Fault("crash_status", "build", text="no compiler"), "no compiler"),
    ],
)
def test_what_is_not_built_is_told_and_shown(tmp_path: Path, fault: Fault, why: str) -> None:
    """A package that cannot be built, or whose builders are killed, takes no other with it."""
    lab = Lab(tmp_path, timed_by_the_device(LATE, replace(fault, cell="j", side="target")))
    process = until_the_first_is_measured(lab, *SHORT)
    go(lab)
    two = lab.finish(process)
    assert f"target j: {why}" in two.err
    for status, reason in (two.status(cell, "target") for cell in LATER):
        assert status == "build_failed"
        assert reason.startswith(why)
    assert {cell for cell, says in two.table().items() if says == "broken"} == LATER
    assert {two.status(cell, "target") for cell in SOONER} == {("ok", "")}
    assert two.code == 1
    once_each(two.run, blocks(two))
    assert lab.left_behind() == []


def test_interrupted_while_some_build_and_others_measure(tmp_path: Path) -> None:
    """All is ended, the report is written, and the run is gone on with: every cell on its device, and the rest."""
    lab = Lab(tmp_path, timed_by_the_device(LATE))
    before = lab.fingerprint()
    process = until_the_first_is_measured(lab, *SHORT)
    process.send_signal(signal.SIGINT)
    result = lab.finish(process)
    assert result.code == 130
    assert result.run.status == "interrupted"
    assert "Traceback" not in result.err
    assert lab.left_behind() == []
    assert lab.fingerprint() == before
    stood = (folder(lab) / "rounds.jsonl").read_bytes()
    were = homes(blocks(result))
    go(lab)
    again = lab.abprof("run", "--resume", str(folder(lab)))
    assert (folder(lab) / "rounds.jsonl").read_bytes().startswith(stood)
    assert {cell: homes(blocks(again))[cell] for cell in were} == were
    nothing_is_missing(lab, again)


def test_a_killed_parent_takes_builders_and_shards_with_it(tmp_path: Path) -> None:
    lab = Lab(tmp_path, timed_by_the_device(LATE))
    process = until_the_first_is_measured(lab, *SHORT)
    mine = programs(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert not [pid for pid in (*mine, *noted(lab.scenario)) if alive(pid, wait=120)]
    go(lab)
    nothing_is_missing(lab, lab.abprof("run", "--resume", str(folder(lab))))


def same_code(lab: Lab, kernel: str) -> None:
    """Both branches have this package alike."""
    lab.repo.checkout("fast")
    lab.repo.commit("Alike", {f"kernels/{kernel}/__init__.py": "WHO = 'main'\n"})
    lab.repo.checkout("main")


def test_of_identical_code_some_cells_are_measured(tmp_path: Path) -> None:
    """Which they are is known when all is built: so the package that is built first waits, and there are as many controls."""
    plain = scenario()
    loads = {
        "a": Workload("same", {"default": {"n": list(range(10))}}),
        "b": Workload("other", {"default": {"n": [1, 2]}}),
    }
    times = [Time(ns=1e6), Time(factor=1.1, side="target", cell="b/n=2")]
    lab = Lab(tmp_path, timed_by_the_device(plain=replace(plain, workloads=loads, times=times)))
    same_code(lab, "same")
    two = lab.abprof("main", "fast", *TWO, *SHORT)
    measured_anyway = {block.cell for block in blocks(two) if block.metric and block.cell.startswith("a/")}
    assert len(two.run.controls) >= 5, "as many as one device has: two others, and three of identical code"
    assert {one.cell for one in two.run.controls} >= measured_anyway
    assert two.run.header is not None
    once_each(two.run, blocks(two))
    one = lab.abprof("main", "fast", *SHORT)
    assert {block.cell for block in blocks(one) if block.metric and block.cell.startswith("a/")} <= measured_anyway


def test_of_identical_code_no_more_is_measured_after_an_end_while_some_build(tmp_path: Path) -> None:
    """Which cells need no measuring was not known yet when the run ended."""
    plain = scenario()
    loads = {
        "a": Workload("same", {"default": {"n": list(range(10))}}),
        "b": Workload("k", {"default": {"n": [1, 2]}}),
        "c": Workload("j", {"default": {"n": [3]}}),
    }
    lab = Lab(tmp_path, timed_by_the_device(LATE, plain=replace(plain, workloads=loads, times=[Time(ns=1e6)])))
    same_code(lab, "same")
    process = lab.start("main", "fast", *TWO, *SHORT)
    wait_for(lambda: measured(lab).keys() >= {"b/n=1", "b/n=2"}, process)
    process.send_signal(signal.SIGINT)
    assert lab.finish(process).code == 130
    go(lab)
    again = lab.abprof("run", "--resume", str(folder(lab)))
    assert again.run.status == "complete"
    alike = {block.cell for block in blocks(again) if block.metric and block.cell.startswith("a/")}
    assert len(alike) == 3, "a few as controls"
    assert {status for (cell, _), (status, _) in statuses(again).items() if cell.startswith("a/")} <= {
        "identical",
        "ok",
    }
    assert {cell for cell, _ in statuses(again)} == {cell.id for cell in again.run.cells}
    once_each(again.run, blocks(again))


def test_where_no_side_has_any_package_nothing_is_measured(tmp_path: Path) -> None:
    lab = Lab(tmp_path, timed_by_the_device(Fault("missing", "build")))
    result = lab.abprof("main", "fast", *TWO)
    assert result.code == 2
    assert "no side has a kernel package j, k" in result.err
    assert lab.left_behind() == []


def test_a_package_that_no_side_has_is_shown(tmp_path: Path) -> None:
    lab = Lab(tmp_path, timed_by_the_device(Fault("missing", "build", cell="k")))
    two = lab.abprof("main", "fast", *TWO, *SHORT)
    assert {two.status(cell, side)[0] for cell in SOONER for side in ("base", "target")} == {"missing"}
    assert {two.row(cell).reasons for cell in SOONER} == {("missing",)}
    assert {two.status(cell, "target") for cell in LATER} == {("ok", "")}
    assert lab.left_behind() == []


def test_builders_have_the_processors_that_no_slot_has() -> None:
    assert processors.divided(range(8), 3, builders=True) == ([(0, 1), (2, 3), (4, 5)], (6, 7))
    assert processors.divided(range(11), 2, builders=True) == ([(0, 1, 2), (5, 6, 7)], (3, 4, 8, 9, 10))
    assert processors.divided(range(11), 2, builders=False) == ([(0, 1, 2, 3, 4), (5, 6, 7, 8, 9)], (10,))
    assert processors.divided(range(8), 3, builders=False)[0] == [(0, 1), (2, 3), (4, 5)]
    assert processors.divided(range(2), 2, builders=True) == ([(), ()], (0, 1)), "too few for each: all have all"


@pytest.mark.parametrize(
    ("devices", "packages", "judge", "kind", "cpus", "executor", "goes_on", "beside"),
    [
        (2, 2, "gpu", "cuda", 3, "", False, True),
        (2, 2, "gpu", "cuda", 2, "", False, False),
        (2, 2, "gpu", "simulated", 2, "", False, True),
        (1, 2, "gpu", "cuda", 8, "", False, False),
        (2, 1, "gpu", "cuda", 8, "", False, False),
        (2, 2, "wall", "cuda", 8, "", False, False),
        (2, 2, "gpu", "cuda", 8, "slurm", False, False),
        (2, 2, "gpu", "cuda", 8, "", True, False),
    ],
)
def test_where_builds_go_on_beside_measuring(
    monkeypatch: pytest.MonkeyPatch,
    devices: int,
    packages: int,
    judge: str,
    kind: str,
    cpus: int,
    executor: str,
    goes_on: bool,
    beside: bool,
) -> None:
    device = SimpleNamespace(kind=kind)
    place: Any = SimpleNamespace(devices=(device,) * devices, device=device, config=SimpleNamespace(executor=executor))
    names = [f"k{i}" for i in range(packages)]
    cells = [SimpleNamespace(kernel=name, skip="") for name in names]
    loads = [SimpleNamespace(judge="gpu"), SimpleNamespace(judge=judge)]
    head = SimpleNamespace(builds=("k0",) if goes_on else ())
    ready: Any = SimpleNamespace(head=head, packages=names, survey=SimpleNamespace(cells=cells, workloads=loads))
    monkeypatch.setattr(growing.os, "sched_getaffinity", lambda _: range(cpus))
    assert growing.overlapping(place, ready) is beside
