"""Where a cell's speed changed, told from many nights. Pure: trends in, changes out; night n's answer needs nights up to n.

Two series say it. The *level* is the head's absolute time: its noise is each night's own, so it shows slow drift, but it
also moves with the machine. The *chain* is the product of the nights' ratios: a machine cancels in it, but its noise adds
up night by night. Both are looked at as logarithms, so that 0.05 is 5 %.

A change is confirmed on the first night on which the last nights differ from an earlier stretch by FLOOR or more, by Z
standard deviations or more, and each of the last CONFIRM nights by itself lies well beyond it: one bad night is
never enough, and an undone change never is. Of the earlier stretch that night counts which is nearest to the last ones and
not of a half that may be wild (BEFORE). Then the search begins anew at the change. A night that differs by as much
alone is `suspected`. The standard deviation comes of successive differences without those beyond five of it, so that past
steps do not widen it (as in LLVM's compile-time tracker), and stretches end where the machine's fingerprint or the workloads
change.
Comparing a short stretch at the
end with earlier ones at several distances is a moving-sum test (Bauer and Hackl, 1978; Eichinger and Kirch, 2018).
What it finds, and how often it errs, is measured in tests/test_history_changes.py and docs/NIGHTLY.md.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

FLOOR = math.log(1.03)  # a smaller change is never confirmed
Z = 4.5
Z_SUSPECTED = 3.5
CONFIRM = 3
EACH = 0.4  # of the change, that each of these nights shows by itself
LAST = (3, 6)  # nights at the end
# Nights of the earlier stretch, and which of them in order of time stands for it against a fall; against a rise the same from
# the slowest. So half of a stretch may be wild nights, and of a short one all but one.
BEFORE = {4: 0, 8: 3, 16: 7, 32: 15}
BETWEEN = (0, 4, 8, 16, 32)  # nights between the two: those in which a drift rose
SPANS = (3, 4, 6, 8, 12, 16, 24, 32)  # nights of the chain
_PRIOR, _PRIOR_NIGHTS = 0.01, 4.0  # what a cell's standard deviation is taken for before it is known
_WINDOW = 64  # nights that tell it
_LEAST = 5e-4
_MEDIAN = math.pi / 2  # variance of a median over that of a mean
_NORMAL = 1.4826  # standard deviation of a normal law over its median absolute deviation

Floats = np.ndarray[Any, np.dtype[np.float64]]
Places = np.ndarray[Any, np.dtype[np.int64]]
Because = Literal["code", "machine", "open"]


@dataclass(frozen=True)
class Trend:
    """One cell (of one variant), a place per night on which it has a value, in their order; nights without are no places.

    `base` and `head` are ns, nan where not recorded. `ratio` is ln(head / base) as the night's run judged it, nan where
    it did not; nights of identical code are exact zeros in `ratio` and `measured` is False there. `machine` is whatever
    absolute times depend on beside the code: the machine, and the matrix with its workloads' contents.
    """

    name: str
    numbers: tuple[int, ...]
    base: Floats
    head: Floats
    ratio: Floats
    measured: tuple[bool, ...]
    machine: tuple[str, ...]


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


@dataclass(frozen=True)
class Shift:
    """The machine: all cells moved together on this night, though the base is the very commit that was head the night before."""

    night: int
    pct: float
    cells: int


def find(trends: Sequence[Trend]) -> tuple[list[Change], list[Shift]]:
    """All changes by night, and the machine's shifts."""
    fleet = _fleet(trends)
    shifts = _shifts(fleet)
    moved = [_without(trend, shifts) for trend in trends]
    drift = {
        night: 0.0 if any(night == shift.night for shift in shifts) else step.middle for night, step in fleet.items()
    }
    found = [change for trend in moved for change in _changes(trend, drift)]
    return sorted(found, key=lambda change: (change.found, change.trend)), shifts


# ---------------------------------------------------------------- the machine


@dataclass(frozen=True)
class _Step:
    """What the same commits' times did from one night to the next, over all cells."""

    middle: float
    error: float
    cells: int
    together: float  # share of the cells that moved at least half as far, the same way


