"""Waivers: accepted slow-downs. A comparison that a waiver covers gets the reason `waived`, and does not fail the run.

A waiver accepts slow-downs of its cells up to a limit, until its last day. Waivers are read from base's commit
(abprof/system/waiver_file.py), so a pull request cannot waive its own slow-down.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

import msgspec

from abprof.records import WAIVER_FILE, Advice, Comparison, Run


def _accepted(run: Run, row: Comparison) -> float | None:
    """Return the largest slow-down (per cent) that waivers accept; None if no waiver applies or `row` is not slower."""
    most = (one.most_pct for one in run.in_force if fnmatchcase(row.cell, one.cells) and row.verdict == "slower")
    return max(most, default=None)


def applied(run: Run, rows: Sequence[Comparison]) -> tuple[Comparison, ...]:
    """Return the comparisons, with the reason `waived` added to those that a waiver covers."""
    accepted = [(row, _accepted(run, row)) for row in rows]
    return tuple(
        msgspec.structs.replace(row, reasons=(*row.reasons, "waived")) if most and (row.pct or 0.0) <= most else row
        for row, most in accepted
    )


def advice(run: Run, rows: Sequence[Comparison]) -> Iterator[Advice]:
    """Yield warnings about expired waivers of this run's cells, and about cells slower than their waivers allow."""
    names, valid = [cell.id for cell in run.cells], run.in_force
    old = [one for one in run.waivers if one not in valid and any(fnmatchcase(name, one.cells) for name in names)]
    if old:
        yield Advice(
            kind="waiver_expired",
            text=f"{len(old)} waivers for these cells have expired: " + "; ".join(one.line for one in old),
            advice=f"fix the slow-down and remove the waiver from {WAIVER_FILE}, or renew the waiver: abprof waive",
            cells=tuple(name for name in names if any(fnmatchcase(name, one.cells) for one in old)),
        )
    beyond = dict.fromkeys(row.cell for row in rows if _accepted(run, row) and "waived" not in row.reasons)
    if beyond:
        text = f"{len(beyond)} cells are slower than their waivers allow"
        yield Advice(
            kind="waiver_exceeded", text=text, advice=f"raise the limit in {WAIVER_FILE} on base", cells=tuple(beyond)
        )
