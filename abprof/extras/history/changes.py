"""Where a cell's speed changed, told from many nights. Pure: trends in, changes out; night n's answer needs nights up to n.

Two series say it. The *level* is the head's absolute time: its noise is each night's own, so it shows slow drift, but it
also moves with the machine. The *chain* is the product of the nights' ratios: a machine cancels in it, but its noise adds
up night by night. Both are looked at as logarithms, so that 0.05 is 5 %.

hits.py says on which night a change is confirmed; then the search begins anew at the change. A night that differs by as much
alone is `suspected`. What this finds, and how often it errs, is measured in tests/test_history_changes.py and docs/NIGHTLY.md.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from abprof.extras.history.fleet import Shift, fleet_of, shifts_of, without
from abprof.extras.history.hits import CONFIRM, FLOOR, Hit, Series, chain_hit, chain_of, level_hit, levels_of
from abprof.extras.history.trend import Floats, Trend

Z_SUSPECTED = 3.5
Because = Literal["code", "machine", "open"]


@dataclass(frozen=True)
class Change:
    """A change of one cell's time. `pct` is in per cent of time: negative is faster."""

    trend: str
    night: int  # the first at the new level; of a drift the first on which it rose
    found: int  # the night on which it was known
    state: Literal["suspected", "confirmed"]
    kind: Literal["step", "drift"]
    pct: float
    because: Because  # what moved: `open` where the chain's own noise does not let it be told


def find(trends: Sequence[Trend]) -> tuple[list[Change], list[Shift]]:
    """All changes by night, and the machine's shifts."""
    fleet = fleet_of(trends)
    shifts = shifts_of(fleet)
    moved = [without(trend, shifts) for trend in trends]
    drift = {
        night: 0.0 if any(night == shift.night for shift in shifts) else step.middle for night, step in fleet.items()
    }
    found = [change for trend in moved for change in _changes(trend, drift)]
    return sorted(found, key=lambda change: (change.found, change.trend)), shifts


def _changes(trend: Trend, drift: dict[int, float]) -> list[Change]:
    """The changes of one trend. `drift`: what the machine did to all cells from the night before, by night."""
    if not trend.numbers:
        return []
    levels, chain = levels_of(trend), chain_of(trend)
    found: list[Change] = []
    start = -1  # place of the present level's first night
    while True:
        hits = [hit for level in levels if (hit := level_hit(level, start)) is not None]
        hits += [hit for hit in [chain_hit(chain, start, trend)] if hit is not None]
        if not hits:
            break
        change, onward = _confirmed(trend, min(hits, key=lambda hit: hit.place), chain, drift)
        start = max(start + 1, onward)
        found.append(change)
    return [*found, *_suspected(trend, levels, chain, start)]


def _confirmed(trend: Trend, hit: Hit, chain: Series, drift: dict[int, float]) -> tuple[Change, int]:
    """The change that a hit tells of, and the place from which on the search goes on."""
    values = hit.series.values[hit.first : hit.at + 1]
    level = np.cumsum(values) if hit.chained else values
    if hit.chained:  # what stood before the first ratio
        level = np.concatenate([[0.0], level])
    offset = hit.first - (1 if hit.chained else 0)
    kind, index, size = _shape(level)
    place = hit.series.places[min(offset + index, hit.at)]
    size_pct = math.expm1(size) * 100
    because = _because(trend, chain, drift, place, hit.place, size)
    change = Change(trend.name, trend.numbers[place], trend.numbers[hit.place], "confirmed", kind, size_pct, because)
    return change, max(place, hit.place - CONFIRM + 1) if kind == "step" else hit.place - CONFIRM + 1


def _shape(level: Floats) -> tuple[Literal["step", "drift"], int, float]:
    """Whether the last 64 nights look more like a step or like a rise up to the last, by least squares: kind, index of the
    first night of the change, and its size."""
    skipped = max(0, len(level) - 64)
    x = level[skipped:]
    n = len(x)
    steps = [(_squares(x[:k]) + _squares(x[k:]), k) for k in range(1, n - CONFIRM + 2)]
    step_error, k = min(steps)
    ramps = []
    for knee in range(n - 4):
        rise = np.maximum(0, np.arange(n) - knee).astype(np.float64)
        centred = rise - rise.mean()
        slope = float(centred @ (x - x.mean()) / (centred @ centred))
        ramps.append((float(np.sum((x - x.mean() - slope * centred) ** 2)), knee, slope))
    if ramps and min(ramps)[0] < step_error:
        _, knee, slope = min(ramps)
        return "drift", skipped + knee + 1, slope * (n - 1 - knee)
    return "step", skipped + k, float(x[k:].mean() - x[:k][-32:].mean())


def _squares(x: Floats) -> float:
    return float(np.sum((x - x.mean()) ** 2)) if len(x) else 0.0


def _because(trend: Trend, chain: Series, drift: dict[int, float], place: int, found: int, size: float) -> Because:
    """The code, when the ratios of these nights account for half of the change or more; the machine, when what all cells
    did together accounts for it, or when the ratios certainly do not."""
    inside = [i for i, at in enumerate(chain.places) if place <= at <= found]
    ratios = float(chain.values[inside].sum()) if inside else 0.0
    machine = sum(drift.get(trend.numbers[i], 0.0) for i in range(place, found + 1))
    if abs(size - machine) < abs(size) / 2:
        return "machine"
    if inside and ratios * math.copysign(1, size) >= abs(size) / 2:
        return "code"
    noise = float(chain.sigma[inside[-1]]) * math.sqrt(len(inside)) if inside else math.inf
    return (
        "machine" if (size - ratios) * math.copysign(1, size) >= Z_SUSPECTED * noise and ratios * size <= 0 else "open"
    )


def _suspected(trend: Trend, levels: Sequence[Series], chain: Series, start: int) -> list[Change]:
    """A change that began on one of the last nights, too few to be confirmed, and holds up to now."""
    found = []
    end = len(trend.numbers) - 1
    for series, chained in ((levels[-1], False), (chain, True)):
        first = bisect_left(series.places, start + chained)
        x = np.cumsum(series.values[first:]) if chained else series.values[first:]
        if not len(x) or series.places[-1] != end:
            continue
        for nights in range(CONFIRM - 1, 0, -1):
            early = x[-nights - 16 : -nights] if not chained else x[-nights - 1 : -nights]
            if chained and len(x) == nights:
                early = np.zeros(1)
            if len(early) < (1 if chained else 4):
                continue
            apart = x[-nights:] - early.mean()
            noise = float(series.sigma[-1]) * (math.sqrt(nights) if chained else math.sqrt(1 / nights + 1 / len(early)))
            size = float(apart[-1] if chained else apart.mean())
            if abs(size) >= max(FLOOR, Z_SUSPECTED * noise) and (apart * math.copysign(1, size) >= FLOOR / 2).all():
                place = series.places[-nights]
                because = _because(trend, chain, {}, place, end, size)
                night = trend.numbers[place]
                found.append(
                    Change(trend.name, night, trend.numbers[end], "suspected", "step", math.expm1(size) * 100, because)
                )
    return found[:1]
