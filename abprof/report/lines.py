"""A row's texts, worded once for the terminal, Markdown and HTML."""

from __future__ import annotations

from dataclasses import dataclass

from abprof.records import Comparison, Observation, Run
from abprof.report import numbers, words
from abprof.report.view import Group, Row, arm, label

CUT = 80  # characters of a reason inside a table: it stands in full below


@dataclass(frozen=True)
class Line:
    """What is shown of one row. In a run of one branch `after` and `change` are empty."""

    row: Row
    verdict: str
    mark: str
    case: str
    values: tuple[str, ...]  # of the axes that differ, in the group's order
    before: str
    after: str
    change: str  # of time: "2.1 % slower", or why there is no number
    interval: str  # of the change; of the time itself in a run of one branch
    rate: str
    memory: str
    note: str  # what qualifies the verdict

    @property
    def folded(self) -> bool:
        """Rows nobody needs to act on, which are folded away: the same, and what neither side supports."""
        return self.row.verdict == "same" or bool(self.row.apart)


@dataclass(frozen=True)
class TextTable:
    """A table as texts. The first `left` columns say which row it is, the others are figures."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int
    never: tuple[str, ...] = ()  # declared phases that no row recorded


def lines(group: Group) -> list[Line]:
    """The group's rows as texts, in the group's order."""
    return [_line(group, row) for row in group.rows]


def alone_table(group: Group) -> TextTable:
    """One branch's times with their intervals, the rate by which they are judged, and memory."""
    every = lines(group)
    rates = next((pair for pair in _rates(every) if any(text != words.NOT_RECORDED for text in pair[1])), ("", []))
    header = (*axis_names(group), "time", "95 % interval", *([rates[0]] if rates[0] else []), "peak memory")
    rows = [
        (*line.values, line.before, line.interval, *rates[1][i : i + 1], line.memory) for i, line in enumerate(every)
    ]
    return TextTable(header, tuple(rows), len(axis_names(group)))


def axis_names(group: Group) -> tuple[str, ...]:
    """Headings of `Line.values`; none where there is one cell."""
    return (*map(words.clean, group.axes), *(["variant"] if group.variants else []))


def phase_table(group: Group) -> TextTable:
    """Phases in ms a call, residual and total last: a row per case and side that has any.

    What no row recorded is named apart instead of filling columns.
    """
    seen = [
        ((line.case, side) if group.target else line.values, numbers.breakdown(line.row.cell, observed))
        for line in lines(group)
        for side, observed in (("base", line.row.base), (group.target.id if group.target else "", line.row.target))
        if observed and observed.phases
    ]
    names = list(dict.fromkeys(name for _, parts in seen for name in parts.all))
    never = [name for name in names if all(parts.all.get(name) is None for _, parts in seen)]
    kept = [name for name in names if name not in never]
    rows = [
        (*which, *(_ms(parts.all.get(name)) for name in kept), _ms(parts.residual), _ms(parts.total))
        for which, parts in seen
    ]
    first = ("case", "side") if group.target else axis_names(group)
    return TextTable((*first, *kept, "residual", "total"), tuple(rows), len(first), tuple(never))


def peer_table(group: Group) -> TextTable:
    """Each library implementation measured beside, with its time's interval."""
    found = []
    for cell, peer, seen in group.peers:
        if seen.status == "build_failed":
            continue  # that is the base's package, and says nothing of the library
        metric = next((row.metric for row in group.rows if row.cell.id == cell.id), "wall")
        rate = words.rate(numbers.tflops(cell, numbers.time_ns(seen, metric)))
        case = label(cell, group.axes)
        found.append((case, words.clean(peer.peer), time_text(seen, metric), own_interval(seen, metric), rate))
    return TextTable(("case", "peer", "time", "95 % interval", "TFLOP/s"), tuple(found), 2)


OTHERS_WAY = "Timed as others do: one process and one reading a side, so there is no interval and no verdict"


def sequential_table(run: Run, group: Group) -> TextTable:
    """What other ways of timing say of the same cases (abprof/measure/sequential.py): base, target, change of time."""
    rows = []
    for name in numbers.sequential(run):
        for row in group.rows:
            before, after = (numbers.time_ns(seen, name) for seen in (row.base, row.target))
            if before is None and after is None:
                continue
            change = words.signed(100 * (after / before - 1)) if before and after else ""
            times = (
                (words.duration(before), words.duration(after), change) if group.target else (words.duration(before),)
            )
            rows.append((group.name(row), name.removesuffix("_latency"), *times))
    sides = ("base", group.target.id, "change of time") if group.target else ("time",)
    return TextTable(("case", "protocol", *sides), tuple(rows), 2)


