"""Make the tables that follow a workload's verdicts: times, phases, peers, speed-ups, scaling, density, configurations.

A speed-up has an interval and a verdict if the run compared the two arms; else it is the ratio of their times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from abprof.records import Observation, Sweep, Value
from abprof.records.quantities import plural
from abprof.report import sentences
from abprof.report.rows import (
    ROWS_UP_TO,
    Block,
    Breakdown,
    Group,
    Row,
    Table,
    arm_name,
    gbps,
    label,
    own_interval,
    tflops,
    time_text,
    value,
)
from abprof.report.text import NOT_RECORDED, clean, rate, size

Steps = Mapping[str, Observation | None]  # one side's arms of one cell, by variant
_PHASES = "Phases in ms a call, from a profiled pass; residual is that pass's total minus its phases"
_PEERS = "Library implementations, measured in the same rounds"
_PAIRS = "The second against the first, judged by the same rules as the sides"


def blocks(group: Group) -> list[Block]:
    """Return the tables that follow a group's rows, as blocks of the report."""
    declared = [*_ladder(group), *_scaling(group), *_sweep(group), *_configurations(group)]
    alone = [_alone(group)] if group.target is None else []
    return [*alone, *_phases(group), *declared, *_peers(group), *_pairs(group)]


def _block(
    title: str, rows: Sequence[Mapping[str, str]], left: int, text: str = "", caption: str = "", *, folded: bool = False
) -> Iterator[Block]:
    """Yield a block with a table of `rows`, whose first `left` columns name the row. Without rows yield nothing."""
    if rows:
        text += f" The first {ROWS_UP_TO} of {len(rows)} rows." if len(rows) > ROWS_UP_TO else ""
        shown = tuple(tuple(row.values()) for row in rows[:ROWS_UP_TO])
        table = Table(tuple(map(clean, rows[0])), shown, left, caption)
        yield Block(title, (text.strip(),) if text else (), tables=(table,), folded=folded)


def _alone(group: Group) -> Block:
    units = (("TFLOP/s", tflops), ("GB/s", gbps))
    known = [(unit, of) for unit, of in units if any(of(row.cell, row.ns(row.base)) for row in group.rows)][:1]
    rows = [
        (*line.values, line.before, line.interval, *(rate(of(line.row.cell, line.row.ns(line.row.base))) for _, of in known),
         size(value(line.row.base, "peak_mem_bytes")))
        for line in group.lines
    ]  # fmt: skip
    header = (*group.columns, "time", "95 % interval", *(unit for unit, _ in known), "peak memory")
    caption = "Time of a call with its 95 % interval over epochs"
    return Block(tables=(Table(header, tuple(rows), len(group.columns), caption),))


def _phases(group: Group) -> Iterator[Block]:
    seen = [
        ((line.case, side) if group.target else line.values, Breakdown(line.row.cell, observed))
        for line in group.lines
        for side in group.sides
        if (observed := line.row.of(side)) and observed.phases
    ]
    if seen:
        names = [*dict.fromkeys(name for _, parts in seen for name, ns in parts.all.items() if ns is not None)]
        times = [(*map(parts.all.get, names), parts.residual, parts.total) for _, parts in seen]
        texts = [["–" if ns is None else f"{ns / 1e6:.4f}" for ns in of] for of in times]
        first = ("case", "side") if group.target else group.columns
        header = (*first, *names, "residual", "total")
        rows = [dict(zip(header, (*which, *of), strict=True)) for (which, _), of in zip(seen, texts, strict=True)]
        title = "Phases of a call" if group.target else ""
        yield from _block(title, rows, len(first), caption=_PHASES, folded=bool(group.target))


def _peers(group: Group) -> Iterator[Block]:
    judged = {row.cell.id: row.metric for row in group.rows}
    rows = []
    for cell, peer, seen in group.peers:
        if seen.status != "build_failed":  # a build belongs to the base's package, not to the library
            name = judged.get(cell.id, "wall")
            rows.append({
                "case": label(cell, group.axes), "peer": clean(peer.peer), "time": time_text(seen, name),
                "95 % interval": own_interval(seen, name), "TFLOP/s": rate(tflops(cell, value(seen, name))),
            })  # fmt: skip
    yield from _block("", rows, 2, caption=_PEERS)


