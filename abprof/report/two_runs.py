"""Two runs beside each other: whose verdicts differ, and what cannot be compared at all."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from abprof.records import Run
from abprof.records.quantities import plural
from abprof.report import sentences
from abprof.report.csv_files import csv_text, plain
from abprof.report.rows import Table
from abprof.report.text import clean, markdown, markdown_table

_ABSENT = "not in this run"


@dataclass(frozen=True)
class TwoRuns:
    """How two runs differ. The table has verdicts that differ first, then rows that only one run has."""

    sentence: str
    notes: tuple[str, ...]  # what differs in how they were made
    table: Table


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
    for cell, *pair in (*moved, *alone):
        row = [clean(cell if pair == ["base", "target"] else f"{cell} ({pair[0]} → {pair[1]})")]
        for side in (left, right):
            one = side.get((cell, pair[0], pair[1]))
            row += [one.verdict, sentences.change_text(one), sentences.bounds(one)] if one else [_ABSENT, "", ""]
        found.append(tuple(row))
    sentence = sentence if both else "The runs have no row in common."
    return TwoRuns(sentence, tuple(_notes(first, second)), Table(header, tuple(found), 1))


def _notes(first: Run, second: Run) -> Iterator[str]:
    """What a reader must know before comparing: other machines, versions, code, rules, or trust."""
    left, right = _circumstances(first), _circumstances(second)
    for what in dict.fromkeys((*left, *right)):
        before, after = left.get(what, "none"), right.get(what, "none")
        if before != after:
            yield f"{what}: {before} → {after}"
    for place, run in (("first", first), ("second", second)):
        if run.header and not run.header.trusted:
            tampered = run.header.counts.get("tampered")
            why = "files that it rests on changed" if tampered else "a control moved beyond the margin"
            yield f"the {place} run cannot be trusted: {why}"
        if run.status != "complete":
            yield f"the {place} run is {run.status}"


def _circumstances(run: Run) -> dict[str, str]:
    found = {"device": run.machine.device, "host": run.machine.host}
    found |= {"threshold": f"{run.options.threshold:g} %", "margin": f"{run.options.margin:g} %"}
    found |= {side.id: f"{side.label} {side.commit[:10]}" for side in run.sides}
    timers = {o.metrics["gpu_span"].protocol.partition(",")[0] for o in run.observations if "gpu_span" in o.metrics}
    found |= {"GPU times read by": ", ".join(sorted(timers))} if timers else {}
    return {clean(what, 40): clean(text, 80) for what, text in (found | run.versions).items()}


def rendered(of: TwoRuns, format: str) -> str:
    """The comparison as `md`, `csv` or `json`. Foreign text stays text in each."""
    if format == "json":
        found = [dict(zip(of.table.header, row, strict=True)) for row in of.table.rows]
        content = {"sentence": of.sentence, "notes": list(of.notes), "rows": found}
        return json.dumps(content, ensure_ascii=False, indent=1) + "\n"
    if format == "csv":
        lines = [dict(zip(of.table.header, map(plain, row), strict=True)) for row in of.table.rows]
        return csv_text(of.table.header, lines)
    made = [str(markdown(of.sentence)), "", *(f"- {markdown(note)}" for note in of.notes), *([""] if of.notes else [])]
    made += [markdown_table(of.table.header, of.table.rows)] if of.table.rows else []
    return "\n".join(made) + "\n"
