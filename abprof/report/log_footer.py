"""The end of output.txt: the branch-profile scripts' block per case, then what did not run, and last of all
their warnings, for both directions, each with our verdict and interval.

Only cells that are certainly slower or faster are warned about: that is what a bare threshold on two means cannot do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from abprof.records import Observation, Run
from abprof.records.visible import visible
from abprof.report import rows, sentences, suite_csv
from abprof.report.rows import Group, Row
from abprof.report.suite_csv import RULE
from abprof.report.text import NOT_RECORDED, clean

_TITLES = {"fwd": "FORWARD PERFORMANCE", "bwd": "BACKWARD PERFORMANCE"}
_WIDE = "=" * 80


def with_footer(log: str, run: Run, groups: Sequence[Group]) -> str:
    """The log with its footer: a former one of the same run is replaced, so that a report can be made again."""
    marker = visible(f"======== abprof: results of run {run.id} ========")
    body, found, _ = log.rpartition(f"\n{marker}\n")
    kept = body if found else "" if log.startswith(marker) else log.rstrip("\n")
    footer = (marker, *_cases(run, groups), *_findings(run, groups), *_fluctuations(run, groups))
    return (f"{kept}\n" if kept else "") + "".join(f"{visible(line)}\n" for line in footer)


def _cases(run: Run, groups: Sequence[Group]) -> Iterator[str]:
    """The scripts' block for every cell and side, one side after the other as they printed it."""
    order = {cell.id: place for place, cell in enumerate(run.cells)}
    for side in run.sides:
        yield from ("", _WIDE, f"{side.id}: {clean(side.label)} @ {side.commit[:10]}", _WIDE)
        target = next((s.id for s in run.sides[1:]), None) if side.id == "base" else side.id
        for group in groups:
            if (group.target.id if group.target else None) == target:
                for row in sorted(group.rows, key=lambda row: order[row.cell.id]):
                    yield from _case_block(group, row, row.base if side.id == "base" else row.target)


def _case_block(group: Group, row: Row, seen: Observation | None) -> Iterator[str]:
    config, ns = _case(group, row), row.ns(seen)
    if seen is None or ns is None:
        why = ": ".join(filter(None, (sentences.status(seen.status), clean(seen.reason, 160)))) if seen else "no turn"
        yield from ("", f"Testing Config: {config}", f"    not measured: {why}")
        return
    direction = str(config.pop("direction", ""))  # as there, where the block's title says it
    yield from ("", f"Testing Config: {config}", RULE, _TITLES.get(direction, "PERFORMANCE"), RULE)
    if seen.status == "wrong":
        yield "WRONG OUTPUT: these times say nothing about speed"
    yield f"{'Total Runtime (ms)':<20} | {ns / 1e6:.4f}"
    if (rate := rows.tflops(row.cell, ns)) is not None:
        yield f"{'Achieved TFLOP/s':<20} | {rate:.4f}"
    yield from ("-" * 60, "Internal Timing Breakdown:")
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


def _findings(run: Run, groups: Sequence[Group]) -> Iterator[str]:
    """The run's headline, what did not run, and its warnings."""
    yield from ("", sentences.headline(run), *sentences.weaker(run), *sentences.unfinished(run))
    if failed := rows.all_failures(run, groups):
        yield from ("", "❌ No speed is reported for these cases:", *(f"  - {one.line()}" for one in failed), "")
    yield from (f"⚠️  {sentences.warning(text, advice)}" for text, advice, _ in rows.warnings(run))


def _fluctuations(run: Run, groups: Sequence[Group]) -> Iterator[str]:
    """The scripts' last words, per target: what changed beyond its threshold, or that nothing did."""
    for side in run.sides[1:]:
        found = [(group, row) for group in groups if group.target == side for row in group.rows]
        changed = [pair for pair in found if pair[1].verdict in ("slower", "faster")]
        thresholds = [run.options.threshold_of(row.cell.id) for _, row in changed or found] or [run.options.threshold]
        decided = any(row.verdict in ("same", "slight") for _, row in found)
        left = sum(row.verdict in ("broken", "unclear", None) and not row.apart for _, row in found)
        if len(run.sides) > 2:
            yield from ("", f"{side.id}: {clean(side.label)}")
        if changed or (decided and not left):
            yield from suite_csv.warning_block([_alert(*pair) for pair in changed], thresholds)
        else:
            undone = f"{left} without a verdict on speed" if left else "none was measured"
            limit = suite_csv.limit(thresholds).replace("%", " %")
            yield from ("", f"No case is certainly slower or faster by {limit}: {undone}.")


def _alert(group: Group, row: Row) -> list[str]:
    """The scripts' four lines and ours. Without a FLOP count they compare milliseconds instead."""
    last = f"    Verdict: {sentences.verdict_and_change(row.comparison) if row.comparison else 'not judged'}"
    times = [row.ns(seen) for seen in (row.base, row.target)]
    columns = {"tflops_per_sec": [rows.tflops(row.cell, ns) for ns in times],
               "latency_ms": [ns / 1e6 if ns else None for ns in times]}  # fmt: skip
    for column, (left, right) in columns.items():
        if left is not None and right is not None:
            return [*suite_csv.alert(_case(group, row), left, right, column), last]
    return [f"  - Case: {_case(group, row)}", last]
