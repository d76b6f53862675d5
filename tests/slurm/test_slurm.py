"""Runs whose shards are jobs of a real Slurm, on simulated devices: exact verdicts, whatever becomes of the jobs."""

from __future__ import annotations

import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from abprof import runfolder
from tests.simulated.lab import Lab, Result
from tests.simulated.scenario import Fault, Scenario, Time, Workload
from tests.slurm.cluster import Cluster

SLOWER = ("k/n=2", "k/n=5")
CELLS = tuple(f"k/n={n}" for n in range(1, 7))
TRUTH = {cell: "slower" if cell in SLOWER else "same" for cell in CELLS}
TIMES = [Time(ns=20e6), *(Time(factor=1.2, cell=cell, side="target") for cell in SLOWER)]
LOADS = {"k": Workload(kernel="k", presets={"default": {"n": [1, 2, 3, 4, 5, 6]}})}
SLUGGISH = Fault("slow:0.05", "turn")  # so that there is a middle of a shard to strike in


class OnSlurm(Lab):
    """A laboratory whose abprof submits to a cluster."""

    def __init__(self, folder: Path, on: Cluster, *faults: Fault) -> None:
        self.on = on
        super().__init__(folder, Scenario(workloads=LOADS, times=TIMES, faults=list(faults)))

    def environment(self) -> dict[str, str]:
        return {**super().environment(), **self.on.environment}

    def options(self, *more: str) -> list[str]:
        given = ("cpus=1", "parallel=2", *more)
        return ["main", "fast", "--executor", "slurm", *(word for one in given for word in ("--executor-option", one))]

    def waits_for(self, what: Callable[[], object], process: subprocess.Popen[str], seconds: float = 120.0) -> None:
        """Until it is so, in a run that goes on."""
        end = time.monotonic() + seconds
        while not what():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end, "never"
            time.sleep(0.1)

    def measured(self) -> set[str]:
        """Cells with a block in the run's folder."""
        folder = self.newest()
        return {block.cell for block in runfolder.read_blocks(folder)[0]} if folder else set()


def at_once(result: Result) -> None:
    """Each cell's verdict rests on blocks of one shard, and those of its own device."""
    assert result.folder
    run, blocks, notes = runfolder.read(result.folder)
    assert not notes
    void = {(loss.shard, cell) for loss in run.losses for cell in loss.cells}
    shards = defaultdict(set)
    for block in blocks:
        if (block.shard, block.cell) not in void:
            shards[block.cell].add((block.shard, block.device))
    assert {cell: len(found) for cell, found in shards.items()} == dict.fromkeys(CELLS, 1)


def no_job_is_left(on: Cluster) -> None:
    assert on.jobs("PENDING", "RUNNING", "COMPLETING", "SUSPENDED") == []


@pytest.fixture
def lab(tmp_path: Path, slurm: Cluster) -> Iterator[OnSlurm]:
    made = OnSlurm(tmp_path, slurm)
    before = made.fingerprint()
    yield made
    assert made.left_behind() == []
    assert made.fingerprint() == before
    no_job_is_left(slurm)


def test_verdicts_are_those_of_one_device(lab: OnSlurm) -> None:
    known = set(lab.on.jobs())
    done = lab.abprof(*lab.options("constraint=h100|h200", "time=10m"))
    assert done.code == 1, done.err
    assert done.table() == TRUTH
    at_once(done)
    jobs = sorted(set(lab.on.jobs()) - known)
    assert len(jobs) >= 2
    assert {"0", "1"} <= {job.partition("_")[2] for job in jobs}, "what is ready together is one array"
    facts = lab.on.facts(jobs[0])
    asked = {"TresPerNode": "gres:gpu:1", "Features": "h100|h200", "TimeLimit": "00:10:00", "Partition": "gpus"}
    assert asked.items() <= facts.items()
    assert facts["ArrayTaskThrottle"] == "2" if "ArrayTaskThrottle" in facts else True
    assert done.folder
    assert not list((done.folder / "logs").glob("abprof-*")), "nothing was lost, so nothing is kept"
