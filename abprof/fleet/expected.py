"""How long each cell will take, for the schedule: as it took in earlier runs on this device, else by its work."""

from __future__ import annotations

import math
from collections.abc import Mapping

from abprof.fleet.schedule import ASSUMED, SEEN_BEFORE, Error, Task
from abprof.measure import allocation, estimate, turns
from abprof.measure.allocation import Scatter
from abprof.records import Arm, Run
from abprof.verdict import stats

_LONGEST = 1e7  # seconds: what lies in the state folder need not be what a run learnt
_EPOCHS = stats.LOOKS[0]  # of a cell that was never measured: most are decided at the first look


def tasks(run: Run, arms: Mapping[str, tuple[Arm, ...]], known: Mapping[str, Scatter]) -> tuple[list[Task], Error]:
    """The cells that have arms, with their seconds, and how wrong those may be. `known`: what earlier runs of these cells
    taught (abprof/measure/noise.py). A cell that was never measured is taken for as much longer or shorter than its work says as
    the known ones are."""
    cells = [cell for cell in run.cells if cell.id in arms]
    seats = {cell.id: len(arms[cell.id]) for cell in cells}
    by_work = {cell.id: _epochs(run, None) * estimate.cell_seconds(run, cell, seats[cell.id])[1] for cell in cells}
    as_before = {cell.id: _as_before(run, seats[cell.id], known[cell.id]) for cell in cells if cell.id in known}
    seen = {cell: seconds for cell, seconds in as_before.items() if 0 <= seconds < _LONGEST}
    worked = sum(by_work[cell] for cell in seen)
    scale = sum(seen.values()) / worked if worked else 1.0
    found = [Task(cell.id, cell.kernel, seen.get(cell.id, scale * by_work[cell.id])) for cell in cells]
    return found, SEEN_BEFORE if 2 * len(seen) > len(found) else ASSUMED


def _as_before(run: Run, arms: int, seen: Scatter) -> float:
    """A cell's seconds. Rounds are those that its scatter asks for (abprof/measure/allocation.py), or that settle it."""
    rounds = allocation.best(seen)
    usual = seen.inside_seconds or turns.epoch_cost(run.machine.kind, arms)[1]
    settling = math.ceil(min(seen.within / turns.wanted_error(run.settings) ** 2, turns.MOST))
    one_call = 1e9 * seen.round_seconds / arms  # ns, where it matters: there a turn is of one
    fewest = turns.fewest_rounds(run.machine.kind, one_call)
    longest, shortest = turns.MOST * seen.round_seconds, fewest * seen.round_seconds
    inside = min(rounds, settling) * seen.round_seconds if rounds else usual
    return seen.once + _epochs(run, seen) * (seen.epoch_seconds + min(longest, max(shortest, inside)))


def _epochs(run: Run, seen: Scatter | None) -> int:
    if run.settings.quick:
        return 1
    return run.settings.epochs or (seen.epochs if seen else _EPOCHS)