def _pairs(group: Group) -> Iterator[Block]:
    cells = {cell.id: cell for cell in group.run.cells}
    failed = ("both", "unsupported", "missing")  # the arm's own row gives the reason
    rows = [
        {"verdict": f"{sentences.MARKS[one.verdict]} {one.verdict}", "case": label(cells[one.cell], group.axes),
         "first": arm_name(group.run, one.from_), "second": arm_name(group.run, one.to), "change of time": sentences.change_text(one),
         "95 % interval": sentences.reach(one), "note": sentences.note(one)}
        for one in group.others.values() if not any(code.endswith(failed) for code in one.reasons)
    ]  # fmt: skip
    title = f"{plural(len(rows), 'comparison')} with peers and between variants"
    yield from _block(title, rows, 4, caption=_PAIRS, folded=bool(group.target))


def number(given: Value | None) -> float | None:
    """Return a value as a float if the value is a number, else None."""
    return None if given is None or isinstance(given, bool | str) else float(str(given))  # inf for 10**400


def order(given: Value) -> tuple[int, float, str]:
    known = number(given)
    return (1, 0.0, str(given)) if known is None else (0, known, "")


def _by_cell(group: Group) -> Iterator[tuple[Row, str, Steps]]:
    """Yield for each cell and side: the cell's first row, the side's id, and the side's arms by variant."""
    cells: dict[str, list[Row]] = {}
    for row in sorted(group.rows, key=lambda row: tuple(map(order, row.cell.params.values()))):
        cells.setdefault(row.cell.id, []).append(row)
    for rows in cells.values():
        for side in group.sides:
            yield rows[0], side, {row.variant: row.of(side) for row in rows}


def _steps(group: Group) -> tuple[str, ...]:
    """Return the variants to show: first the workload's ladder (optimisation steps in order), then the others."""
    known = dict.fromkeys(row.variant for row in group.rows if row.variant)
    ladder = group.workload.ladder
    timed = {row.variant for row in group.rows for side in group.sides if row.ns(row.of(side))}
    return (*ladder, *(n for n in known if n in timed and n not in ladder)) if ladder else tuple(known)


def _case(group: Group, row: Row, without: str = "") -> str:
    """Name the row's cell by the axes that differ between cells, without the axis `without`."""
    axes = [axis for axis in group.axes if axis != without]
    return label(row.cell, axes) if axes else clean(group.workload.name)


class Gain:
    """The speed-up of arm `after` over arm `before` in one cell, by a metric. `ratio` is 2 for half the time, None if a
    time is missing. `verdict` is "" if the run did not compare the arms."""

    def __init__(self, group: Group, before: Observation | None, after: Observation | None, metric: str) -> None:
        one, two = value(before, metric), value(after, metric)
        judged = group.others.get((after.cell, before.arm, after.arm)) if before and after else None
        self.ratio = one / two if one and two else None
        self.low = self.high = None
        self.verdict = ""
        if self.ratio and judged and judged.pct is not None:
            changes, self.verdict = (judged.pct, judged.high_pct, judged.low_pct), judged.verdict
            self.ratio, self.low, self.high = (None if pct is None else 1 / (1 + pct / 100) for pct in changes)

    def __str__(self) -> str:
        if self.ratio is None or not self.verdict:
            return "-" if self.ratio is None else f"{self.ratio:.2f} ×"
        around = f"{self.low:.3f} to {self.high:.3f}" if self.low and self.high else sentences.NO_INTERVAL
        return f"{self.ratio:.3f} × ({around}), {self.verdict}"


def peers(group: Group) -> dict[str, dict[str, Observation]]:
    """Return {peer's name: {cell id: the peer's observation}}."""
    found: dict[str, dict[str, Observation]] = {}
    for cell, arm, seen in group.peers:
        found.setdefault(arm.peer, {})[cell.id] = seen
    return found


