"""Runs of six cells on a real cluster of simulated devices: shared by tests/on_ray and tests/slurm."""

import subprocess
import time
from collections.abc import Callable

from abprof.store import runfolder
from tests.simulated.lab import Lab, Result
from tests.simulated.scenario import Workload

WIDE = ("--margin", "1.5")  # eight epochs make a cell `same`
CELLS = tuple(f"k/n={n}" for n in range(1, 7))
LOADS = {"k": Workload(kernel="k", presets={"default": {"n": [1, 2, 3, 4, 5, 6]}})}


class Clustered(Lab):
    """A laboratory whose abprof has a cluster."""

    def waits_for(self, what: Callable[[], object], process: subprocess.Popen[str], seconds: float = 180.0) -> None:
        """Until it is so, in a run that goes on."""
        end = time.monotonic() + seconds
        while not what():
            assert process.poll() is None, (process.returncode, process.communicate())
            assert time.monotonic() < end, "never"
            time.sleep(0.1)


def whole(result: Result) -> dict[str, str]:
    """Cell -> device: each cell's verdict rests on blocks of one shard on one device."""
    assert result.folder
    run, blocks, notes = runfolder.read(result.folder)
    assert not notes
    void = {(loss.shard, cell) for loss in run.losses for cell in loss.cells}
    found: dict[str, set[tuple[int, str]]] = {cell: set() for cell in CELLS}
    for block in blocks:
        if (block.shard, block.cell) not in void:
            found[block.cell].add((block.shard, block.device))
    assert {cell: len(of) for cell, of in found.items()} == dict.fromkeys(CELLS, 1)
    return {cell: next(iter(of))[1] for cell, of in found.items()}
