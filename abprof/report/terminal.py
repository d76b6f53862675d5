"""Print a run on a terminal: rows that need attention, the headline, and the report's path."""

from __future__ import annotations

import io
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from abprof.records import Run
from abprof.records.quantities import plural
from abprof.report import rows, sentences
from abprof.report.model import Page, folded_title
from abprof.report.text import clean

WRAPS = 120  # columns of a terminal that is wide enough for a table of verdicts with wrapped texts
_STYLES = {"broken": "bold red", "slower": "bold dark_orange", "faster": "bold dodger_blue1", "unclear": "magenta",
           "not judged": "magenta", "slight": "cyan"}  # fmt: skip


def print_run(run: Run, folder: Path, *, everything: bool = False) -> None:
    """Print the run on standard output: rows that need attention (with `everything`, all rows) and the headline."""
    show(Page(run, ()), _console(), folder, everything=everything)


def print_tables(tables: Sequence[rows.Table], notes: Sequence[str], sentence: str) -> None:
    """Print tables with captions on standard output, then the notes and the sentence."""
    console = _console()
    for table in tables:
        _table(table, console, "bold")
    for note in notes:
        _say(console, note, "yellow")
    _say(console, sentence, "bold")


def _console() -> Console:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show a mark shows "?" instead
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=200 if piped else None, highlight=False)


def show(of: Page, console: Console, folder: Path, *, everything: bool = False) -> None:
    """Print failures, warnings, a table for each workload, the headline, and the report's path."""
    for failed in of.failed:
        _say(console, failed.line(), "red")
    for one in of.run.warnings:
        _say(console, f"warning: {sentences.warning(one)}", "yellow")
    for line in of.weaker:
        _say(console, line, "yellow")
    for workload in of.workloads:
        _workload(of, workload, console, everything)
    if of.caption and any(everything or not line.row.folded for workload in of.workloads for line in workload.lines):
        console.print(Text(of.caption, style="dim"))
    for line in (*sentences.incomplete(of.run), of.headline):
        _say(console, line, "bold")
    _say(console, of.trusted[:1].upper() + of.trusted[1:], "")
    _say(console, sentences.guarantee(of.run), "")
    _say(console, f"Report: {folder / 'report.html'}", "")


def _workload(of: Page, group: rows.Group, console: Console, everything: bool) -> None:
    constants = " ".join(f"{clean(axis)}={clean(value)}" for axis, value in group.constants.items())
    console.print(Text(group.title, style="bold"), Text(constants, style="dim"))
    shown = [line for line in group.lines if everything or not line.row.folded]
    if group.target and shown:
        header = ("verdict", *group.columns, "change of time", "95 % interval", "base", group.target.id, "TFLOP/s")
        texts = tuple(
            (f"{line.mark} {line.verdict}".strip(), *line.values, line.change,
             "; ".join(filter(None, (line.interval, line.note))), line.before, line.after, line.rate)
            for line in shown
        )  # fmt: skip
        styles = [_STYLES.get(line.verdict, "") for line in shown]
        _table(rows.Table(header, texts, 1 + len(group.columns)), console, styles=styles)
        for line in group.lines:
            _say(console, f"why {line.case}: {line.why}" if line.why else "", "")
    for line in shown:
        _say(console, f"nights {line.case}: {line.nights}" if line.nights else "", "")
    for block in of.tables(group) if everything or not group.target else ():
        _say(console, ": ".join(filter(None, (block.title, *block.text))), "dim")
        for table in block.tables:
            _table(table, console)
    hidden = [line for line in group.lines if line.row.folded and not everything and group.target]
    _say(console, f"{folded_title(hidden)} not shown (abprof report RUN --all)" if hidden else "", "dim")


def _table(of: rows.Table, console: Console, style: str = "dim", styles: Sequence[str] = ()) -> None:
    """Print a table, or one line for each row if the table is too wide. `styles`: one for each row's first text."""
    _say(console, of.caption, style)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(of.header):
        figure = place >= of.left and name != "95 % interval"
        table.add_column(Text(clean(name)), justify="right" if figure else "left")
    first = [Text(row[0], style=styles[place] if styles else "") for place, row in enumerate(of.rows)]
    for cell, row in zip(first, of.rows, strict=True):
        table.add_row(cell, *map(Text, row[1:]))
    if Console(width=10_000).measure(table).maximum <= console.width or (styles and console.width >= WRAPS):
        console.print(table)
        return
    for cell, row in zip(first, of.rows, strict=True):
        named = " ".join(row[1 : of.left])
        pairs = zip(of.header[of.left :], row[of.left :], strict=True)
        figures = "; ".join(f"{name} {clean(text)}" for name, text in pairs)
        console.print(Text(" "), cell, Text(f" {named}: {figures}"), sep="")


def _say(console: Console, text: str, style: str) -> None:
    if text:
        console.print(Text(text, style=style), soft_wrap=True)


def compare(first: Run, second: Run) -> tuple[rows.Table, list[str], str]:
    """Compare the verdicts of two runs. Return a table of the rows that differ, notes, and a sentence as summary."""
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
            known = (one.verdict, sentences.change_text(one), sentences.bounds(one)) if one else ()
            row += known or ("not in this run", "", "")
        found.append(tuple(row))
    sentence = sentence if both else "The runs have no row in common."
    return rows.Table(header, tuple(found), 1), [*_notes(first, second)], sentence


def _notes(first: Run, second: Run) -> Iterator[str]:
    left, right = ({"device": run.machine.device, "host": run.machine.host, "threshold": f"{run.options.threshold:g} %",
                    "margin": f"{run.options.margin:g} %"} | run.versions
                   | {side.id: f"{side.label} {side.commit[:10]}" for side in run.sides} for run in (first, second))  # fmt: skip
    for what in dict.fromkeys((*left, *right)):
        before, after = left.get(what, "none"), right.get(what, "none")
        if before != after:
            yield f"{clean(what, 40)}: {clean(before, 80)} → {clean(after, 80)}"
    for place, run in (("first", first), ("second", second)):
        yield from (f"the {place} run: {line}" for line in sentences.incomplete(run))
        if run.header and not run.header.trusted:
            yield f"the {place} run cannot be trusted"
