"""Find lasting changes of times over many nights, and tell changes of the code from those of the whole machine.

The search is a moving-sum test (Bauer and Hackl, 1978; Eichinger and Kirch, 2018; docs/NIGHTLY.md) on the logarithm of
the head's times, corrected for machine shifts. The ratios of head to base tell whether the code or the machine changed.
A night's result does not depend on later nights.
"""

from __future__ import annotations

import contextlib
import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np

from abprof import sides as repo
from abprof.extras.nightly.history import History, NightRow, Value, read_history
from abprof.records import CellHistory, Run
from abprof.records.errors import AbprofError
from abprof.system import paths

FLOOR = math.log(1.03)  # smallest change that can be confirmed
CONFIRM = 3  # number of nights that must each show the change
_EACH = 0.4  # share of the change that each of these nights must show
_LAST = (3, 6)  # lengths, in nights, of the latest stretch of nights, which is compared with an earlier stretch
# Length of the earlier stretch, in nights -> rank. The night of this rank represents the stretch, counted from the fastest night
# in the search for a fall, from the slowest in the search for a rise. So half of a long stretch may be outliers.
_BEFORE = {4: 0, 8: 3, 16: 7, 32: 15}
_BETWEEN = (0, 4, 8, 16, 32)  # numbers of nights to skip between both stretches, because a drift may be slow
_Z = 4.5
_Z_DENIED = 3.5  # distance of ratio and change, in standard deviations, from which the machine is the cause
_NORMAL = 1.4826  # standard deviation of a normal distribution over its median absolute deviation
_MEDIAN = math.pi / 2  # variance of a median over that of a mean
_PRIOR, _PRIOR_NIGHTS = 0.01, 4.0  # prior standard deviation of a cell, and its weight in nights
_LEAST_SIGMA = 5e-4
_WINDOW = 64  # nights from which a standard deviation is estimated
LOOK_BACK = 200  # number of latest nights to search for changes; the page shows all nights
_SHOWN = 30  # nights in the row of a report
_NAMED = 5  # commits of a night that a record names

Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Trend:
    """The times of one cell in one variant over many nights. `numbers`: the numbers of the nights that have a value.

    `base` and `head`: times in ns, nan if not measured. `ratio`: measured ln(head / base); 0 for identical code, nan if
    unknown. `machine`: a text that is equal for nights on the same machine with the same workloads.
    """

    name: str
    numbers: tuple[int, ...]
    base: Floats
    head: Floats
    ratio: Floats
    machine: tuple[str, ...]


@dataclass(frozen=True)
class Change:
    """A confirmed change of a cell's time. `trend`: the cell's name. `pct`: per cent, negative if faster."""

    trend: str
    night: int  # first night at the new level
    found: int  # night that confirmed the change
    pct: float
    because: Literal["code", "machine", "open"]  # cause; `open`: the chain is too noisy to tell


@dataclass(frozen=True)
class Shift:
    """A night on which most cells' times changed by about `pct` per cent although the code was the same."""

    night: int
    pct: float
    cells: int


@dataclass(frozen=True)
class _Series:
    """Values of a trend. `places`: indexes of their nights in the trend. `sigma`: standard deviation on each night."""

    places: list[int]
    values: Floats
    sigma: Floats


def trends(values: Iterable[tuple[NightRow, Value]]) -> Iterator[Trend]:
    """Yield one trend per cell. `values` must be of one series, grouped by cell, and ordered by night within a cell."""
    for (cell, variant, _), rows in groupby(values, key=lambda pair: (pair[1].cell, pair[1].variant, pair[1].metric)):
        kept = [(night, value) for night, value in rows if value.head is not None or value.pct is not None]
        if kept:
            values = np.array([(value.base, value.head, value.pct) for _, value in kept], dtype=np.float64).T
            yield Trend(
                name=_name(cell, variant),
                numbers=tuple(night.number for night, _ in kept),
                base=values[0],
                head=values[1],
                ratio=np.log1p(np.maximum(values[2], -99.9) / 100),
                machine=tuple(f"{night.machine} {night.matrix}" for night, _ in kept),
            )


