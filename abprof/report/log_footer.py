"""The end of output.txt: the branch-profile scripts' block per case, then what is broken or undecided, and last of all
their warnings, for both directions, each with our verdict and interval.

Only cells that are certainly slower or faster are warned about: that is what a bare threshold on two means cannot do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from abprof.records import Observation, Run, Side
from abprof.records.visible import visible
from abprof.report import rows, sentences, suite_csv
from abprof.report.rows import Failed, Group, Row, failing
from abprof.report.sentences import weaker
from abprof.report.suite_csv import RULE
from abprof.report.text import NOT_RECORDED, clean, plural
from abprof.verdict.headline import base_not_ok, undecided_row

_TITLES = {"fwd": "FORWARD PERFORMANCE", "bwd": "BACKWARD PERFORMANCE"}
_LISTS = {
    "broken": "❌ Broken: no speed is reported for these cases:",
    "undecided": "❔ Undecided:",
    "not ok on the base": "❔ Not ok on the base:",
    "without a verdict": "❔ Without a verdict:",
}
_WIDE = "=" * 80
Found = list[tuple[Group, Row]]


def with_footer(log: str, run: Run, groups: Sequence[Group]) -> Iterator[str]:
    """The log with its footer, in pieces: a former one of the same run is replaced, so that a report can be made again."""
    marker = visible(f"======== abprof: results of run {run.id} ========")
    body, found, _ = log.rpartition(f"\n{marker}\n")
    kept = body if found else "" if log.startswith(marker) else log.rstrip("\n")
    if kept:
        yield f"{kept}\n"
    yield f"{marker}\n"
    for part in (_cases(run, groups), _findings(run, groups), _fluctuations(run, groups)):
        yield from (f"{visible(line)}\n" for line in part)  # whatever a phase or a variant is called


def _cases(run: Run, groups: Sequence[Group]) -> Iterator[str]:
    """The scripts' block for every cell and side, one side after the other as they printed it."""
    order = {cell.id: place for place, cell in enumerate(run.cells)}
    shared = {seen: one for one in rows.all_failures(run, groups) if one.several for seen in one.seen}
    for side in run.sides:
        yield from ("", _WIDE, f"{side.id}: {clean(side.label)} @ {side.commit[:10]}", _WIDE)
        target = next((s.id for s in run.sides[1:]), None) if side.id == "base" else side.id
        for group in groups:
            if (group.target.id if group.target else None) == target:
                for row in sorted(group.rows, key=lambda row: order[row.cell.id]):
                    yield from _case_block(group, row, row.base if side.id == "base" else row.target, shared)


def _case_block(
    group: Group, row: Row, seen: Observation | None, shared: Mapping[tuple[str, str], Failed]
) -> Iterator[str]:
    config, ns = _case(group, row), row.ns(seen)
    if ns is not None:
        config.pop("direction", None)  # as there, where the block's title says it
    yield from ("", f"Testing Config: {config}")
    if seen is None or ns is None:
        one = shared.get((seen.cell, seen.arm)) if seen else None
        what = one and (
            f"package {one.package}" if one.package else f"as in {plural(len(one.cases) - 1, 'other case')}"
        )
        yield f"    not measured: {f'{one.status} ({what}; see the end)' if one else _why(seen)}"
        return
    direction = str(row.cell.params.get("direction", ""))
    yield from (RULE, _TITLES.get(direction, "PERFORMANCE"), RULE)
    if seen.status == "wrong":
        yield "WRONG OUTPUT: these times say nothing about speed"
    yield f"{'Total Runtime (ms)':<20} | {ns / 1e6:.4f}"
    rate = rows.tflops(row.cell, ns)
    if rate is not None:
        yield f"{'Achieved TFLOP/s':<20} | {rate:.4f}"
    yield "-" * 60
    yield "Internal Timing Breakdown:"
    parts = rows.breakdown(row.cell, seen)
    if parts.total is None:
        yield f"  {NOT_RECORDED}"
    else:
        named = {f"{direction}_{name}" if direction else name: time for name, time in parts.phases.items()}
        for name, time in {**named, **parts.others, "residual": parts.residual}.items():
            yield f"  - {name:<17} | {f'{time / 1e6:.4f} ms' if time is not None else NOT_RECORDED}"
        yield f"  (from a profiled pass, which took {parts.total / 1e6:.4f} ms a call)"
    yield RULE


def _case(group: Group, row: Row) -> dict[str, object]:
    """What the scripts print as the case: their key columns, every axis for other workloads; the variant if any."""
    columns = group.workload.seed_columns
    names = suite_csv.compare_keys(columns) if columns else tuple(row.cell.params)
    shown: dict[str, object] = {name: row.cell.params[name] for name in names if name in row.cell.params}
    shown = {name: clean(value) if isinstance(value, str) else value for name, value in shown.items()}
    return shown | ({"variant": row.variant} if row.variant else {})


