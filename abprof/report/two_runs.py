"""Two runs beside each other: whose verdicts differ, and what cannot be compared at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from abprof.records import Run
from abprof.records.quantities import plural
from abprof.report import sentences
from abprof.report.rows import Table
from abprof.report.text import clean


class TwoRuns(NamedTuple):
    """How two runs differ. The table has verdicts that differ first, then rows that only one run has."""

    table: Table
    notes: tuple[str, ...]  # what differs in how they were made
    sentence: str


def compare(first: Run, second: Run) -> TwoRuns:
    """Rows by cell and arms. Numbers of two runs are never subtracted: each has its own interval."""
    left, right = ({(c.cell, c.from_, c.to): c for c in (*run.comparisons, *run.within)} for run in (first, second))
    both = [key for key in left if key in right]
    moved = [key for key in both if left[key].verdict != right[key].verdict]
    alone = [key for key in (*left, *right) if (key in left) != (key in right)]
    ways = Counter((left[key].verdict, right[key].verdict) for key in moved).most_common()
    moves = "; ".join(f"{count} {before} → {after}" for (before, after), count in ways)
    sentence = f"{len(moved)} of {plural(len(both), 'row')} have another verdict{f': {moves}' if moves else ''}."
    sentence += f" {plural(len(alone), 'row')} only in one of the runs." if alone else ""
    header = ("row", "first", "change", "95 % interval", "second", "change, second", "95 % interval, second")
    found = []
    for key in (*moved, *alone):
        cell, *pair = key
        row = [clean(cell if pair == ["base", "target"] else f"{cell} ({pair[0]} → {pair[1]})")]
        for side in (left, right):
            one = side.get(key)
            row += (
                [one.verdict, sentences.change_text(one), sentences.bounds(one)] if one else ["not in this run", "", ""]
            )
        found.append(tuple(row))
    sentence = sentence if both else "The runs have no row in common."
    return TwoRuns(Table(header, tuple(found), 1), tuple(_notes(first, second)), sentence)


def _notes(first: Run, second: Run) -> Iterator[str]:
    """What a reader must know before comparing: other machines, versions, code, rules, or trust."""
    left, right = ({"device": run.machine.device, "host": run.machine.host, "threshold": f"{run.options.threshold:g} %",
                    "margin": f"{run.options.margin:g} %"} | run.versions
                   | {side.id: f"{side.label} {side.commit[:10]}" for side in run.sides} for run in (first, second))  # fmt: skip
    for what in dict.fromkeys((*left, *right)):
        before, after = left.get(what, "none"), right.get(what, "none")
        if before != after:
            yield f"{clean(what, 40)}: {clean(before, 80)} → {clean(after, 80)}"
    for place, run in (("first", first), ("second", second)):
        if run.header and not run.header.trusted:
            yield f"the {place} run cannot be trusted"
        if run.status != "complete":
            yield f"the {place} run is {run.status}"
