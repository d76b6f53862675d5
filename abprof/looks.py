"""How many epochs a cell's verdict can rest on, and how many more bring it to the next planned look (abprof/stats.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from abprof import stats
from abprof.comparison import pairs
from abprof.evidence import Evidence
from abprof.gathering import Gather, gather
from abprof.model import Block, Run


def epochs(run: Run, blocks: Sequence[Block], gathered: Gather = gather) -> dict[str, int]:
    """Cell -> epochs that its verdict can rest on: of its comparison with the fewest, quick ones not counted."""
    evidence = gathered(run, blocks, run.proofs)
    return {cell: item.once("epochs", partial(_epochs, run, item)) for cell, item in evidence.items()}


def _epochs(run: Run, item: Evidence) -> int:
    counts = [len(item.epoch_values(p.before, p.after)) for p in pairs(run, item) if p.role == "target"]
    counts = counts or [len(item.epoch_medians(arm)) for arm in item.states]
    return 0 if item.quick else min(counts, default=0)


def to_the_next(epochs: int) -> int:
    """How many more epochs bring a cell with so many to its next planned look; 0 where it has come to the last."""
    return next((look - epochs for look in stats.LOOKS if look > epochs), 0)


def to_the_nearest(run: Run, counts: Mapping[str, int], cells: Iterable[str]) -> int:
    """How many more epochs bring the first of these cells to a look, of which each has so many of `counts`; no fewer than one.

    Where a number of epochs was asked for, and where one branch alone is timed, any epoch counts from the first look on.
    """
    asked = run.settings.epochs is not None or len(run.sides) == 1
    ahead = [1 if asked and counts[cell] >= stats.LOOKS[0] else to_the_next(counts[cell]) for cell in cells]
    return max(1, min(ahead, default=1))


def between(before: Mapping[str, int], after: Mapping[str, int]) -> int:
    """How many cells got epochs that do not complete a further planned look."""
    more = [cell for cell, count in after.items() if count > before[cell]]
    return sum(stats.last_look(after[cell]) == stats.last_look(before[cell]) for cell in more)
