"""Several targets against one base, beside each other: a table of each workload, before the parts of each target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from abprof.report import words
from abprof.report.lines import Line, TextTable, axis_names, lines
from abprof.report.view import Group

TITLE = "All targets"
ROWS_UP_TO = 300  # of a table


@dataclass(frozen=True)
class Part:
    """One workload (on one model of device): a row a cell, with base's time and each target's verdict and change."""

    title: str
    table: TextTable
    further: int  # rows that need no one, or that the table has no room for

    @property
    def left_out(self) -> str:
        return f"{words.plural(self.further, 'row')} not shown" if self.further else ""


def parts(groups: Sequence[Group], *, folded: bool = True) -> list[Part]:
    """None with fewer than two targets. `folded`: also the rows that are the same against every target."""
    found: dict[tuple[str, str], list[Group]] = {}
    for group in groups:
        if group.target is not None:
            found.setdefault((group.workload.name, group.machine), []).append(group)
    return [_part(group, folded) for group in found.values() if len(group) > 1]


def _part(groups: Sequence[Group], folded: bool) -> Part:
    first = groups[0]
    every = list(_rows(groups))
    kept = [texts for texts, needed in every if folded or needed][:ROWS_UP_TO]
    axes = axis_names(first) or ("case",)
    title = words.clean(first.workload.name) + (f" on {words.clean(first.machine, 60)}" if first.machine else "")
    return Part(title, TextTable((*axes, "base", *_names(groups)), tuple(kept), len(axes)), len(every) - len(kept))


def _rows(groups: Sequence[Group]) -> Iterator[tuple[tuple[str, ...], bool]]:
    """The texts of each row, and whether any target's needs a person; those that the first targets need one for first."""
    of = [{(line.row.cell.id, line.row.variant): line for line in lines(group)} for group in groups]
    for key in dict.fromkeys(key for known in (*_pressing(of), *of) for key in known):
        told = [known.get(key) for known in of]
        line = next(one for one in told if one)
        yield (
            (*(line.values or (line.case,)), line.before, *map(_text, told)),
            any(one and not one.folded for one in told),
        )


def _pressing(of: Sequence[dict[tuple[str, str], Line]]) -> list[list[tuple[str, str]]]:
    return [[key for key, line in known.items() if not line.folded] for known in of]


def _text(line: Line | None) -> str:
    """`▲ 12.3 % slower (11.9 to 12.7 % slower)`; another verdict than that direction is named before its change."""
    if line is None:
        return words.NOT_RECORDED
    way = line.change.endswith(f" {line.verdict}")
    said = line.change if way else ": ".join(filter(None, (line.verdict, line.change)))
    judged = line.row.comparison
    interval = f" ({line.interval})" if judged and judged.pct is not None else ""
    return f"{line.mark} {said}{interval}".strip()


def _names(groups: Sequence[Group]) -> tuple[str, ...]:
    """The targets' labels; with the side's name where two have one label."""
    sides = [group.target for group in groups if group.target]
    labels = [words.clean(side.label, 40) for side in sides]
    return tuple(
        label if labels.count(label) == 1 else f"{label} ({side.id})" for side, label in zip(sides, labels, strict=True)
    )
