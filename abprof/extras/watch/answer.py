"""The answer to a save, as lines: each cell's change in one epoch, with what one epoch can say, and what was so before."""

from __future__ import annotations

from abprof.records import Comparison, Run, names
from abprof.report import sentences
from abprof.report.text import clean, signed


def lines(run: Run, before: Run | None, seconds: float) -> list[str]:
    """A line a cell, and how long the answer took. `before`: the answer to the save before this one."""
    labels, was = names.short_labels(run.cells), _rows(before)
    found = []
    for key, row in _rows(run).items():
        said = f"{clean(labels[row.cell])}{f' {row.to}' if ':' in row.to else ''}: {_said(run, row)}"
        found.append(f"{said} (before: {_said(before, was[key])})" if before and key in was else said)
    return [
        *(found or ["nothing was measured"]),
        f"answered {seconds:.1f} s after {'the save' if before else 'the start'}",
    ]


def _rows(run: Run | None) -> dict[tuple[str, str], Comparison]:
    rows = run.comparisons if run else ()
    return {(row.cell, row.to): row for row in rows if not row.with_peer}


def _said(run: Run, row: Comparison) -> str:
    """`3.2 % slower, one epoch: worth confirming`; what failed with its first line."""
    if row.pct is not None:
        return f"{signed(row.pct)}, {sentences.reasons(row)}"
    seen = next((one for one in run.observations if (one.cell, one.arm) == (row.cell, row.to) and one.reason), None)
    why = f": {clean(seen.reason)}" if seen and row.verdict == "broken" else ""
    return f"{row.verdict}, {sentences.reasons(row)}{why}"
