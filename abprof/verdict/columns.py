"""A block as columns, as it was read and at one clock. The verdict stage's first step: records in, arrays out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from abprof.records import FASTEST_CLOCK, LONGEST_CALL, REPORTED, Block, Outcome, Turn

Column = NDArray[np.float64]
ARM, START, END, VALUE, WALL, EMPTY, MHZ, WAITED = range(
    8
)  # columns of a table of turns, in the order of Turn's fields
_LESS = 0.8  # of the scatter as read
_ENOUGH = 6  # rounds: what a first look of mirrored pairs keeps when one round was rejected
_LEVELS = 4  # rounds: a first look of single ones
_UNREAD = 0.1  # share of turns whose clock may be missing: their rounds do not count then


@dataclass(frozen=True)
class Digest:
    """A block as columns: per arm one value a round, NaN where the round has no turn of that arm or was rejected."""

    epoch: int
    metric: str
    protocol: str
    outcomes: dict[str, Outcome]
    values: dict[str, Column]
    walls: dict[str, Column]
    clocks: dict[str, Column]  # MHz, NaN where it is not known
    waits: dict[str, Column]  # ns per call that the parent waited, NaN where it is not told


def columns(rounds: Sequence[Sequence[Turn]]) -> tuple[Column, NDArray[np.int64]]:
    """Rounds as a table of shape (turns, 8), one line per turn, and the round number of each line."""
    lines = [
        (turn.arm, turn.start, turn.end, turn.value, turn.wall, turn.empty, turn.mhz, turn.waited)
        for row in rounds
        for turn in row
    ]
    widths = [len(row) for row in rounds]
    return np.array(lines, dtype=float).reshape(len(lines), 8), np.repeat(np.arange(len(rounds)), widths)


def digest(block: Block) -> Digest:
    """A block's kept rounds as columns. Raises ValueError on a judged time that is not positive and finite, or is absurd."""
    table, rows = columns(block.rounds)
    kept = np.ones(len(block.rounds), dtype=bool)
    kept[[i for i in block.rejected if 0 <= i < len(kept)]] = False
    inside = kept[rows]
    table, place = table[inside], (np.cumsum(kept) - 1)[rows[inside]]
    at = table[:, ARM].astype(int), place
    values = np.full((len(block.arms), int(kept.sum())), np.nan)
    walls, clocks, waits = values.copy(), values.copy(), values.copy()
    timed = (table[:, VALUE] > 0) & (table[:, VALUE] <= LONGEST_CALL)
    clocks[at] = np.where((table[:, MHZ] > 0) & (table[:, MHZ] < FASTEST_CLOCK), table[:, MHZ], np.nan)
    values[at] = np.where(timed, table[:, VALUE], -1.0)
    walls[at] = table[:, WALL]
    if block.calls:
        waits[at] = np.where(table[:, WAITED] > 0, table[:, WAITED] / block.calls, np.nan)
    if (values < 0).any():
        raise ValueError(f"{block.cell}, epoch {block.epoch}: a time that no clock reads in a kept round")
    calls = f"{block.calls} call{'s' if block.calls != 1 else ''} a turn"
    protocol = block.rule if block.metric == REPORTED else f"{block.timer}, {calls}"
    present = [(i, arm) for i, arm in enumerate(block.arms) if not np.isnan(values[i]).all()]
    return Digest(
        epoch=block.epoch,
        metric=block.metric,
        protocol=protocol,
        outcomes=block.outcomes,
        values={arm: values[i] for i, arm in present},
        walls={arm: walls[i] for i, arm in present},
        clocks={arm: clocks[i] for i, arm in present},
        waits={arm: waits[i] for i, arm in present},
    )


def at_one_clock(digests: tuple[Digest, ...]) -> tuple[Digest, ...] | None:
    """The times at the mean clock of all turns, where that lessens the scatter of the rounds' ratios by a fifth; None
    where it does not, or more than a tenth of the turns did not read the clock.

    A turn is so short that neighbours share the clock, but a call of 20 ms and more is as long as the device takes to
    change it: under its power limit an H200's clock moves by tens of per cent, and the ratio of two such calls scattered by
    0.1 to 5 % where that of their cycles scattered by 0.02 to 0.6 % (docs/MEASUREMENT.md). Only scatter is looked at, never a
    middle, so the choice cannot favour a verdict; all arms of a cell share it. A memory's time does not follow the clock:
    there the scatter grows, and the times stay as they were read. An epoch of a single round has no scatter of its own, and
    that of ratios from epoch to epoch is what the interval is made of, which must not choose: there it is asked how all arms
    together wander from round to round.
    """
    columns = [(digest.values[arm], digest.clocks[arm]) for digest in digests for arm in digest.values if _judged(arm)]
    clocks = np.concatenate([clock[~np.isnan(times)] for times, clock in columns] or [np.empty(0)])
    read = ~np.isnan(clocks)
    if not read.size or read.mean() < 1 - _UNREAD:
        return None
    mhz = float(np.nanmean(clocks))
    level = tuple(
        replace(
            digest,
            protocol=f"{digest.protocol}, at {mhz:.0f} MHz",
            values={arm: values * digest.clocks[arm] / mhz for arm, values in digest.values.items()},
        )
        for digest in digests
    )
    before, after = _scatter(digests), _scatter(level)
    if before is None or after is None:
        before, after = _wander(digests), _wander(level)
    return level if before is not None and after is not None and after < _LESS * before else None


def _judged(arm: str) -> bool:
    """Peers have no say in how the sides are judged."""
    return not arm.startswith("peer:")


def _scatter(digests: Sequence[Digest]) -> float | None:
    """Median absolute deviation of the rounds' log ratios from their epoch's median, over all pairs of a
    judged arm with the first; None with fewer than _ENOUGH rounds."""
    apart = []
    for digest in digests:
        first, *others = [column for arm, column in digest.values.items() if _judged(arm)] or [np.empty(0)]
        for other in others:
            logs = np.log(other) - np.log(first)
            logs = logs[~np.isnan(logs)]
            apart.append(np.abs(logs - np.median(logs)) if logs.size > 1 else np.empty(0))
    every = np.concatenate(apart) if apart else np.empty(0)
    return float(np.median(every)) if every.size >= _ENOUGH else None


def _wander(digests: Sequence[Digest]) -> float | None:
    """Standard deviation of the rounds' levels: a round's is the mean log time of the judged arms that every epoch of several
    has. None with fewer than two such arms, or than _LEVELS rounds.

    Where the arms scatter alike their ratios have nothing to do with it. Where one scatters three times as far, and both
    ways of judging alike, 95 % intervals miss in 7 % instead of 5 (tests/simulations/test_error_rates.py).
    """
    told = [digest.values for digest in digests if sum(map(_judged, digest.values)) > 1]
    if not told:
        return None
    common = set.intersection(*(set(filter(_judged, values)) for values in told))
    if len(common) < 2:
        return None
    levels = np.concatenate([np.mean([np.log(values[arm]) for arm in sorted(common)], axis=0) for values in told])
    levels = levels[~np.isnan(levels)]
    return float(np.std(levels)) if levels.size >= _LEVELS else None