def _name(cell: str, variant: str) -> str:
    return f"{cell} [{variant}]" if variant else cell


def find_changes(found: Sequence[Trend], of: Collection[str] | None = None) -> tuple[list[Change], list[Shift]]:
    """Return all confirmed changes, earliest confirmation first, and all machine shifts. `of`: names of the trends whose
    changes are searched, by default all; shifts are of all."""
    drift, shifts = _machine(found)
    searched = [trend for trend in found if of is None or trend.name in of]
    changes = [change for trend in searched for change in _changes_of(_without(trend, shifts), drift)]
    return sorted(changes, key=lambda change: (change.found, change.trend)), shifts


def history_changes(
    history: History, series: str, cells: Sequence[str] = (), since: str = ""
) -> tuple[list[Change], list[Shift]]:
    """Return the changes and machine shifts found in a series since the date `since`. `cells`: globs of the cells whose
    changes are returned; the search itself uses all cells and nights."""
    changes, shifts = find_changes(list(trends(history.values(series))))
    names = {trend.name for trend in trends(history.values(series, cells))}
    late = {night.number for night in history.nights(series) if night.began >= since}
    changes = [change for change in changes if change.trend in names and change.found in late]
    return changes, [shift for shift in shifts if shift.night in late]


def levels(trend: Trend) -> Floats:
    """Return each night's change in time since the first night, in per cent; nan for a night without a time. On a new
    machine the curve continues at its old level, because the new machine measured the old commit too."""
    log = np.full(len(trend.numbers), np.nan)
    offset, before = None, math.nan
    for i, head in enumerate(trend.head):
        if not head > 0:
            continue
        if offset is None:
            offset = math.log(head)
        elif i and trend.machine[i] != trend.machine[i - 1] and trend.base[i] > 0 and math.isfinite(before):
            offset = math.log(trend.base[i]) - before
        log[i] = before = math.log(head) - offset
    return np.asarray(np.expm1(log) * 100)


def cell_history(runs_dir: Path, run: Run) -> tuple[CellHistory, ...]:
    """Return the latest nights of the run's cells. `runs_dir` holds the nights' runs; of several series, the one with the
    name of base's branch is read, else the one with the newest night."""
    history = read_history(runs_dir) if runs_dir.is_dir() else History((), ())
    if not history.found:
        return ()
    series = run.night.series if run.night else run.sides[0].label
    if series not in history.series():
        series = max(history.nights(), key=lambda night: night.began).series
    nights = {night.number: night for night in history.nights(series)[-LOOK_BACK:]}
    values = [pair for pair in history.values(series) if pair[0].number in nights]
    with_time = sorted((pair for pair in values if pair[1].head is not None), key=lambda pair: pair[0].number)
    judged = {(it.cell, it.variant): it.metric for _, it in with_time}  # the metric of the newest night
    values = [pair for pair in values if judged.get((pair[1].cell, pair[1].variant)) == pair[1].metric]
    found, measured = list(trends(values)), {cell.id for cell in run.cells}
    cells = {_name(*cell): cell for cell in judged if cell[0] in measured}
    last = {change.trend: change for change in find_changes(found, cells)[0]}  # of each cell the one confirmed last
    commits = {change.night: _commits(run, nights[change.night]) for change in last.values()}
    made = []
    for trend in (trend for trend in found if trend.name in cells):
        timed = [place for place, head in enumerate(trend.head) if head > 0][-_SHOWN:]
        change = last.get(trend.name)
        if not timed:
            continue
        of: dict[str, Any] = {}
        if change and change.night >= trend.numbers[timed[0]]:
            these = commits[change.night] if change.because != "machine" else []
            of = {"commits": tuple(these[:_NAMED]), "more_commits": len(these[_NAMED:])}
            of |= {"night": change.night, "since": nights[change.night].began[:10]}
            of |= {"pct": change.pct, "because": change.because}
        level = 1 + levels(trend)[timed] / 100
        times = trend.head[timed[-1]] * level / level[-1]
        of["dates"] = tuple(nights[trend.numbers[place]].began[:10] for place in timed)
        of["ns"] = tuple(float(f"{ns:.5g}") for ns in times)
        cell, variant = cells[trend.name]
        made.append(CellHistory(cell=cell, variant=variant, series=series, **of))
    return tuple(made)


