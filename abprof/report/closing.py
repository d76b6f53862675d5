"""The end of output.txt: the branch-profile scripts' block per case, then what is broken or undecided, and last of
all their warnings, for both directions, each with our verdict and interval.

Only cells that are certainly slower or faster are warned about: that is what a bare threshold on two means cannot do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from abprof.records import Cell, Observation, Run, Side, Workload
from abprof.records.visible import visible
from abprof.report import lines, numbers, seed_format, words
from abprof.report.failures import SHORT, Failed, advice_text, all_failures, failing, failures
from abprof.report.seed_format import RULE
from abprof.report.view import Group, Row, groups
from abprof.verdict.guarantees import weaker
from abprof.verdict.headline import base_not_ok, undecided_row

_TITLES = {"fwd": "FORWARD PERFORMANCE", "bwd": "BACKWARD PERFORMANCE"}
_LISTS = {
    "broken": "❌ Broken: no speed is reported for these cases:",
    "undecided": "❔ Undecided:",
    "not ok on the base": "❔ Not ok on the base:",
    "without a verdict": "❔ Without a verdict:",
}
_WIDE = "=" * 80
_MARKER = "======== abprof: results of run {id} ========"


def closing(run: Run) -> str:
    """Cases, then warnings, as one text that ends with a newline."""
    return "".join(_lines(run))


def _lines(run: Run) -> Iterator[str]:
    for part in ([_marker(run)], cases(run), sequential(run), findings(run), fluctuations(run)):
        yield from (f"{visible(line)}\n" for line in part)  # whatever a phase or a variant is called


def _marker(run: Run) -> str:
    return visible(_MARKER.format(id=run.id))


def with_closing(log: str, run: Run) -> Iterator[str]:
    """The log with this closing part, in pieces: a former one of the same run is replaced, so that a report can be made again."""
    body, found, _ = log.rpartition(f"\n{_marker(run)}\n")
    kept = body if found else "" if log.startswith(_marker(run)) else log.rstrip("\n")
    if kept:
        yield f"{kept}\n"
    yield from _lines(run)


# ---------------------------------------------------------------- cases


def cases(run: Run) -> Iterator[str]:
    """The scripts' block for every cell and side, one side after the other as they printed it."""
    every = groups(run)
    order = {cell.id: place for place, cell in enumerate(run.cells)}
    told = {seen: one for one in all_failures(run, every) if one.several for seen in one.seen}
    for side in run.sides:
        yield from ("", _WIDE, f"{side.id}: {words.clean(side.label)} @ {side.commit[:10]}", _WIDE)
        target = next((s.id for s in run.sides[1:]), None) if side.id == "base" else side.id
        for group in every:
            if (group.target.id if group.target else None) == target:
                for row in sorted(group.rows, key=lambda row: order[row.cell.id]):
                    yield from _case(group.workload, row, side, told)


def _case(workload: Workload, row: Row, side: Side, told: Mapping[tuple[str, str], Failed]) -> Iterator[str]:
    seen = row.base if side.id == "base" else row.target
    config, ns = case(row, workload), numbers.time_ns(seen, row.metric)
    if ns is not None:
        config.pop("direction", None)  # as there, where the block's title says it
    yield from ("", f"Testing Config: {config}")
    if seen is None or ns is None:
        shared = told.get((seen.cell, seen.arm)) if seen else None
        yield f"    not measured: {_shared(shared) if shared else _why(seen)}"
        return
    yield from (RULE, _TITLES.get(str(row.cell.params.get("direction")), "PERFORMANCE"), RULE)
    if seen.status == "wrong":
        yield "WRONG OUTPUT: these times say nothing about speed"
    yield f"{'Total Runtime (ms)':<20} | {ns / 1e6:.4f}"
    rate = numbers.tflops(row.cell, ns)
    if rate is not None:
        yield f"{'Achieved TFLOP/s':<20} | {rate:.4f}"
    yield "-" * 60
    yield "Internal Timing Breakdown:"
    yield from _breakdown(row.cell, seen)
    yield RULE


def _breakdown(cell: Cell, seen: Observation) -> Iterator[str]:
    parts = numbers.breakdown(cell, seen)
    if parts.total is None:
        yield f"  {words.NOT_RECORDED}"
        return
    here = str(cell.params.get("direction", ""))
    named = {f"{here}_{name}" if here else name: ns for name, ns in parts.phases.items()}
    for name, ns in {**named, **parts.others, "residual": parts.residual}.items():
        yield f"  - {name:<17} | {f'{ns / 1e6:.4f} ms' if ns is not None else words.NOT_RECORDED}"
    yield f"  (from a pass of their own, which took {parts.total / 1e6:.4f} ms a call)"


def case(row: Row, workload: Workload) -> dict[str, object]:
    """What the scripts print as the case: their key columns, every axis for other workloads; the variant if any."""
    columns = seed_format.compare_keys(workload.seed_columns) if workload.seed_columns else tuple(row.cell.params)
    named: dict[str, object] = {name: row.cell.params[name] for name in columns if name in row.cell.params}
    shown = {name: words.clean(value) if isinstance(value, str) else value for name, value in named.items()}
    return shown | ({"variant": row.variant} if row.variant else {})


def _why(seen: Observation | None) -> str:
    if seen is None:
        return "the run ended before"
    return ": ".join(filter(None, (words.status(seen.status), words.clean(seen.reason, SHORT))))


def _shared(one: Failed) -> str:
    what = f"package {one.package}" if one.package else f"as in {words.plural(len(one.cases) - 1, 'other case')}"
    return f"{one.status} ({what}; see the end)"


