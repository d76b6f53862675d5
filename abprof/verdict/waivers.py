"""Waivers: accepted slow-downs. A covered row stays `slower`, gets the reason `waived`, and does not count as one to act on.

A waiver covers a `slower` row up to its largest change, in runs that began on or before its last day. The file they come
from is read by abprof/system/waiver_file.py, from base's commit: a pull request cannot waive itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

import msgspec

from abprof.records import Advice, Comparison, Run, Waiver

FILE = "abprof-waivers.toml"


def in_force(run: Run) -> tuple[Waiver, ...]:
    """Those whose last day had not passed when the run began, so that a run is judged the same later."""
    return tuple(one for one in run.waivers if run.began[:10] <= one.expires)


def applied(run: Run, rows: Sequence[Comparison]) -> tuple[Comparison, ...]:
    """The rows, with the reason `waived` on those that a waiver covers."""
    valid = in_force(run)
    return tuple(
        msgspec.structs.replace(row, reasons=(*row.reasons, "waived")) if _covered(row, valid) else row for row in rows
    )


def describe(waiver: Waiver) -> str:
    """`dense/*: up to 5 % slower until 2026-12-31 (ada: the new layout)`."""
    return (
        f"{waiver.cells}: up to {waiver.most_pct:g} % slower until {waiver.expires} ({waiver.owner}: {waiver.reason})"
    )


def advice(run: Run, rows: Sequence[Comparison]) -> Iterator[Advice]:
    """Warnings: a waiver of these cells has expired; a row is slower than its waiver allows."""
    valid = in_force(run)
    names = [cell.id for cell in run.cells]
    old = [one for one in run.waivers if one not in valid and any(fnmatchcase(name, one.cells) for name in names)]
    if old:
        yield Advice(
            kind="waiver_expired",
            text=f"{len(old)} waivers for these cells have expired: " + "; ".join(map(describe, old)),
            advice=f"fix what is slower and remove the waiver from {FILE}, or renew it: abprof waive",
            cells=tuple(name for name in names if any(fnmatchcase(name, one.cells) for one in old)),
        )
    beyond = [row for row in rows if row.verdict == "slower" and not _covered(row, valid) and _matching(row, valid)]
    if beyond:
        yield Advice(
            kind="waiver_exceeded",
            text=f"{len(beyond)} cells are slower than their waivers allow",
            advice=f"{FILE} on base has the accepted change",
            cells=tuple(dict.fromkeys(row.cell for row in beyond)),
        )


def _matching(row: Comparison, valid: Sequence[Waiver]) -> list[Waiver]:
    return [one for one in valid if fnmatchcase(row.cell, one.cells)]


def _covered(row: Comparison, valid: Sequence[Waiver]) -> bool:
    most = max((one.most_pct for one in _matching(row, valid)), default=None)
    return row.verdict == "slower" and row.pct is not None and most is not None and row.pct <= most
