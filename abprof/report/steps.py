"""A group's arms by cell and side, and what its sections (tables with a chart beside) have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from abprof.records import Observation, Value
from abprof.report import numbers, words
from abprof.report.charts import Series
from abprof.report.lines import TextTable
from abprof.report.view import Group, Row, label

LINES_UP_TO = 8  # of a chart
ArmOf = Callable[[Row], Observation | None]


@dataclass(frozen=True)
class Section:
    """One view of a workload's rows. `chart` is empty where there is nothing to draw, and shows what the table says."""

    title: str
    text: str
    table: TextTable
    chart: Markup = Markup("")  # noqa: RUF009 - a constant


@dataclass(frozen=True)
class Steps:
    """One side's arms of one cell, by variant."""

    metric: str
    arms: Mapping[str, Observation | None]

    def get(self, variant: str) -> Observation | None:
        """The variant's observation, None where there is none."""
        return self.arms.get(variant)

    def ns(self, variant: str) -> float | None:
        """Its judged time."""
        return numbers.time_ns(self.get(variant), self.metric)


def sides(group: Group) -> list[tuple[str, ArmOf]]:
    """`base`, and the group's target if it has one, each with what takes its arm from a row."""
    base: list[tuple[str, ArmOf]] = [("base", lambda row: row.base)]
    return [*base, (group.target.id, lambda row: row.target)] if group.target else base


def by_cell(group: Group) -> Iterator[tuple[Row, str, Steps]]:
    """One of the cell's rows, the side, and that side's arms; cells in the order of the matrix."""
    cells: dict[str, list[Row]] = {}
    for row in group.rows:
        cells.setdefault(row.cell.id, []).append(row)
    places = {row.cell.id: tuple(order(value) for value in row.cell.params.values()) for row in group.rows}
    for id in sorted(cells, key=places.__getitem__):
        for side, arm in sides(group):
            yield cells[id][0], side, Steps(cells[id][0].metric, {row.variant: arm(row) for row in cells[id]})


def shown(group: Group) -> tuple[str, ...]:
    """The ladder's steps, then the other variants that have a time in some row; all variants where there is no ladder."""
    known = dict.fromkeys(row.variant for row in group.rows if row.variant)
    if not group.workload.ladder:
        return tuple(known)
    timed = {row.variant for row in group.rows for _, arm in sides(group) if numbers.time_ns(arm(row), row.metric)}
    return (*group.workload.ladder, *(name for name in known if name in timed - set(group.workload.ladder)))


def order(value: Value) -> tuple[int, float, str]:
    """Numbers by size, then texts."""
    size = number(value)
    return (1, 0.0, str(value)) if size is None else (0, size, "")


def case(group: Group, row: Row, without: str = "") -> str:
    """The row's cell by the axes that tell cells apart, but for one; the workload's name when none is left."""
    axes = [axis for axis in group.axes if axis != without]
    return label(row.cell, axes) if axes else words.clean(group.workload.name)


def named(group: Group, row: Row, side: str) -> str:
    """The case, with the side where there are two."""
    return f"{case(group, row)} {side}" if group.target else case(group, row)


def some(lines: Sequence[Series]) -> list[Series]:
    """As many lines as a chart can hold."""
    return [line for line in lines if line.points][:LINES_UP_TO]


def number(value: Value | None) -> float | None:
    """A value that is a number, None for any other."""
    return None if value is None or isinstance(value, bool | str) else float(value)