def _fleet(trends: Sequence[Trend]) -> dict[int, _Step]:
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
        spread = _NORMAL * float(np.median(np.abs(all_ - middle)))
        together = float(np.mean(all_ * np.sign(middle) >= abs(middle) / 2))
        steps[night] = _Step(middle, max(1.2533 * spread / math.sqrt(len(found)), 1e-9), len(found), together)
    return steps


def _shifts(fleet: dict[int, _Step]) -> list[Shift]:
    """Nights on which at least three cells of four moved together by 1 % or more."""
    return [
        Shift(night, math.expm1(step.middle) * 100, step.cells)
        for night, step in sorted(fleet.items())
        if step.cells >= 3 and abs(step.middle) >= 0.01 and abs(step.middle) >= Z * step.error and step.together >= 0.75
    ]


def _without(trend: Trend, shifts: Sequence[Shift]) -> Trend:
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


# ---------------------------------------------------------------- one cell


@dataclass(frozen=True)
class _Series:
    """Values in the order of their nights, and their standard deviation as it was known on each."""

    places: list[int]  # of each value: the place in Trend
    values: Floats
    sigma: Floats


def _changes(trend: Trend, drift: dict[int, float]) -> list[Change]:
    """The changes of one trend. `drift`: what the machine did to all cells from the night before, by night."""
    if not trend.numbers:
        return []
    levels, chain = _levels(trend), _chain(trend)
    found: list[Change] = []
    start = -1  # place of the present level's first night
    while True:
        hits = [hit for level in levels if (hit := _level_hit(level, start)) is not None]
        hits += [hit for hit in [_chain_hit(chain, start, trend)] if hit is not None]
        if not hits:
            break
        change, onward = _confirmed(trend, min(hits, key=lambda hit: hit.place), chain, drift)
        start = max(start + 1, onward)
        found.append(change)
    return [*found, *_suspected(trend, levels, chain, start)]


def _levels(trend: Trend) -> list[_Series]:
    """The head's time, machine by machine; what a machine begins with is the base of its first night."""
    made: list[_Series] = []
    first = 0
    for i in range(1, len(trend.numbers) + 1):
        if i < len(trend.numbers) and trend.machine[i] == trend.machine[first]:
            continue
        points = [(first - 1, trend.base[first])] if trend.base[first] > 0 and first else []
        points += [(place, trend.head[place]) for place in range(first, i) if trend.head[place] > 0]
        values = np.log(np.array([value for _, value in points], dtype=np.float64))
        made.append(
            _Series([place for place, _ in points], values, _sigma(np.diff(values) / math.sqrt(2), len(values)))
        )
        first = i
    return made


def _chain(trend: Trend) -> _Series:
    """The ratios that were measured, whatever the machine."""
    places = [i for i, told in enumerate(trend.measured) if told and math.isfinite(trend.ratio[i])]
    values = trend.ratio[places] if places else np.empty(0)
    return _Series(places, values, _sigma(values, len(values)))


def _sigma(scatter: Floats, length: int) -> Floats:
    """Standard deviation as it is known on each night: of what scattered in the nights before, drawn towards the prior."""
    sizes, late = np.abs(scatter), length - len(scatter)
    ends = [*range(1, 9), *range(12, _WINDOW, 4), *range(_WINDOW, len(sizes) + 1, 32)]
    ends = [end for end in ends if end <= len(sizes)]
    told = [0.0, *(_spread(sizes[max(0, end - _WINDOW) : end]) for end in ends)]
    known = np.maximum(np.arange(length) + 1 - late, 0)  # values that are there on each night
    own = np.array(told)[np.searchsorted(ends, known, side="right")]
    nights = np.minimum(known, _WINDOW)
    drawn = np.sqrt((nights * own**2 + _PRIOR_NIGHTS * _PRIOR**2) / (nights + _PRIOR_NIGHTS))
    return np.asarray(np.maximum(drawn * (1 + 0.5 / (nights + 1)), _LEAST))


def _spread(sizes: Floats) -> float:
    """Root mean square without what lies beyond five standard deviations by the median."""
    inside = sizes[sizes <= 5 * _NORMAL * float(np.median(sizes))]
    return math.sqrt(float(inside @ inside) / len(inside))


@dataclass(frozen=True)
class _Hit:
    """A night on which a change is confirmed: by which series, from which of its values on."""

    place: int
    series: _Series
    first: int  # index of the present level's first value
    at: int
    chained: bool


