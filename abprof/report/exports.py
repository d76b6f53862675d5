"""Write a run's result as JSON for other programs: a short summary, Bencher's format, and github-action-benchmark's.

Bencher and github-action-benchmark keep one series for each name, so they get the times of the targets (of a run of one
branch: its own), which they compare with other runs. abprof's own verdict travels beside them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from abprof.records import Metric, Run
from abprof.records.errors import Exit
from abprof.records.names import short_labels
from abprof.report import sentences
from abprof.report.rows import ORDER, Group, Row, groups, metric
from abprof.report.text import clean

_BYTES_A_ROW, _FEWEST = 200, 20  # a summary of up to 20 rows has at most 4,000 bytes
# Whole ids of cells or short names, and the longest cause: the first with which all rows fit.
_SHAPES = ((True, 300), (True, 160), (True, 90), (False, 160), (False, 90), (False, 60), (False, 30), (False, 0))


def summary(run: Run, folder: Path) -> str:
    """Return the run's result as one line of JSON of at most 200 bytes for each row, or 4,000 for up to 20 rows.

    If whole ids and causes need more, cells are named by the axes in which they differ, causes are cut, and last rows
    are left out and counted, unchanged rows first.
    """
    found = [(group, row) for group in groups(run) for row in group.rows]
    found.sort(key=lambda one: (one[1].folded, ORDER.index(one[1].verdict)))
    most = _BYTES_A_ROW * max(_FEWEST, len(found))
    head, names = run.header, short_labels(run.cells)
    code = head.exit_code if head else Exit.CANNOT_RUN
    top: dict[str, Any] = {
        "result": sentences.headline(run)[:300],
        "status": run.status,
        "exit_code": int(Exit.INTERRUPTED if run.status == "interrupted" else code),
        "trusted": bool(head and head.trusted),
        "weaker": bool(sentences.lacking(run)[0]),
        "warnings": [clean(one.text, 120) for one in run.warnings[:3]],
        "run_dir": clean(folder),
    }
    for whole, length in _SHAPES:
        rows = [{"cell": clean(row.cell.id if whole else names[row.cell.id]), **_row(run, group, row, length)}
                for group, row in found]  # fmt: skip
        if len((made := _text({**top, "rows": rows})).encode()) <= most:
            return made
    while len((made := _text({**top, "rows": rows, "rows_left_out": len(found) - len(rows)})).encode()) > most and rows:
        del rows[-(1 + len(rows) // 50) :]
    return made


def _text(content: Any) -> str:
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False)


def _row(run: Run, group: Group, row: Row, length: int) -> dict[str, Any]:
    judged = row.comparison
    made: dict[str, Any] = {"variant": clean(row.variant)} if row.variant else {}
    if len(run.sides) > 2 and group.target:
        made["to"] = group.target.id
    if judged is None:
        ns = row.ns(row.base)
        return made | ({"ms": float(f"{ns / 1e6:.4g}")} if ns else {})
    made["verdict"] = row.apart or judged.verdict
    if judged.pct is not None:
        made["pct"] = round(judged.pct, 2)
    if judged.low_pct is not None and judged.high_pct is not None:
        made["interval"] = [round(judged.low_pct, 2), round(judged.high_pct, 2)]
    failures = dict.fromkeys(f"{sentences.status(seen.status)}: {seen.reason}" for seen in row.failing)
    if made["verdict"] == "unsupported" and not failures:
        failures = dict.fromkeys(seen.reason for seen in (row.base, row.target) if seen and seen.reason)
    why = failures or filter(None, (sentences.because(judged), sentences.note(judged)))
    if length and (text := clean("; ".join(why), length)):
        made["cause"] = text
    return made


def bmf(run: Run) -> str:
    """Return Bencher Metric Format: {name: {measure: {value, lower_value, upper_value}}}. The measure `latency` is in
    ns, as Bencher defines it; `abprof-change` is the paired change of time in per cent."""
    made: dict[str, Any] = {}
    for name, row, timed in _timed(run):
        made[name] = {"latency": _bounded(timed.value, timed.low, timed.high)}
        judged = row.comparison
        if judged and judged.pct is not None:
            made[name]["abprof-change"] = _bounded(judged.pct, judged.low_pct, judged.high_pct)
    return json.dumps(made, indent=1, allow_nan=False) + "\n"


def action(run: Run) -> str:
    """Return the array that github-action-benchmark reads as `customSmallerIsBetter`: times in ms."""
    made = []
    for name, row, timed in _timed(run):
        one: dict[str, Any] = {"name": name, "unit": "ms", "value": timed.value / 1e6}
        if timed.low is not None and timed.high is not None:
            one["range"] = f"± {(timed.high - timed.low) / 2e6:.4g}"
        judged = row.comparison
        made.append(one | ({"extra": f"abprof: {clean(sentences.verdict_and_change(judged))}"} if judged else {}))
    return json.dumps(made, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _timed(run: Run) -> Iterator[tuple[str, Row, Metric]]:
    """Yield name, row and time of each row whose newest arm has a time of right outputs."""
    for group in groups(run):
        for row in group.rows:
            seen = row.target if group.target else row.base
            timed = metric(seen, row.metric)
            several = f" ({group.target.id})" if group.target and len(run.sides) > 2 else ""
            if timed and seen and seen.status == "ok":
                yield clean(f"{row.cell.id} {row.variant}".strip() + several, 900), row, timed


def _bounded(value: float, low: float | None, high: float | None) -> dict[str, float]:
    bounds = {"lower_value": low, "upper_value": high}
    return {"value": value, **{name: bound for name, bound in bounds.items() if bound is not None}}
