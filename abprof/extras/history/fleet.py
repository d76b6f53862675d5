"""What the machine did to all cells together, told by commits that were measured on two nights."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from abprof.extras.history.trend import NORMAL, Trend, Z


@dataclass(frozen=True)
class Shift:
    """The machine: all cells moved together on this night, though the base is the very commit that was head the night before."""

    night: int
    pct: float
    cells: int


@dataclass(frozen=True)
class Step:
    """What the same commits' times did from one night to the next, over all cells."""

    middle: float
    error: float
    cells: int
    together: float  # share of the cells that moved at least half as far, the same way


def fleet_of(trends: Sequence[Trend]) -> dict[int, Step]:
    """Night -> what the commits that were measured on it and on the one before did, where the machine is the same."""
    moves: dict[int, list[float]] = {}
    for trend in trends:
        for i in range(1, len(trend.numbers)):
            move = (
                math.log(trend.base[i] / trend.head[i - 1]) if trend.base[i] > 0 and trend.head[i - 1] > 0 else math.nan
            )
            if trend.machine[i] == trend.machine[i - 1] and math.isfinite(move):
                moves.setdefault(trend.numbers[i], []).append(move)
    steps = {}
    for night, found in moves.items():
        all_ = np.array(found)
        middle = float(np.median(all_))
        spread = NORMAL * float(np.median(np.abs(all_ - middle)))
        together = float(np.mean(all_ * np.sign(middle) >= abs(middle) / 2))
        steps[night] = Step(middle, max(1.2533 * spread / math.sqrt(len(found)), 1e-9), len(found), together)
    return steps


def shifts_of(fleet: dict[int, Step]) -> list[Shift]:
    """Nights on which at least three cells of four moved together by 1 % or more."""
    return [
        Shift(night, math.expm1(step.middle) * 100, step.cells)
        for night, step in sorted(fleet.items())
        if step.cells >= 3 and abs(step.middle) >= 0.01 and abs(step.middle) >= Z * step.error and step.together >= 0.75
    ]


def without(trend: Trend, shifts: Sequence[Shift]) -> Trend:
    """The trend with the machine's shifts taken out of its absolute times."""
    if not shifts:
        return trend
    base, head = trend.base.copy(), trend.head.copy()
    for shift in shifts:
        from_ = bisect_left(trend.numbers, shift.night)
        here = [
            i
            for i in range(from_, len(trend.numbers))
            if trend.machine[i] == trend.machine[min(from_, len(trend.machine) - 1)]
        ]
        base[here] /= 1 + shift.pct / 100
        head[here] /= 1 + shift.pct / 100
    return replace(trend, base=base, head=head)
