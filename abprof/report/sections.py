"""What workloads declare, as tables with a chart beside: the ladder, scaling, density sweep, autotuning, memory traffic.

Speed-ups of a sweep and efficiencies come from two arms' own times, so they have no interval; verdicts never rest on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from abprof.records import Observation, Sweep, Value
from abprof.report import charts, numbers, words
from abprof.report.charts import Series
from abprof.report.ladder import ladder
from abprof.report.lines import TextTable, time_text
from abprof.report.steps import Section, Steps, by_cell, case, number, order, shown, sides, some
from abprof.report.view import Group, Row

ROWS_UP_TO = 300  # of a section's table; cells.csv has all of them
LEVELS = {"minimum_dram_bytes": "DRAM", "minimum_l2_bytes": "L2", "minimum_l1_bytes": "L1"}
CONFIGURED = {
    "autotuned": ("Autotuning", "The configuration that each side's kernel ran with."),
    "configuration": (
        "Configuration",
        "What the package's table of platforms has for this device, as each side ran it.",
    ),
}


def of(group: Group) -> list[Section]:
    """The sections that the workload of this group declares and that its rows have something to say in."""
    made = [*ladder(group), *scaling(group), *sweep(group), *configurations(group), *memory(group)]
    return [_cut(section) for section in made if section.table.rows]


def _cut(section: Section) -> Section:
    rows = section.table.rows
    if len(rows) <= ROWS_UP_TO:
        return section
    table = replace(section.table, rows=rows[:ROWS_UP_TO])
    return replace(section, table=table, text=f"{section.text} The first {ROWS_UP_TO} of {len(rows)} rows.")


# ---------------------------------------------------------------- scaling


def scaling(group: Group) -> Iterator[Section]:
    """Time along the scaled axis, the best step at each value, and the rate as a share of the series' best."""
    axis = group.workload.scaled
    if axis not in group.axes:
        return
    names = shown(group)
    every = _series(group, axis)
    rated = any(point.rate for points in every.values() for point in points)
    rows: list[tuple[str, ...]] = []
    drawn: list[Series] = []
    for (which, side), points in every.items():
        rows += _along(group, axis, names, points)
        known = [(number(point.row.cell.params[axis]), point.rate if rated else point.ms) for point in points]
        drawn.append(Series(f"{which} {side}", side, tuple((x, y) for x, y in known if x is not None and y)))
    axis = words.clean(axis)
    told = "Efficiency is the TFLOP/s at a value as a share of the most in its series." if rated else ""
    if names:
        told = f"Best names the fastest, with those that were compared with it and are not certainly slower. {told}".strip()
    header = ("case", "side", axis, *(names or ("time",)), *(["best"] if names else []), "TFLOP/s", "efficiency")
    picture = charts.lines(some(drawn), y="TFLOP/s" if rated else "ms a call", x=axis, log_x=True, log_y=not rated)
    yield Section(f"Scaling over {axis}", told, TextTable(header, tuple(rows), 3), picture)


@dataclass(frozen=True)
class Point:
    """One side of one cell on the scaled axis: its arms, and the fastest of them."""

    case: str  # without the axis
    row: Row
    side: str
    seen: Steps
    best: float | None  # ns

    @property
    def rate(self) -> float | None:
        """TFLOP/s of the fastest arm."""
        return numbers.tflops(self.row.cell, self.best)

    @property
    def ms(self) -> float | None:
        """Milliseconds of the fastest arm."""
        return self.best / 1e6 if self.best else None


def _along(group: Group, axis: str, names: Sequence[str], points: Sequence[Point]) -> Iterator[tuple[str, ...]]:
    most = max((point.rate for point in points if point.rate), default=None)
    for point in points:
        seen, rate = point.seen, point.rate
        each = [time_text(seen.get(name), seen.metric) for name in names or ("",)]
        best = [_best(group, seen, names)] if names else []
        share = f"{100 * rate / most:.0f} %" if rate and most else words.NOT_RECORDED
        value = words.clean(point.row.cell.params[axis])
        yield (point.case, point.side, value, *each, *best, words.rate(rate), share)


def _series(group: Group, axis: str) -> dict[tuple[str, str], list[Point]]:
    """(case without the axis, side) -> its points in the axis's order."""
    found: dict[tuple[str, str], list[Point]] = {}
    for row, side, seen in by_cell(group):
        known = [ns for name in seen.arms if (ns := _right_ns(seen, name))]
        which = case(group, row, without=axis)
        found.setdefault((which, side), []).append(Point(which, row, side, seen, min(known, default=None)))
    for points in found.values():
        points.sort(key=lambda point: order(point.row.cell.params[axis]))
    return found


def _right_ns(seen: Steps, name: str) -> float | None:
    """The time of an arm whose output is right: a wrong one's may be shown, and is never the best."""
    one = seen.get(name)
    return seen.ns(name) if one and one.status != "wrong" else None


def _best(group: Group, seen: Steps, names: Sequence[str]) -> str:
    """The fastest, with those that were compared with it and are not certainly slower."""
    timed = sorted((ns, name) for name in names if (ns := _right_ns(seen, name)))
    if not timed:
        return words.NOT_RECORDED
    first, *others = (name for _, name in timed)
    return " or ".join(map(words.clean, [first, *(name for name in others if _level(group, seen, first, name))]))


def _level(group: Group, seen: Steps, first: str, second: str) -> bool:
    one, other = seen.get(first), seen.get(second)
    if one is None or other is None:
        return False
    judged = [group.beside.get((one.cell, *arms)) for arms in ((one.arm, other.arm), (other.arm, one.arm))]
    return any(pair.verdict in ("same", "unclear") for pair in judged if pair)


# ---------------------------------------------------------------- density


