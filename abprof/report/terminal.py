"""A run on a terminal: the rows that need a person, then the headline, why it may be trusted, and where the report is."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from abprof.records import Run
from abprof.report import page as pages
from abprof.report import rows, sentences
from abprof.report.page import Page, Workload, folded_title
from abprof.report.text import clean

WRAPS = 120  # columns from which on verdicts stand in a table whose texts wrap
_STYLES = {"broken": "bold red", "slower": "bold dark_orange", "faster": "bold dodger_blue1", "unclear": "magenta",
           "not judged": "magenta", "slight": "cyan"}  # fmt: skip


def print_run(run: Run, folder: Path, *, everything: bool = False) -> None:
    """Print the run on standard output."""
    show(pages.page(run, ()), _console(), folder, everything=everything)


def print_tables(tables: Sequence[rows.Table], notes: Sequence[str], sentence: str) -> None:
    """Print tables with their captions on standard output, then notes and the conclusion."""
    console = _console()
    for table in tables:
        _table(table, console, "bold")
    for note in notes:
        _say(console, note, "yellow")
    _say(console, sentence, "bold")


def _console() -> Console:
    """Standard output. In a pipe there is no width to keep to, and no colour."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show a mark shows "?" instead
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=200 if piped else None, highlight=False)


def show(page: Page, console: Console, folder: Path, *, everything: bool = False) -> None:
    """Failures and warnings, a table per workload, and the last lines: headline, trust, the report's path."""
    for failed in page.failed:
        _say(console, failed.line(), "red")
    for text, advice, _ in page.warnings:
        _say(console, f"warning: {sentences.warning(text, advice)}", "yellow")
    for line in page.weaker:
        _say(console, line, "yellow")
    for workload in page.workloads:
        _workload(workload, console, everything)
    for line in (*sentences.unfinished(page.run), page.headline):
        _say(console, line, "bold")
    _say(console, page.trusted[:1].upper() + page.trusted[1:], "")
    _say(console, f"Report: {folder / 'report.html'}", "")


def _workload(workload: Workload, console: Console, everything: bool) -> None:
    group = workload.group
    constants = " ".join(f"{clean(axis)}={clean(value)}" for axis, value in group.constants.items())
    console.print(Text(workload.title, style="bold"), Text(constants, style="dim"))
    shown = workload.lines if everything else workload.brief
    if group.target and shown:
        header = ("verdict", *group.columns, "change of time", "95 % interval", "base", group.target.id, "TFLOP/s")
        texts = tuple(
            (f"{line.mark} {line.verdict}".strip(), *line.values, line.change,
             "; ".join(filter(None, (line.interval, line.note))), line.before, line.after, line.rate)
            for line in shown
        )  # fmt: skip
        styles = [_STYLES.get(line.verdict, "") for line in shown]
        _table(rows.Table(header, texts, 1 + len(group.columns)), console, styles=styles)
        for case, sentence in workload.causes:
            _say(console, f"why {case}: {sentence}", "")
    for block in workload.blocks:
        if block.brief or everything:
            _say(console, ": ".join(filter(None, (block.title, " ".join(block.text)))), "dim")
            for table in block.tables:
                _table(table, console)
    hidden = [line for line in workload.lines if line.row.folded and not everything and group.target]
    _say(console, f"{folded_title(hidden)} hidden (--all)" if hidden else "", "dim")


def _table(of: rows.Table, console: Console, style: str = "dim", styles: Sequence[str] = ()) -> None:
    """A table, or where it is too wide its rows one by one: a figure is never cut. `styles`: of verdicts, the first cells."""
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
        figures = "; ".join(
            f"{name} {clean(text)}" for name, text in zip(of.header[of.left :], row[of.left :], strict=True)
        )
        console.print(Text(" "), cell, Text(f" {named}: {figures}"), sep="")


def _say(console: Console, text: str, style: str) -> None:
    if text:
        console.print(Text(text, style=style), soft_wrap=True)