def sequential_rules(run: Run) -> str:
    """How each of these ways times: `seed: 100 warm-up calls, ...`."""
    found = {name: seen.metrics[name].protocol for name in numbers.sequential(run) for seen in run.observations
             if name in seen.metrics}  # fmt: skip
    return "; ".join(f"{name.removesuffix('_latency')}: {words.clean(rule)}" for name, rule in found.items())


def arm_name(run: Run, id: str) -> str:
    """An arm as a person names it: the branch's label (with the side where two have the same), with the variant; a peer
    by its own name."""
    one = arm(run, id)
    if one.peer:
        return f"peer {words.clean(one.peer)}"
    side = next((side for side in run.sides if side.id == one.side), None)
    name = words.clean(side.label if side else one.side, 60)
    if side and sum(other.label == side.label for other in run.sides) > 1:
        name += f" ({side.id})"
    return name + (f" {words.clean(one.variant)}" if one.variant else "")


def time_text(seen: Observation | None, metric: str) -> str:
    """The time, or what became of the arm; a time of a wrong output says so."""
    if seen is None:
        return "not measured"
    ns = numbers.time_ns(seen, metric)
    if ns is None:
        return {"ok": words.NOT_RECORDED, "identical": "identical code"}.get(seen.status, words.status(seen.status))
    return f"{words.duration(ns)}{', wrong output' if seen.status == 'wrong' else ''}"


def own_interval(seen: Observation | None, metric: str) -> str:
    """The interval of an arm's own time; why there is no time."""
    timed = numbers.metric(seen, metric)
    if timed is None:
        return words.clean(seen.reason, CUT) if seen and seen.status != "build_failed" else ""  # told once, below
    if timed.low is None or timed.high is None:
        return words.NO_INTERVAL
    return words.span(timed.low, timed.high)


def change_text(comparison: Comparison) -> str:
    """`2.1 % slower`, to stand beside its interval; without a number, why."""
    if comparison.pct is None:
        return words.reasons(comparison) or words.NOT_RECORDED
    return words.signed(comparison.pct, words.places(comparison))


def _line(group: Group, row: Row) -> Line:
    judged = row.comparison
    values = tuple(words.clean(row.cell.params.get(axis, "-")) for axis in group.axes)
    verdict = row.apart or row.verdict or ("" if group.target is None else "not judged")
    return Line(
        row=row,
        verdict=verdict,
        mark="" if row.apart or not row.verdict else words.MARKS[row.verdict],
        case=group.name(row),
        values=(*values, words.clean(row.variant)) if group.variants else values,
        before=time_text(row.base, row.metric),
        after=time_text(row.target, row.metric) if group.target else "",
        change=change_text(judged) if judged else "",
        interval=words.bounds(judged) if judged else own_interval(row.base, row.metric),
        rate=_pair(group, [words.rate(numbers.tflops(row.cell, numbers.time_ns(s, row.metric))) for s in _arms(row)]),
        memory=_pair(group, [words.size(numbers.time_ns(s, "peak_mem_bytes")) for s in _arms(row)]),
        note=note(judged),
    )


def _rates(every: list[Line]) -> list[tuple[str, list[str]]]:
    """(unit, a text per row) of each rate that a workload's work can give, the better known first."""
    pairs = [(line.row.cell, numbers.time_ns(line.row.base, line.row.metric)) for line in every]
    return [
        ("TFLOP/s", [words.rate(numbers.tflops(*pair)) for pair in pairs]),
        ("GB/s", [words.rate(numbers.gbps(*pair)) for pair in pairs]),
    ]


def _arms(row: Row) -> tuple[Observation | None, Observation | None]:
    return row.base, row.target


def _pair(group: Group, texts: list[str]) -> str:
    """`613.2 → 653.7`; once where both say the same, where there is one side, or where one side has none."""
    before, after = texts
    if group.target is None or before == after:
        return before
    if words.NOT_RECORDED in texts:
        return f"{before} (base only)" if after == words.NOT_RECORDED else f"{after} ({group.target.id} only)"
    return f"{before} → {after}"


def note(judged: Comparison | None) -> str:
    """What the verdict's brackets say, where the change's column does not say it already."""
    if judged is None:
        return ""
    said = words.verdict(judged).removeprefix(judged.verdict).strip()[1:-1]
    return "" if said == change_text(judged) else said


def _ms(ns: float | None) -> str:
    return words.NOT_RECORDED if ns is None else f"{ns / 1e6:.4f}"