def sweep(group: Group) -> Iterator[Section]:
    """Speed-up against measured density, with what is expected there."""
    declared = group.workload.sweep
    if declared is None:
        return
    rows, lines = [], []
    for side, arm in sides(group):
        points: list[tuple[float, float]] = []
        for row, density, gain in _densities(group, declared, arm):
            times = time_text(arm(row), row.metric)
            band = _band(declared, density)
            told = f"{band[0]:g} to {band[1]:g} ×" if band else "-"
            verdict = "-" if band is None or gain is None else _placed(gain, band)
            shown = words.NOT_RECORDED if gain is None else f"{gain:.2f} ×"
            rows.append((group.name(row), side, f"{density:.3f}", times, shown, told, verdict))
            points += [(density, gain)] if gain is not None else []
        lines.append(Series(side, side, tuple(sorted(points)), joined=False))
    against = words.clean(declared.against)
    what = f"the variant {against} of the same case" if against else "the densest case that agrees in all other axes"
    header = ("case", "side", "density", "time", "speed-up", "expected", "it is")
    text = f"Speed-up against {what}, from the times of the same side; bands are what the workload expects."
    unseen = sum(_density(declared, row, arm(row)) is None for _, arm in sides(group) for row in group.rows)
    if unseen and not against:
        text += f" {words.plural(unseen, 'row')} without a density here may be denser than all of them."
    bands = [(*band.density, *band.speedup) for band in declared.bands]
    drawn = charts.lines(lines, y="speed-up", x=words.clean(declared.density), bands=bands)
    yield Section("Density sweep", text, TextTable(header, tuple(rows), 2), drawn)


def _densities(
    group: Group, declared: Sweep, arm: Callable[[Row], Observation | None]
) -> list[tuple[Row, float, float | None]]:
    """Rows in the order of their density, each with its speed-up over what the sweep counts from."""
    dense = {id(row): value for row in group.rows if (value := _density(declared, row, arm(row))) is not None}
    rows = sorted(
        (row for row in group.rows if id(row) in dense), key=lambda row: (_curve(declared, row), dense[id(row)])
    )
    start: dict[tuple[str, ...], Row] = {}
    for row in rows:
        if declared.against:
            if row.variant == declared.against:
                start[(row.cell.id,)] = row
        elif numbers.time_ns(arm(row), row.metric):
            start[_curve(declared, row)] = row  # the last is the densest
    found = []
    for row in rows:
        if row.variant and row.variant == declared.against:
            continue
        first = start.get((row.cell.id,) if declared.against else _curve(declared, row))
        before = numbers.time_ns(arm(first), first.metric) if first else None
        ns = numbers.time_ns(arm(row), row.metric)
        found.append((row, dense[id(row)], before / ns if before and ns else None))
    return found


def _curve(declared: Sweep, row: Row) -> tuple[str, ...]:
    """What rows of one curve have in common: all axes but the sweep's, and the variant."""
    return (*(f"{axis}={value}" for axis, value in row.cell.params.items() if axis not in declared.axes), row.variant)


def _density(declared: Sweep, row: Row, seen: Observation | None) -> float | None:
    told = seen.facts.get(declared.density) if seen else None
    return number(row.cell.params.get(declared.density) if told is None else told)


def _band(declared: Sweep, density: float) -> tuple[float, float] | None:
    """The first band that holds this density."""
    for band in declared.bands:
        if band.density[0] <= density <= band.density[1]:
            return band.speedup
    return None


def _placed(gain: float, band: tuple[float, float]) -> str:
    return "below" if gain < band[0] else "above" if gain > band[1] else "inside"


# ---------------------------------------------------------------- configurations, memory


def configurations(group: Group) -> Iterator[Section]:
    """The configuration of each case, chosen by autotuning or read from the package's table of platforms; where sides
    differ it says so."""
    for fact, (title, text) in CONFIGURED.items():
        rows = []
        for row in group.rows:
            told = [seen.facts.get(fact) if (seen := arm(row)) else None for _, arm in sides(group)]
            if any(one is not None for one in told):
                texts = [words.NOT_RECORDED if one is None else words.fact(one) for one in told]
                differs = [_same(told)] if group.target else []
                rows.append((group.name(row), *texts, *differs))
        header = ("case", *(side for side, _ in sides(group)), *(["sides"] if group.target else []))
        yield Section(title, text, TextTable(header, tuple(rows), 1))


def _same(told: Sequence[Value | None]) -> str:
    if None in told:
        return "-"
    return "same" if len(set(told)) == 1 else "differs"


def memory(group: Group) -> Iterator[Section]:
    """The least traffic that a call can do, per level, beside peak memory and the rate that would be at the time taken."""
    seen = [(row, side, one) for row in group.rows for side, arm in sides(group) if (one := arm(row))]
    levels = [name for name in LEVELS if any(name in one.facts for _, _, one in seen)]
    rows = []
    for row, side, one in seen:
        if not any(name in one.facts for name in levels):
            continue
        ns = numbers.time_ns(one, row.metric)
        least = [number(one.facts.get(name)) for name in levels]
        sizes = [words.size(count) for count in least]
        rates = [words.rate(count / ns if count and ns else None) for count in least]
        rows.append((group.name(row), side, *sizes, *rates, words.size(numbers.time_ns(one, "peak_mem_bytes"))))
    header = (
        "case",
        "side",
        *(f"{LEVELS[n]}, least" for n in levels),
        *(f"{LEVELS[n]} GB/s" for n in levels),
        "peak memory",
    )
    text = "The least bytes that a call must move, as the workload predicts, and the rate if it moved no more."
    yield Section("Memory traffic", text, TextTable(header, tuple(rows), 2))