def _level_hit(series: _Series, start: int) -> _Hit | None:
    """The first night on which the last nights' mean stands apart from an earlier stretch's."""
    first = bisect_left(series.places, start)
    x, sigma = series.values[first:], series.sigma[first:]
    total = np.concatenate([[0.0], np.cumsum(x)])
    hits = np.zeros(len(x), dtype=bool)
    for before, place in ((nights, place) for nights, place in BEFORE.items() if nights + LAST[0] <= len(x)):
        ordered = np.sort(np.lib.stride_tricks.sliding_window_view(x, before), axis=1)
        low, high = ordered[:, place], ordered[:, before - 1 - place]
        for last in LAST:
            for between in BETWEEN:
                n = np.arange(last + between + before - 1, len(x))  # the last night's index
                if not len(n):
                    continue
                begins = n - last - between - before + 1
                late = (total[n + 1] - total[n + 1 - last]) / last
                early = np.clip(late, low[begins], high[begins])
                apart = late - early
                sign = np.sign(apart)
                clear = np.abs(apart) >= np.maximum(FLOOR, Z * sigma[n] * math.sqrt(1 / last + _MEDIAN / before))
                each = np.maximum(FLOOR / 2, EACH * np.abs(apart))
                for back in range(CONFIRM):
                    clear &= (x[n - back] - early) * sign >= each
                hits[n] |= clear
    return _first(hits, series, first, chained=False)


def _chain_hit(series: _Series, start: int, trend: Trend) -> _Hit | None:
    """The first night on which the ratios of some nights up to it make a change that the last nights did not undo, and
    that absolute times do not deny: one wild ratio stays in the chain for ever, and in no other night's time."""
    first = bisect_left(series.places, start + 1)  # the ratio of the level's first night led to the level
    r, sigma = series.values[first:], series.sigma[first:]
    total = np.concatenate([[0.0], np.cumsum(r)])
    hits = np.zeros(len(r), dtype=bool)
    padded = np.concatenate([[0.0, 0.0], total])  # of three nights, so that one bad night is nobody's reference
    middles = np.median(np.lib.stride_tricks.sliding_window_view(padded, 3), axis=1)
    for span in SPANS:
        n = np.arange(span - 1, len(r))
        if not len(n):
            continue
        early = middles[n + 1 - span]
        apart = total[n + 1] - early
        moved = _moved(trend, np.array(series.places[first:])[n], np.array(series.places[first:])[n + 1 - span])
        clear = ~(moved * np.sign(apart) < np.abs(apart) / 3)  # where it is not known, nothing is denied
        clear &= np.abs(apart) >= np.maximum(FLOOR, Z * sigma[n] * math.sqrt(span + 1))
        for back in range(1, CONFIRM):
            clear &= (total[n + 1 - back] - early) * np.sign(apart) >= np.maximum(FLOOR / 2, EACH * np.abs(apart))
        hits[n] |= clear
    return _first(hits, series, first, chained=True)


def _moved(trend: Trend, late: Places, early: Places) -> Floats:
    """By how much the head's time moved from the three nights before `early` to the three up to `late`, by medians; nan where a
    night is missing or the machine is another."""
    with np.errstate(invalid="ignore", divide="ignore"):
        level = np.concatenate([[np.nan] * 3, np.log(trend.head)])  # place p is at p + 3
    three = np.median(np.lib.stride_tricks.sliding_window_view(level, 3), axis=1)  # of places p - 3 to p - 1 at p
    same = np.array([trend.machine[i] == trend.machine[max(j - 3, 0)] for i, j in zip(late, early, strict=True)])
    return np.where(same, three[late + 1] - three[early], np.nan)


def _first(hits: np.ndarray[Any, np.dtype[np.bool_]], series: _Series, first: int, *, chained: bool) -> _Hit | None:
    if not hits.any():
        return None
    at = first + int(np.argmax(hits))
    return _Hit(series.places[at], series, first, at, chained)


def _confirmed(trend: Trend, hit: _Hit, chain: _Series, drift: dict[int, float]) -> tuple[Change, int]:
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


def _because(trend: Trend, chain: _Series, drift: dict[int, float], place: int, found: int, size: float) -> Because:
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


def _suspected(trend: Trend, levels: Sequence[_Series], chain: _Series, start: int) -> list[Change]:
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