def _why(seen: Observation | None) -> str:
    if seen is None:
        return "the run ended before"
    return ": ".join(filter(None, (sentences.status(seen.status), clean(seen.reason, 160))))


# ---------------------------------------------------------------- findings and warnings


def _findings(run: Run, groups: Sequence[Group]) -> Iterator[str]:
    """The run's headline and warnings, then its broken and its undecided cells."""
    yield from ("", sentences.headline(run), *weaker(run))
    if text := sentences.unfinished(run):
        yield text
    yield from (f"⚠️  {sentences.warning(text, advice)}" for text, advice, _ in rows.warnings(run, groups))
    for side in run.sides[1:]:
        found = _of(groups, side)
        yield from _named(run, side)
        for standing, pairs in _unanswered(found).items():
            yield from _listed(run, _LISTS[standing], pairs)
        if apart := sum(bool(row.apart) for _, row in found):
            yield from ("", f"{plural(apart, 'case')} could run on neither side (unsupported or missing).")
    if len(run.sides) == 1:
        alone = [(group, row) for group in groups for row in group.rows if failing(row)]
        yield from _listed(run, "❌ Not measured:", alone)


def _fluctuations(run: Run, groups: Sequence[Group]) -> Iterator[str]:
    """The scripts' last words, per target: what changed beyond its threshold, or that nothing did."""
    for side in run.sides[1:]:
        found = _of(groups, side)
        left = _unanswered(found)
        changed = [pair for pair in found if pair[1].verdict in ("slower", "faster")]
        yield from _named(run, side)
        if changed:
            yield from suite_csv.warning_block([_alert(*pair) for pair in changed], _thresholds(run, changed))
        elif any(row.verdict in ("same", "slight") for _, row in found) and not any(left.values()):
            yield from suite_csv.warning_block([], _thresholds(run, found))
        else:
            limit = suite_csv.limit(_thresholds(run, found)).replace("%", " %")
            undone = ", ".join(f"{len(pairs)} {what}" for what, pairs in left.items() if pairs) or "none was measured"
            yield from ("", f"No case is certainly slower or faster by {limit}: {undone}.")


def _thresholds(run: Run, found: Iterable[tuple[Group, Row]]) -> list[float]:
    return [run.options.threshold_of(row.cell.id) for _, row in found] or [run.options.threshold]


def _of(groups: Sequence[Group], side: Side) -> Found:
    return [(group, row) for group in groups if group.target == side for row in group.rows]


def _unanswered(found: Found) -> dict[str, Found]:
    """Standing -> the rows without a verdict on their speed, by the header's own rules, for each standing of _LISTS."""
    left: dict[str, Found] = {standing: [] for standing in _LISTS}
    for group, row in found:
        standing = ""
        if row.verdict == "broken":
            standing = "broken"
        elif row.comparison and undecided_row(row.comparison):
            standing = "undecided"
        elif row.comparison and base_not_ok(row.comparison):
            standing = "not ok on the base"
        elif row.verdict in ("unclear", None) and not row.apart:
            standing = "without a verdict"
        if standing:
            left[standing].append((group, row))
    return left


def _named(run: Run, side: Side) -> Iterator[str]:
    if len(run.sides) > 2:
        yield from ("", f"{side.id}: {clean(side.label)}")


def _listed(run: Run, title: str, found: Found) -> Iterator[str]:
    """What several cases share has one line for all of them; a case of its own has its own lines."""
    if not found:
        return
    yield from ("", title)
    shared = [one for one in rows.failures(run, found) if one.several]
    yield from (f"  - {one.line()}" for one in shared)
    known = {seen for one in shared for seen in one.seen}
    for group, row in found:
        alone = [seen for seen in failing(row) if (seen.cell, seen.arm) not in known]
        if alone or not failing(row):
            yield f"  - Case: {_case(group, row)}"
            yield f"    {_verdict(row)}"
            yield from (f"    {seen.arm}: {_why(seen)}" for seen in alone)


def _alert(group: Group, row: Row) -> list[str]:
    """The scripts' four lines and ours. Without a FLOP count they compare milliseconds instead."""
    times, last = [row.ns(seen) for seen in (row.base, row.target)], f"    Verdict: {_verdict(row)}"
    columns = {"tflops_per_sec": [rows.tflops(row.cell, ns) for ns in times],
               "latency_ms": [ns / 1e6 if ns else None for ns in times]}  # fmt: skip
    for column, (left, right) in columns.items():
        if left is not None and right is not None:
            return [*suite_csv.alert(_case(group, row), left, right, column), last]
    return [f"  - Case: {_case(group, row)}", last]


def _verdict(row: Row) -> str:
    if row.comparison is None:
        return "not judged"
    said = sentences.verdict(row.comparison)
    return said if row.comparison.pct is None else f"{said}; time {sentences.change(row.comparison)}"
