"""The ladder: each step's time and rates beside each other, against the first step, the one before, and the peers."""

from __future__ import annotations

from collections.abc import Iterator

from abprof.report import charts, gains, numbers, words
from abprof.report.charts import Series
from abprof.report.lines import TextTable, time_text
from abprof.report.steps import Section, Steps, by_cell, case, named, shown, sides, some
from abprof.report.view import Group, Row


def ladder(group: Group) -> Iterator[Section]:
    """One section, if the workload declares a ladder. Steps in order, then variants that stand beside it."""
    steps = group.workload.ladder
    if not steps:
        return
    extra, names = _Extra(group), shown(group)
    between = ["of the step before"] if len(steps) > 2 else []  # of two steps the baseline is the one before
    rows: list[tuple[str, ...]] = []
    lines: list[Series] = []
    for cell, side, seen in by_cell(group):
        points = []
        for place, name in enumerate(names):
            before = steps[place - 1] if 0 < place < len(steps) else ""
            first, last = (gains.gain(group, seen.get(one), seen.get(name), seen.metric) for one in (steps[0], before))
            rate = words.rate(numbers.tflops(cell.cell, seen.ns(name)))
            told = (case(group, cell), side, words.clean(name), time_text(seen.get(name), seen.metric), rate)
            gained = [first.text, *(last.text for _ in between), *extra.over_peers(cell, seen, name)]
            rows.append((*told, *extra.figures(cell, side, seen, name), *gained))
            points += [(float(place), first.ratio)] if first.ratio and place < len(steps) else []
        lines.append(Series(named(group, cell, side), side, tuple(points)))
    gains_of = ("of the baseline", *between, *(f"of {words.clean(name)}" for name in extra.peers))
    header = ("case", "side", "step", "time", "TFLOP/s", *extra.header, *gains_of)
    drawn = charts.lines(some(lines), y="speed-up of the baseline", ticks=tuple(map(words.clean, steps)))
    yield Section("Ladder", _text(steps[0], extra), TextTable(header, tuple(rows), 3), drawn)


def _text(first: str, extra: _Extra) -> str:
    text = f"Steps in order; the baseline is {words.clean(first)}. "
    text += "A speed-up with an interval is of turns beside each other, with the verdict by the rules for sides; one "
    text += "without is a ratio of the times shown."
    if extra.axis:
        text += (
            f" Scaling efficiency is the growth of a step's TFLOP/s since its smallest {extra.axis}, over the growth of "
            f"{extra.axis}."
        )
    return text


class _Extra:
    """Columns that stand only where the workload has what they need: bytes, peers, a scaled axis."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.bytes = any(row.cell.bytes for row in group.rows)
        known = gains.peers(group)
        self.peers = {name: seen for name, seen in known.items() if any(one.metrics for one in seen.values())}
        self.scaled = {side: gains.efficiency(group, arm) for side, arm in sides(group)}
        self.axis = words.clean(group.workload.scaled) if any(self.scaled.values()) else ""

    @property
    def header(self) -> tuple[str, ...]:
        return (*(("GB/s", "MB") if self.bytes else ()), *(["scaling efficiency"] if self.axis else []))

    def over_peers(self, row: Row, seen: Steps, name: str) -> Iterator[str]:
        """This step's speed-up over each peer."""
        for by_cell_id in self.peers.values():
            yield gains.gain(self.group, by_cell_id.get(row.cell.id), seen.get(name), seen.metric).text

    def figures(self, row: Row, side: str, seen: Steps, name: str) -> Iterator[str]:
        """This step's other figures, in the header's order."""
        if self.bytes:
            yield words.rate(numbers.gbps(row.cell, seen.ns(name)))
            yield words.NOT_RECORDED if row.cell.bytes is None else f"{row.cell.bytes / 1e6:.3f}"
        if self.axis:
            share = self.scaled[side].get((row.cell.id, name))
            yield "-" if share is None else f"{share:.3f}"
