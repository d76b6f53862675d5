"""Two runs beside each other: whose verdicts differ, and what cannot be compared at all."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from abprof.records import Comparison, Run
from abprof.report import terminal, words
from abprof.report.lines import TextTable, change_text
from abprof.report.plain_markdown import escape
from abprof.report.tables import csv_text, plain

Key = tuple[str, str, str]  # cell, from, to


@dataclass(frozen=True)
class TwoRuns:
    """What is said of two runs. `rows` of the table: verdicts that differ first, then rows that only one run has."""

    sentence: str
    notes: tuple[str, ...]  # what differs in how they were made
    table: TextTable

    def as_json(self) -> dict[str, object]:
        """The same as plain values."""
        rows = [dict(zip(self.table.header, row, strict=True)) for row in self.table.rows]
        return {"sentence": self.sentence, "notes": list(self.notes), "rows": rows}


def compare(first: Run, second: Run) -> TwoRuns:
    """Rows by cell and arms. Numbers of two runs are never subtracted: each has its own interval, and they stand side by side."""
    left, right = ({(c.cell, c.from_, c.to): c for c in (*run.comparisons, *run.within)} for run in (first, second))
    both = [key for key in left if key in right]
    moved = [key for key in both if left[key].verdict != right[key].verdict]
    alone = [key for key in (*left, *right) if (key in left) != (key in right)]
    ways = Counter((left[key].verdict, right[key].verdict) for key in moved)
    told = "; ".join(f"{count} {before} → {after}" for (before, after), count in ways.most_common())
    sentence = f"{len(moved)} of {words.plural(len(both), 'row')} have another verdict" + (f": {told}" if told else "")
    sentence += f". {words.plural(len(alone), 'row')} only in one of the runs." if alone else "."
    if not both:
        sentence = "The runs have no row in common."
    header = ("row", "first", "change", "95 % interval", "second", "change, second", "95 % interval, second")
    rows = tuple((_name(key), *_said(left.get(key)), *_said(right.get(key))) for key in (*moved, *alone))
    return TwoRuns(sentence, tuple(_notes(first, second)), TextTable(header, rows, 1))


def _said(row: Comparison | None) -> tuple[str, str, str]:
    return ("not in this run", "", "") if row is None else (row.verdict, change_text(row), words.bounds(row))


def _name(key: Key) -> str:
    cell, before, after = key
    return words.clean(cell if (before, after) == ("base", "target") else f"{cell} ({before} → {after})")


def _notes(first: Run, second: Run) -> Iterator[str]:
    """What a reader must know before comparing: other machines, versions, code, rules, or trust."""
    left, right = _circumstances(first), _circumstances(second)
    for what in dict.fromkeys((*left, *right)):
        before, after = left.get(what, "not there"), right.get(what, "not there")
        if before != after:
            yield f"{what}: {before} → {after}"
    for place, run in (("first", first), ("second", second)):
        if run.header and not run.header.trusted:
            why = (
                "files that it rests on changed"
                if run.header.counts.get("tampered")
                else "a control moved beyond the margin"
            )
            yield f"the {place} run cannot be trusted: {why}"
        if run.status != "complete":
            yield f"the {place} run is {run.status}"


def _circumstances(run: Run) -> dict[str, str]:
    found = {"device": run.machine.device, "host": run.machine.host}
    found |= {"threshold": f"{run.options.threshold:g} %", "margin": f"{run.options.margin:g} %"}
    found |= {side.id: f"{side.label} {side.commit[:10]}" for side in run.sides}
    if readers := {
        seen.metrics["gpu_span"].protocol.partition(",")[0] for seen in run.observations if "gpu_span" in seen.metrics
    }:
        found["GPU times read by"] = ", ".join(sorted(readers))
    return {words.clean(what, 40): words.clean(text, 80) for what, text in (found | run.versions).items()}


def show(of: TwoRuns, format: str) -> None:
    """Print it on standard output: a table for a terminal, `md`, `csv` or `json`. Foreign text stays text in each."""
    if format == "json":
        sys.stdout.write(json.dumps(of.as_json(), ensure_ascii=False, indent=1) + "\n")
    elif format == "csv":
        lines = [dict(zip(of.table.header, map(plain, row), strict=True)) for row in of.table.rows]
        sys.stdout.write(csv_text(of.table.header, lines))
    elif format == "md":
        sys.stdout.write(_markdown(of))
    else:
        terminal.print_two(of.sentence, of.notes, of.table)


def _markdown(of: TwoRuns) -> str:
    lines = [escape(of.sentence), "", *(f"- {escape(note)}" for note in of.notes), *([""] if of.notes else [])]
    if of.table.rows:
        rows = [of.table.header, ("---",) * len(of.table.header), *(map(escape, row) for row in of.table.rows)]
        lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines) + "\n"