def _commits(run: Run, night: NightRow) -> list[str]:
    """Return the commits between the base and the head of a night, newest first; without them the head alone."""
    with contextlib.suppress(AbprofError):
        repository = repo.open_repository(Path(run.options.repo), cache=paths.cache_dir())
        links = repository.between(night.base, night.head) if night.base else ()
        if links:
            return [f"{link.commit[:10]} {link.subject}" for link in reversed(links)]
    return [f"{night.head[:10]} {night.subject}"]


# ---------------------------------------------------------------- the machine


def _machine(found: Sequence[Trend]) -> tuple[dict[int, float], list[Shift]]:
    """Return how much the times of the same commit moved from night to night (median log ratio over cells), and the
    machine shifts: nights on which three or more cells moved together by 1 % or more."""
    moves: dict[int, list[float]] = {}
    for trend in found:
        for i in range(1, len(trend.numbers)):
            base, before = trend.base[i], trend.head[i - 1]
            if trend.machine[i] == trend.machine[i - 1] and 0 < base < math.inf and 0 < before < math.inf:
                moves.setdefault(trend.numbers[i], []).append(math.log(base / before))
    drift, shifts = dict[int, float](), list[Shift]()
    for night, of_cells in sorted(moves.items()):
        every = np.array(of_cells)
        middle = float(np.median(every))
        error = 1.2533 * _NORMAL * float(np.median(np.abs(every - middle))) / math.sqrt(len(every))
        together = float(np.mean(every * np.sign(middle) >= abs(middle) / 2))
        if len(every) >= 3 and abs(middle) >= max(0.01, _Z * error) and together >= 0.75:
            shifts.append(Shift(night, math.expm1(middle) * 100, len(every)))
        else:
            drift[night] = middle
    return drift, shifts


def _without(trend: Trend, shifts: Sequence[Shift]) -> Trend:
    factor = np.ones(len(trend.numbers))
    for shift in shifts:
        first = bisect_left(trend.numbers, shift.night)
        for i in range(first, len(factor)):
            if trend.machine[i] == trend.machine[first]:
                factor[i] *= 1 + shift.pct / 100
    return replace(trend, base=trend.base / factor, head=trend.head / factor) if shifts else trend


def _changes_of(trend: Trend, drift: Mapping[int, float]) -> Iterator[Change]:
    levels, places = (
        _levels_of(trend),
        [int(i) for i in np.flatnonzero(np.isfinite(trend.ratio) & ~np.isnan(trend.head))],
    )
    chain = _Series(places, trend.ratio[places], _sigma(trend.ratio[places], len(places)))  # over all machines
    start = -1  # index of the first night at the current level
    while hits := [(level.places[at], level, first, at) for level in levels for first, at in _hit(level, start)]:
        found, level, first, at = min(hits, key=lambda hit: hit[0])
        index, size = _step(level.values[first : at + 1])
        place = level.places[min(first + index, at)]
        because = _because(trend, chain, drift, (place, found), size)
        yield Change(trend.name, trend.numbers[place], trend.numbers[found], math.expm1(size) * 100, because)
        start = max(start + 1, place, found - CONFIRM + 1)


def _levels_of(trend: Trend) -> list[_Series]:
    """Return the logs of the head's times, one series per machine. A later machine's series begins with the time of the
    base on the machine's first night."""
    made: list[_Series] = []
    first = 0
    for i in range(1, len(trend.numbers) + 1):
        if i < len(trend.numbers) and trend.machine[i] == trend.machine[first]:
            continue
        points = [(first - 1, trend.base[first])] if trend.base[first] > 0 and first else []
        points += [(place, trend.head[place]) for place in range(first, i) if trend.head[place] > 0]
        values = np.log(np.array([value for _, value in points], dtype=np.float64))
        sigma = _sigma(np.diff(values) / math.sqrt(2), len(values))
        made.append(_Series([place for place, _ in points], values, sigma))
        first = i
    return made


