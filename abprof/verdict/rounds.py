"""Rounds as arrays: a block's kept rounds as measured, and rescaled to one clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from abprof.records import FASTEST_CLOCK, LONGEST_CALL, REPORTED, Arm, Block, Outcome, Turn

Array = NDArray[np.float64]
ARM, START, END, VALUE, WALL, EMPTY, MHZ, WAITED = range(8)  # columns of `table`, in the order of Turn's fields
_QUIETER = 0.8  # rescaled rounds are judged when they scatter by less than this share of the measured ones
_FEWEST_RATIOS = 6  # a first look of mirrored pairs with one round rejected
_FEWEST_ROUNDS = 4  # a first look of single rounds
_CLOCK_MISSING = 0.1  # largest share of turns that may lack a clock


@dataclass(frozen=True)
class Columns:
    """A block's kept rounds: one value per round and arm, NaN where the round has no turn of that arm."""

    epoch: int
    protocol: str
    outcomes: dict[str, Outcome]
    values: dict[str, Array]  # judged time, ns per call
    walls: dict[str, Array]  # wall clock, ns per call
    clocks: dict[str, Array]  # device clock, MHz; NaN where unknown
    waits: dict[str, Array]  # time the parent waited, ns per call; NaN where unknown


def table(rounds: Sequence[Sequence[Turn]]) -> tuple[Array, NDArray[np.int64]]:
    """Turns as rows of (arm, start, end, value, wall, empty, mhz, waited), and the round number of each row."""
    rows = [msgspec.structs.astuple(turn) for row in rounds for turn in row]
    return np.array(rows, dtype=float).reshape(len(rows), 8), np.repeat(np.arange(len(rounds)), [*map(len, rounds)])


def columns(block: Block) -> Columns:
    """A block's kept rounds. Raises ValueError on a judged time that is not positive, finite and below LONGEST_CALL."""
    turns, rows = table(block.rounds)
    kept = np.ones(len(block.rounds), dtype=bool)
    kept[[i for i in block.rejected if 0 <= i < len(kept)]] = False
    turns, at_round = turns[kept[rows]], (np.cumsum(kept) - 1)[rows[kept[rows]]]
    at = turns[:, ARM].astype(int), at_round
    values = np.full((len(block.arms), int(kept.sum())), np.nan)
    walls, clocks, waits = values.copy(), values.copy(), values.copy()
    timed = (turns[:, VALUE] > 0) & (turns[:, VALUE] <= LONGEST_CALL)
    values[at] = np.where(timed, turns[:, VALUE], -1.0)
    walls[at] = turns[:, WALL]
    clocks[at] = np.where((turns[:, MHZ] > 0) & (turns[:, MHZ] < FASTEST_CLOCK), turns[:, MHZ], np.nan)
    if block.calls:
        waits[at] = np.where(turns[:, WAITED] > 0, turns[:, WAITED] / block.calls, np.nan)
    if (values < 0).any():
        raise ValueError(f"{block.cell}, epoch {block.epoch}: a kept round has an impossible time")
    calls = f"{block.calls} call{'s' if block.calls != 1 else ''} a turn"
    present = [(i, arm) for i, arm in enumerate(block.arms) if not np.isnan(values[i]).all()]
    return Columns(
        epoch=block.epoch,
        protocol=block.rule if block.metric == REPORTED else f"{block.timer}, {calls}",
        outcomes=block.outcomes,
        values={arm: values[i] for i, arm in present},
        walls={arm: walls[i] for i, arm in present},
        clocks={arm: clocks[i] for i, arm in present},
        waits={arm: waits[i] for i, arm in present},
    )


def at_one_clock(blocks: tuple[Columns, ...]) -> tuple[Columns, ...] | None:
    """The times rescaled to the mean clock of all turns; None unless that reduces the scatter of ratios by a fifth.

    Neighbouring short turns share a clock, but a device changes its clock within a call of 20 ms: under its power limit
    the ratio of two such calls on an H200 scattered by 0.1 to 5 %, that of their cycles by 0.02 to 0.6 %
    (docs/MEASUREMENT.md). Only scatter is compared, never a centre, so the choice cannot favour a verdict, and all arms
    of a cell share it. Memory does not follow the clock: there the scatter grows and the measured times are judged.
    An epoch of one round has no scatter of its own; then the drift of all arms together is compared from round to round
    (not the ratios between epochs, which the interval is made of). Also None when more than a tenth of the turns lack a
    clock.
    """
    pairs = [(block.values[arm], block.clocks[arm]) for block in blocks for arm in _judged_arms(block)]
    clocks = np.concatenate([clock[~np.isnan(times)] for times, clock in pairs] or [np.empty(0)])
    known = ~np.isnan(clocks)
    if not known.size or known.mean() < 1 - _CLOCK_MISSING:
        return None
    mhz = float(np.nanmean(clocks))
    rescaled = tuple(
        replace(
            block,
            protocol=f"{block.protocol}, at {mhz:.0f} MHz",
            values={arm: values * block.clocks[arm] / mhz for arm, values in block.values.items()},
        )
        for block in blocks
    )
    before, after = _ratio_scatter(blocks), _ratio_scatter(rescaled)
    if before is None or after is None:
        before, after = _drift(blocks), _drift(rescaled)
    return rescaled if before is not None and after is not None and after < _QUIETER * before else None


def _judged_arms(block: Columns) -> list[str]:
    """All arms but peers, which do not decide how the sides are judged."""
    return [arm for arm in block.values if not Arm.of(arm).peer]


def _ratio_scatter(blocks: Sequence[Columns]) -> float | None:
    """Median absolute deviation of the rounds' log ratios from their epoch's median, over all pairs of a judged arm with
    the first; None with fewer than six ratios."""
    deviations = [np.empty(0)]
    for block in blocks:
        arms = _judged_arms(block)
        for other in arms[1:]:
            logs = np.log(block.values[other]) - np.log(block.values[arms[0]])
            logs = logs[~np.isnan(logs)]
            if logs.size > 1:
                deviations.append(np.abs(logs - np.median(logs)))
    every = np.concatenate(deviations)
    return float(np.median(every)) if every.size >= _FEWEST_RATIOS else None


def _drift(blocks: Sequence[Columns]) -> float | None:
    """Standard deviation of the rounds' mean log time over the judged arms that every epoch has; None with fewer than two
    such arms or four rounds.

    Independent of the ratios when the arms scatter alike. When one scatters three times as far, 95 % intervals miss in
    7 % instead of 5 (tests/simulations/test_error_rates.py).
    """
    several = [block for block in blocks if len(_judged_arms(block)) > 1]
    common = sorted(set.intersection(*(set(_judged_arms(block)) for block in several))) if several else []
    if len(common) < 2:
        return None
    levels = np.concatenate([np.mean([np.log(block.values[arm]) for arm in common], axis=0) for block in several])
    levels = levels[~np.isnan(levels)]
    return float(np.std(levels)) if levels.size >= _FEWEST_ROUNDS else None
