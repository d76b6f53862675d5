"""How long each cell will take, for the schedule: by its work."""

from __future__ import annotations

from collections.abc import Mapping

from abprof.fleet.schedule import ASSUMED, Error, Task
from abprof.measure import estimate
from abprof.records import Arm, Run
from abprof.verdict import stats


def tasks(run: Run, arms: Mapping[str, tuple[Arm, ...]]) -> tuple[list[Task], Error]:
    """The cells that have arms, with their estimated seconds, and how wrong those may be."""
    epochs = 1 if run.settings.quick else run.settings.epochs or stats.LOOKS[0]
    cells = [cell for cell in run.cells if cell.id in arms]
    found = [
        Task(cell.id, cell.kernel, epochs * estimate.cell_seconds(run, cell, len(arms[cell.id]))[1]) for cell in cells
    ]
    return found, ASSUMED