def _sigma(scatter: Floats, length: int) -> Floats:
    """Estimate the standard deviation on each of `length` nights, from a prior and the values of `scatter` so far."""
    sizes, late = np.abs(scatter), length - len(scatter)
    ends = [*range(1, 9), *range(12, _WINDOW, 4), *range(_WINDOW, len(sizes) + 1, 32)]
    ends = [end for end in ends if end <= len(sizes)]
    spreads = [0.0, *(_spread(sizes[max(0, end - _WINDOW) : end]) for end in ends)]
    known = np.maximum(np.arange(length) + 1 - late, 0)  # values available on each night
    own = np.array(spreads)[np.searchsorted(ends, known, side="right")]
    nights = np.minimum(known, _WINDOW)
    drawn = np.sqrt((nights * own**2 + _PRIOR_NIGHTS * _PRIOR**2) / (nights + _PRIOR_NIGHTS))
    return np.asarray(np.maximum(drawn * (1 + 0.5 / (nights + 1)), _LEAST_SIGMA))


def _spread(sizes: Floats) -> float:
    inside = sizes[sizes <= 5 * _NORMAL * float(np.median(sizes))]
    return math.sqrt(float(inside @ inside) / len(inside))


def _hit(series: _Series, start: int) -> Iterator[tuple[int, int]]:
    """Find the first night from index `start` on which the latest nights differ from earlier ones. If there is one,
    yield (index of the first value searched, index of the night)."""
    first = bisect_left(series.places, start)
    x, sigma = series.values[first:], series.sigma[first:]
    total = np.concatenate([[0.0], np.cumsum(x)])
    hits = np.zeros(len(x), dtype=bool)
    for before, rank in ((nights, rank) for nights, rank in _BEFORE.items() if nights + _LAST[0] <= len(x)):
        ordered = np.sort(np.lib.stride_tricks.sliding_window_view(x, before), axis=1)
        low, high = ordered[:, rank], ordered[:, before - 1 - rank]
        for last in _LAST:
            for between in _BETWEEN:
                n = np.arange(last + between + before - 1, len(x))  # index of the last night
                if not len(n):
                    continue
                begins = n - last - between - before + 1
                late = (total[n + 1] - total[n + 1 - last]) / last
                early = np.clip(late, low[begins], high[begins])
                apart = late - early
                clear = np.abs(apart) >= np.maximum(FLOOR, _Z * sigma[n] * math.sqrt(1 / last + _MEDIAN / before))
                each = np.maximum(FLOOR / 2, _EACH * np.abs(apart))
                for back in range(CONFIRM):
                    clear &= (x[n - back] - early) * np.sign(apart) >= each
                hits[n] |= clear
    if hits.any():
        yield first, first + int(np.argmax(hits))


def _step(level: Floats) -> tuple[int, float]:
    skipped = max(0, len(level) - 64)
    x = level[skipped:]
    _, k = min((x[:k].var() * k + x[k:].var() * (len(x) - k), k) for k in range(1, len(x) - CONFIRM + 2))
    return skipped + k, float(x[k:].mean() - x[:k][-32:].mean())


def _because(
    trend: Trend, chain: _Series, drift: Mapping[int, float], nights: tuple[int, int], size: float
) -> Literal["code", "machine", "open"]:
    """Return the cause of a change by `size` (a log ratio). It is "code" if the ratios of head to base show the change,
    "machine" if unchanged commits show it or the ratios rule it out, else "open"."""
    place, found = nights
    inside = [i for i, at in enumerate(chain.places) if place <= at <= found]
    ratios = float(chain.values[inside].sum()) if inside else 0.0
    machine = sum(drift.get(trend.numbers[i], 0.0) for i in range(place, found + 1))
    if abs(size - machine) < abs(size) / 2:
        return "machine"
    sign = math.copysign(1, size)
    if inside and ratios * sign >= abs(size) / 2:
        return "code"
    noise = float(chain.sigma[inside[-1]]) * math.sqrt(len(inside)) if inside else math.inf
    denied = (size - ratios) * sign >= _Z_DENIED * noise and ratios * sign <= 0
    return "machine" if denied else "open"
