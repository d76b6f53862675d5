"""On which night a change is certain: a cell's times as series of values, and their last nights against earlier ones.

A change is confirmed on the first night on which the last nights differ from an earlier stretch by FLOOR or more, by Z
standard deviations or more, and each of the last CONFIRM nights by itself lies well beyond it: one bad night is
never enough, and an undone change never is. Of the earlier stretch that night counts which is nearest to the last ones and
not of a half that may be wild (BEFORE). The standard deviation comes of successive differences without those beyond five of
it, so that past steps do not widen it (as in LLVM's compile-time tracker), and stretches end where the machine's fingerprint
or the workloads change.

Comparing a short stretch at the end with earlier ones at several distances is a moving-sum test (Bauer and Hackl, 1978;
Eichinger and Kirch, 2018).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import numpy as np

from abprof.extras.history.trend import NORMAL, Floats, Trend, Z

FLOOR = math.log(1.03)  # a smaller change is never confirmed
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

Places = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Series:
    """Values in the order of their nights, and their standard deviation as it was known on each."""

    places: list[int]  # of each value: the place in Trend
    values: Floats
    sigma: Floats


def levels_of(trend: Trend) -> list[Series]:
    """The head's time, machine by machine; what a machine begins with is the base of its first night."""
    made: list[Series] = []
    first = 0
    for i in range(1, len(trend.numbers) + 1):
        if i < len(trend.numbers) and trend.machine[i] == trend.machine[first]:
            continue
        points = [(first - 1, trend.base[first])] if trend.base[first] > 0 and first else []
        points += [(place, trend.head[place]) for place in range(first, i) if trend.head[place] > 0]
        values = np.log(np.array([value for _, value in points], dtype=np.float64))
        made.append(Series([place for place, _ in points], values, _sigma(np.diff(values) / math.sqrt(2), len(values))))
        first = i
    return made


def chain_of(trend: Trend) -> Series:
    """The ratios that were measured, whatever the machine."""
    places = [i for i, told in enumerate(trend.measured) if told and math.isfinite(trend.ratio[i])]
    values = trend.ratio[places] if places else np.empty(0)
    return Series(places, values, _sigma(values, len(values)))


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
    inside = sizes[sizes <= 5 * NORMAL * float(np.median(sizes))]
    return math.sqrt(float(inside @ inside) / len(inside))


@dataclass(frozen=True)
class Hit:
    """A night on which a change is confirmed: by which series, from which of its values on."""

    place: int
    series: Series
    first: int  # index of the present level's first value
    at: int
    chained: bool


def level_hit(series: Series, start: int) -> Hit | None:
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


def chain_hit(series: Series, start: int, trend: Trend) -> Hit | None:
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
    with np.errstate(invalid="ignore"):  # of times that an index from elsewhere holds: infinite ones
        return np.where(same, three[late + 1] - three[early], np.nan)


def _first(hits: np.ndarray[Any, np.dtype[np.bool_]], series: Series, first: int, *, chained: bool) -> Hit | None:
    if not hits.any():
        return None
    at = first + int(np.argmax(hits))
    return Hit(series.places[at], series, first, at, chained)