def sequential(run: Run) -> Iterator[str]:
    """What other ways of timing say of the same cases, a line each."""
    tables = [(group, lines.sequential_table(run, group)) for group in groups(run)]
    if any(table.rows for _, table in tables):
        yield from ("", f"{lines.OTHERS_WAY} ({lines.sequential_rules(run)}):")
    for group, table in tables:
        for name, protocol, *figures in table.rows:
            said = ", ".join(f"{head} {text}" for head, text in zip(table.header[2:], figures, strict=True) if text)
            yield f"  - {words.clean(group.workload.name)} {name} by {protocol}: {said}"


# ---------------------------------------------------------------- warnings


def findings(run: Run) -> Iterator[str]:
    """The run's sentence and own warnings, then its broken and its undecided cells."""
    yield ""
    yield words.clean(run.header.sentence, 1000) if run.header else "Nothing was judged."
    yield from weaker(run)
    if run.status != "complete":
        yield f"This run is {run.status}: what is missing was not measured."
    for advice in run.warnings:
        text = f"⚠️  {advice_text(run, advice)}"
        yield f"{text} ({words.clean(advice.advice, 1000)})" if advice.advice else text
    for side in run.sides[1:]:
        rows = _rows(run, side)
        yield from _named(run, side)
        for standing, pairs in _unanswered(rows).items():
            yield from _listed(run, _LISTS[standing], pairs)
        apart = sum(bool(row.apart) for _, row in rows)
        if apart:
            yield from ("", f"{words.plural(apart, 'case')} could run on neither side (unsupported or missing).")
    if len(run.sides) == 1:
        alone = [(group, row) for group in groups(run) for row in group.rows if failing(row)]
        yield from _listed(run, "❌ Not measured:", alone)


def fluctuations(run: Run) -> Iterator[str]:
    """The scripts' last words, per target: what changed beyond its threshold, or that nothing did."""
    for side in run.sides[1:]:
        rows = _rows(run, side)
        left = _unanswered(rows)
        changed = [pair for pair in rows if pair[1].verdict in ("slower", "faster")]
        yield from _named(run, side)
        if changed:
            yield from seed_format.warning_block([_alert(*pair) for pair in changed], _thresholds(run, changed))
        elif any(row.verdict in ("same", "slight") for _, row in rows) and not any(left.values()):
            yield from seed_format.warning_block([], _thresholds(run, rows))
        else:
            limit = seed_format.limit(_thresholds(run, rows)).replace("%", " %")
            undone = ", ".join(f"{len(pairs)} {what}" for what, pairs in left.items() if pairs) or "none was measured"
            yield from ("", f"No case is certainly slower or faster by {limit}: {undone}.")


def _thresholds(run: Run, rows: Iterable[tuple[Group, Row]]) -> list[float]:
    """Each row's own, or the run's where there is no row."""
    return [run.options.threshold_of(row.cell.id) for _, row in rows] or [run.options.threshold]


def _rows(run: Run, side: Side) -> list[tuple[Group, Row]]:
    return [(group, row) for group in groups(run) if group.target == side for row in group.rows]


def _standing(row: Row) -> str:
    """Why this row has no verdict on its speed, by the header's own rules; "" for one that has, or that neither side
    supports."""
    if row.verdict == "broken":
        return "broken"
    if row.comparison and undecided_row(row.comparison):
        return "undecided"
    if row.comparison and base_not_ok(row.comparison):
        return "not ok on the base"
    return "without a verdict" if row.verdict in ("unclear", None) and not row.apart else ""


def _unanswered(rows: Iterable[tuple[Group, Row]]) -> dict[str, list[tuple[Group, Row]]]:
    """Standing -> the rows that have it, for each standing of _LISTS."""
    found: dict[str, list[tuple[Group, Row]]] = {standing: [] for standing in _LISTS}
    for pair in rows:
        standing = _standing(pair[1])
        if standing:
            found[standing].append(pair)
    return found


def _named(run: Run, side: Side) -> Iterator[str]:
    if len(run.sides) > 2:
        yield from ("", f"{side.id}: {words.clean(side.label)}")


def _listed(run: Run, title: str, rows: Sequence[tuple[Group, Row]]) -> Iterator[str]:
    """What several cases share is told once, for all of them; a case of its own has its own lines."""
    if not rows:
        return
    yield from ("", title)
    shared = [one for one in failures(run, rows) if one.several]
    yield from (f"  - {one.line()}" for one in shared)
    told = {seen for one in shared for seen in one.seen}
    for group, row in rows:
        alone = [seen for seen in failing(row) if (seen.cell, seen.arm) not in told]
        if alone or not failing(row):
            yield f"  - Case: {case(row, group.workload)}"
            yield f"    {_verdict(row)}"
            yield from (f"    {seen.arm}: {_why(seen)}" for seen in alone)


def _alert(group: Group, row: Row) -> list[str]:
    """The scripts' four lines and ours. Without a FLOP count they compare milliseconds instead."""
    times = [numbers.time_ns(seen, row.metric) for seen in (row.base, row.target)]
    pairs = (("tflops_per_sec", [numbers.tflops(row.cell, ns) for ns in times]),
             ("latency_ms", [ns / 1e6 if ns else None for ns in times]))  # fmt: skip
    for column, (left, right) in pairs:
        if left is not None and right is not None:
            return [*seed_format.alert(case(row, group.workload), left, right, column), f"    Verdict: {_verdict(row)}"]
    return [f"  - Case: {case(row, group.workload)}", f"    Verdict: {_verdict(row)}"]


def _verdict(row: Row) -> str:
    if row.comparison is None:
        return "not judged"
    said = words.verdict(row.comparison)
    return said if row.comparison.pct is None else f"{said}; time {words.change(row.comparison)}"