def efficiency(group: Group, side: str) -> dict[tuple[str, str], float]:
    """Return {(cell id, variant): scaling efficiency}: the growth of TFLOP/s divided by the growth of the scaled axis.
    Both growths are measured from the smallest value of this axis, with the other axes equal."""
    axis = group.workload.scaled
    series: dict[tuple[str, ...], list[tuple[float, float, tuple[str, str]]]] = {}
    for row in group.rows if axis in group.axes else ():
        at, speed = number(row.cell.params.get(axis)), tflops(row.cell, row.ns(row.of(side)))
        if at and speed:
            rest = (row.variant, *(str(row.cell.params.get(name)) for name in group.axes if name != axis))
            series.setdefault(rest, []).append((at, speed, (row.cell.id, row.variant)))
    found: dict[tuple[str, str], float] = {}
    for points in map(sorted, series.values()):
        first, slowest, _ = points[0]
        found |= {key: (speed / slowest) / (at / first) for at, speed, key in points}
    return found


def _ladder(group: Group) -> Iterator[Block]:
    steps = group.workload.ladder
    if not steps:
        return
    over = {name: seen for name, seen in peers(group).items() if any(one.metrics for one in seen.values())}
    scaled = {side: efficiency(group, side) for side in group.sides}
    axis = clean(group.workload.scaled) if any(scaled.values()) else ""
    rows = []
    for row, side, seen in _by_cell(group):
        for place, name in enumerate(_steps(group)):
            now, ns, known = seen.get(name), row.ns(seen.get(name)), row.cell.bytes
            before = seen.get(steps[place - 1]) if 0 < place < len(steps) else None
            line = {"case": _case(group, row), "side": side, "step": clean(name), "time": time_text(now, row.metric),
                    "TFLOP/s": rate(tflops(row.cell, ns))}  # fmt: skip
            if any(row.cell.bytes for row in group.rows):
                line |= {
                    "GB/s": rate(gbps(row.cell, ns)),
                    "MB": NOT_RECORDED if known is None else f"{known / 1e6:.3f}",
                }
            if axis:
                share = scaled[side].get((row.cell.id, name))
                line["scaling efficiency"] = "-" if share is None else f"{share:.3f}"
            line["of the baseline"] = str(Gain(group, seen.get(steps[0]), now, row.metric))
            if len(steps) > 2:  # of two steps the baseline is the one before
                line["of the step before"] = str(Gain(group, before, now, row.metric))
            for peer, by_cell in over.items():
                line[f"of {peer}"] = str(Gain(group, by_cell.get(row.cell.id), now, row.metric))
            rows.append(line)
    text = f"Steps in order; the baseline is {clean(steps[0])}. A speed-up with an interval is of neighbouring turns and has "
    text += "a verdict by the rules for sides; one without is a ratio of the times shown."
    if axis:
        text += f" Scaling efficiency is the growth of a step's TFLOP/s since its smallest {axis}, over the growth of {axis}."
    yield from _block("Ladder", rows, 3, text)


def _scaling(group: Group) -> Iterator[Block]:
    axis = group.workload.scaled
    if axis not in group.axes:
        return
    names = _steps(group)
    series: dict[tuple[str, str], list[tuple[Row, Steps, float | None]]] = {}  # rows with the ns of the fastest arm
    for row, side, seen in _by_cell(group):
        if axis in row.cell.params:  # not in every cell of a foreign run.json
            series.setdefault((_case(group, row, axis), side), []).append((row, seen, fastest(row, seen)[0]))
    rated = any(tflops(row.cell, best) for points in series.values() for row, _, best in points)
    rows = []
    for (case, side), points in series.items():
        points.sort(key=lambda point: order(point[0].cell.params[axis]))
        most = max((speed for row, _, best in points if (speed := tflops(row.cell, best))), default=None)
        for row, seen, best in points:
            speed = tflops(row.cell, best)
            texts = {"case": case, "side": side, axis: clean(row.cell.params[axis])}
            texts |= {name or "time": time_text(seen.get(name), row.metric) for name in names or ("",)}
            texts |= {"best": clean(fastest(row, seen)[1]) or NOT_RECORDED} if names else {}
            share = f"{100 * speed / most:.0f} %" if speed and most else NOT_RECORDED
            rows.append(texts | {"TFLOP/s": rate(speed), "efficiency": share})
    text = "Best is the fastest by its own time. " if names else ""
    text += "Efficiency is the TFLOP/s at a value as a share of the most in its series." if rated else ""
    yield from _block(f"Scaling over {clean(axis)}", rows, 3, text)


