"""Comparisons beside base against target: peers with every side, variants of one side with each other.

They are judged like side against side (abprof/verdict/comparison.py), so they have the same verdicts and intervals here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from abprof.records import Cell, Comparison, Run
from abprof.report import words
from abprof.report.lines import TextTable, arm_name, change_text, note
from abprof.report.tables import Line, csv_text, plain
from abprof.report.view import Group, label

TEXT = "The second against the first, judged like side against side"
HEADER = ("verdict", "case", "first", "second", "change of time", "95 % interval", "note")
ROWS_UP_TO = 300  # on a page and a terminal; comparisons.csv has all of them
_TOLD = ("both", "unsupported", "missing")  # an arm that did not run is told where each is told
_NUMBERS = ("pct", "low_pct", "high_pct", "certifiable_pct", "read_pct", "clock_pct", "sustained_pct", "graph_pct", "p")


def _shown(group: Group) -> list[Comparison]:
    return [one for one in group.others if not any(code.endswith(_TOLD) for code in one.reasons)]


def text(group: Group) -> str:
    """What the table is, and what of it is not shown."""
    count = len(_shown(group))
    return TEXT if count <= ROWS_UP_TO else f"{TEXT}. The first {ROWS_UP_TO} of {count} rows; comparisons.csv has all"


def table(run: Run, group: Group) -> TextTable:
    """A row a comparison, with its verdict. Those of arms that cannot run here are left out."""
    cells = {cell.id: cell for cell in run.cells}
    shown = _shown(group)
    return TextTable(HEADER, tuple(_row(run, group, cells[one.cell], one) for one in shown[:ROWS_UP_TO]), 4)


def _row(run: Run, group: Group, cell: Cell, one: Comparison) -> tuple[str, ...]:
    verdict = f"{words.MARKS[one.verdict]} {one.verdict}"
    arms = arm_name(run, one.from_), arm_name(run, one.to)
    return (verdict, label(cell, group.axes), *arms, change_text(one), words.bounds(one), note(one))


def comparisons_csv(run: Run) -> str:
    """comparisons.csv: a row per comparison of any family, in the order of run.json. Numbers unrounded, changes of time
    in per cent."""
    families = list(_families(run))
    cells = {cell.id: cell for cell in run.cells}
    empty = _line(Cell(id="", workload="", kernel="", suite="", params={}), "", _NONE)
    axes = dict.fromkeys(f"param_{name}" for _, rows in families for one in rows for name in cells[one.cell].params)
    lines = (_line(cells[one.cell], family, one) for family, rows in families for one in rows)
    return csv_text([*list(empty)[:2], *axes, *list(empty)[2:]], lines)


_NONE = Comparison(cell="", from_="", to="", metric="", verdict="unclear")


def _families(run: Run) -> Iterator[tuple[str, Sequence[Comparison]]]:
    peers = [one for one in run.comparisons if one.with_peer]
    yield "target", [one for one in run.comparisons if not one.with_peer]
    yield from (("peer", peers), ("variant", run.within), ("control", run.controls))


def _line(cell: Cell, family: str, one: Comparison) -> Line:
    line = {"cell": cell.id, "workload": cell.workload}
    line |= {f"param_{name}": plain(str(value)) for name, value in cell.params.items()}
    line |= {"family": family, "from": one.from_, "to": one.to, "metric": one.metric, "verdict": one.verdict}
    line |= {"reasons": plain(" ".join(one.reasons)), "discovery": str(one.discovery)}
    line |= {"epochs": str(one.epochs), "look": str(one.look)}
    values = {name: getattr(one, name) for name in _NUMBERS}
    return line | {name: "" if value is None else repr(value) for name, value in values.items()}
