"""The table people came for, on a terminal: broken, undecided and changed rows; the rest is one line (`--all`)."""

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
from abprof.report import beside, closing, facts, failures, kernels, lines, overview, sections, view, words
from abprof.verdict.guarantees import weaker

NARROW = 120  # columns; below that, what can be read elsewhere goes
PIPED = 200
_STYLES = {"broken": "bold red", "slower": "bold dark_orange", "faster": "bold dodger_blue1", "unclear": "magenta",
           "not judged": "magenta", "slight": "cyan"}  # fmt: skip


def print_run(run: Run, folder: Path, *, everything: bool = False) -> None:
    """Print the run on standard output."""
    show(run, _console(), folder, everything=everything)


def print_two(sentence: str, notes: Sequence[str], table: lines.TextTable) -> None:
    """Print how two runs differ on standard output."""
    console = _console()
    if table.rows:
        _fitting(table, console)
    for note in notes:
        _say(console, note, "yellow")
    _say(console, sentence, "bold")


def print_tables(tables: Sequence[tuple[str, lines.TextTable]], notes: Sequence[str], sentence: str) -> None:
    """Print titled tables on standard output, then notes and what it comes to."""
    console = _console()
    for title, table in tables:
        _say(console, title, "bold")
        _fitting(table, console)
    for note in notes:
        _say(console, note, "yellow")
    _say(console, sentence, "bold")


def _console() -> Console:
    """Standard output. In a pipe there is no width to keep to, and no colour."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show a mark shows "?" instead
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=PIPED if piped else None, highlight=False)


def show(run: Run, console: Console, folder: Path, *, everything: bool = False) -> None:
    """A table per workload, the failures' first lines, the warnings, where the report is, and last the sentence.

    Colours are the console's business: rich leaves them out where NO_COLOR is set or the output is no terminal.
    """
    groups = view.groups(run)
    for part in overview.parts(groups, folded=everything):
        _say(console, f"{overview.TITLE}: {part.title}", "bold")
        if part.table.rows:
            _fitting(part.table, console)
        _say(console, part.left_out, "dim")
    for group in groups:
        _group(run, group, console, everything)
    for one in failures.all_failures(run, groups):
        _say(console, one.line(), "red")
    for advice in run.warnings:
        text = f"warning: {failures.advice_text(run, advice)}"
        _say(console, f"{text} ({words.clean(advice.advice, 1000)})" if advice.advice else text, "yellow")
    for line in closing.fluctuations(run):
        console.print(Text(line), soft_wrap=True)
    console.print()
    for line in weaker(run):
        _say(console, line, "yellow")
    for label, text in facts.controls(run):
        _say(console, f"{label}: {text}", "dim")
    if run.status != "complete":
        _say(console, f"This run is {run.status}: what is missing was not measured.", "bold")
    _say(console, f"Report: {folder / 'report.html'}", "")
    _say(console, words.clean(run.header.sentence, 1000) if run.header else "Nothing was judged.", "bold")


def _group(run: Run, group: view.Group, console: Console, everything: bool) -> None:
    every = lines.lines(group)
    shown = [line for line in every if everything or group.target is None or not line.folded]
    title = words.clean(group.workload.name)
    if group.target and len(run.sides) > 2:
        title += f" against {words.clean(group.target.label, 60)}"
    if group.machine:
        title += f" on {words.clean(group.machine, 60)}"
    constants = " ".join(f"{words.clean(axis)}={words.clean(value)}" for axis, value in group.constants.items())
    console.print(Text(title, style="bold"), Text(constants, style="dim"))
    if group.target is None:
        _alone(group, console)
    elif shown:
        console.print(_table(group, shown, console.width < NARROW))
        for case, said in kernels.reasons(group):
            _say(console, f"why {case}: {said}", "")
    others = lines.sequential_table(run, group)
    if group.target is None or everything:
        _beside(run, group, console)
    if others.rows:
        _say(console, f"{lines.OTHERS_WAY} ({lines.sequential_rules(run)})", "dim")
        _fitting(others, console)
    _say(console, _hidden(every, shown), "dim")


def _table(group: view.Group, shown: list[lines.Line], narrow: bool) -> Table:
    """A wide terminal has a column per axis and the times; a narrow one has the case in one column and no times."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    axes = lines.axis_names(group)
    table.add_column("verdict", no_wrap=True)
    for axis in filter(None, [" ".join(axes)] if narrow else axes):
        table.add_column(Text(axis))
    table.add_column("change of time")
    table.add_column("95 % interval")
    if not narrow:
        table.add_column("base", justify="right", no_wrap=True)
        table.add_column(Text(group.target.id if group.target else ""), justify="right", no_wrap=True)
        table.add_column("TFLOP/s")
    for line in shown:
        case = list(filter(None, [" ".join(line.values)])) if narrow else list(line.values)
        more = [] if narrow else [line.before, line.after, line.rate]
        said = "; ".join(filter(None, (line.interval, line.note)))
        verdict = Text(f"{line.mark} {line.verdict}".strip(), style=_STYLES.get(line.verdict, ""))
        table.add_row(verdict, *map(Text, (*case, line.change, said, *more)))
    return table


def _alone(group: view.Group, console: Console) -> None:
    """One branch: times with their intervals and rates, then where a call's time goes."""
    _fitting(lines.alone_table(group), console)
    phases, peers = lines.phase_table(group), lines.peer_table(group)
    if phases.rows:
        never = f"; never recorded: {', '.join(words.clean(name) for name in phases.never)}" if phases.never else ""
        _say(console, f"Phases in ms a call, from a profiled pass of their own{never}", "dim")
        _fitting(phases, console)
    for part in sections.of(group):
        _say(console, f"{part.title}: {part.text}", "dim")
        _fitting(part.table, console)
    if peers.rows:
        _say(console, "Libraries measured beside it", "dim")
        _fitting(peers, console)


def _beside(run: Run, group: view.Group, console: Console) -> None:
    found = beside.table(run, group)
    if found.rows:
        _say(console, f"With peers, and between variants. {beside.text(group)}", "dim")
        _fitting(found, console)


def _fitting(of: lines.TextTable, console: Console) -> None:
    """A table, or where it is too wide its rows one by one: a figure is never cut."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(of.header):
        figure = place >= of.left and name != "95 % interval"
        table.add_column(Text(words.clean(name)), justify="right" if figure else "left")
    for row in of.rows:
        table.add_row(*map(Text, row))
    if Console(width=10_000).measure(table).maximum <= console.width:
        console.print(table)
        return
    for row in of.rows:
        figures = (f"{name} {text}" for name, text in zip(of.header[of.left :], row[of.left :], strict=True))
        console.print(Text(f"  {' '.join(row[: of.left])}: {'; '.join(map(words.clean, figures))}"))


def _hidden(every: list[lines.Line], shown: list[lines.Line]) -> str:
    """`31 same, 2 unsupported hidden (--all)`."""
    missing = [line.verdict for line in every if line not in shown]
    counted = [f"{missing.count(verdict)} {verdict}" for verdict in dict.fromkeys(missing)]
    return f"{', '.join(counted)} hidden (--all)" if counted else ""


def _say(console: Console, text: str, style: str) -> None:
    if text:
        console.print(Text(text, style=style), soft_wrap=True)