def fastest(row: Row, seen: Steps) -> tuple[float | None, str]:
    """Return (ns, variant) of the fastest arm whose output is right; (None, "") if there is none."""
    right = [(ns, name) for name, one in seen.items() if one and one.status != "wrong" and (ns := row.ns(one))]
    return min(right, default=(None, ""))


def _sweep(group: Group) -> Iterator[Block]:
    declared = group.workload.sweep
    if declared is None:
        return
    rows = []
    for side in group.sides:
        for row, density, speedup in _densities(group, declared, side):
            band = next((b.speedup for b in declared.bands if b.density[0] <= density <= b.density[1]), None)
            placed = "-"
            if band and speedup is not None:
                placed = "below" if speedup < band[0] else "above" if speedup > band[1] else "inside"
            rows.append({
                "case": group.name(row), "side": side, "density": f"{density:.3f}", "time": time_text(row.of(side), row.metric),
                "speed-up": NOT_RECORDED if speedup is None else f"{speedup:.2f} ×",
                "expected": f"{band[0]:g} to {band[1]:g} ×" if band else "-", "it is": placed,
            })  # fmt: skip
    against = clean(declared.against)
    what = f"the variant {against} of the same case" if against else "the densest case that agrees in all other axes"
    text = f"Speed-up against {what}, from the times of the same side; bands are what the workload expects."
    yield from _block("Density sweep", rows, 2, text)


def _densities(group: Group, declared: Sweep, side: str) -> Iterator[tuple[Row, float, float | None]]:
    """Yield (row, density, speed-up); the speed-up is over the densest row, or over the variant `declared.against`."""

    def series(row: Row) -> tuple[str, ...]:  # all axes but the sweep's, and the variant
        return (*(f"{k}={v}" for k, v in row.cell.params.items() if k not in declared.axes), row.variant)

    def counts_from(row: Row) -> tuple[str, ...]:
        return (row.cell.id,) if declared.against else series(row)

    dense, name = [], declared.density
    for row in group.rows:
        seen = row.of(side)
        known = seen.facts.get(name) if seen else None
        if (at := number(row.cell.params.get(name) if known is None else known)) is not None:
            dense.append((row, at))
    dense.sort(key=lambda pair: (series(pair[0]), pair[1]))
    first = {counts_from(row): row for row, _ in dense  # of several rows the densest
             if (row.variant == declared.against if declared.against else row.ns(row.of(side)))}  # fmt: skip
    for row, at in dense:
        if not declared.against or row.variant != declared.against:
            start, ns = first.get(counts_from(row)), row.ns(row.of(side))
            before = start.ns(start.of(side)) if start else None
            yield row, at, before / ns if before and ns else None


_CONFIGURED = {
    "autotuned": ("Autotuning", "The configuration that each side's kernel ran with."),
    "configuration": (
        "Configuration",
        "The entry of the package's platform table for this device, as each side ran it.",
    ),
}


def _configurations(group: Group) -> Iterator[Block]:
    for fact, (title, text) in _CONFIGURED.items():
        rows = []
        for row in group.rows:
            known = {side: seen.facts.get(fact) if (seen := row.of(side)) else None for side in group.sides}
            if any(one is not None for one in known.values()):
                texts = {side: NOT_RECORDED if one is None else sentences.fact(one) for side, one in known.items()}
                same = "-" if None in known.values() else "same" if len(set(known.values())) == 1 else "differs"
                rows.append({"case": group.name(row), **texts, **({"sides": same} if group.target else {})})
        yield from _block(title, rows, 1, text)
