"""history.html: a trend for every cell over all nights, in one file that needs nothing else and has no script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec
from markupsafe import Markup, escape

from abprof.extras.history.changes import Change, find
from abprof.extras.history.fleet import Shift
from abprof.extras.history.index import Index, Question, Row
from abprof.extras.history.pictures import Calendar, picture, reach_of
from abprof.extras.history.series import trends
from abprof.extras.history.trend import Trend
from abprof.records import UNREADABLE
from abprof.report.html import _part
from abprof.report.pages import environment

FILE = "history.html"


@dataclass(frozen=True)
class Line:
    """One cell's line of the page."""

    name: str
    picture: Markup
    changes: tuple[Change, ...]
    nights: int
    latest: str
    reach: float  # per cent, up and down


@dataclass(frozen=True)
class NewMachine:
    """A night whose machine is not that of the night before, and what is other about it."""

    night: int
    began: str
    differs: str


def page(index: Index, series: str) -> str:
    """The page of one series. An index without nights of it gives a page that says so."""
    nights = [night for night in index.nights(series) if night.kind != "against"]
    found = list(trends(index.values(Question(series=series))))
    changes, shifts = find(found)
    return render(series, nights, found, changes, shifts)


def render(
    series: str, nights: Sequence[Row], found: Sequence[Trend], changes: Sequence[Change], shifts: Sequence[Shift]
) -> str:
    """The page as text."""
    machines = _machines(nights)
    calendar = Calendar.of([(night.number, night.began) for night in nights], [it.night for it in machines])
    by_trend: dict[str, list[Change]] = {}
    for change in changes:
        by_trend.setdefault(change.trend, []).append(change)
    lines = [_line(trend, tuple(by_trend.get(trend.name, ())), shifts, calendar) for trend in found]
    last = nights[-1].number if nights else 0
    lines.sort(key=lambda line: (-max((change.found for change in line.changes), default=0), line.name))
    return (
        environment(escape)
        .get_template("history.html")
        .render(
            series=series,
            nights=nights,
            lines=lines,
            changes=sorted(changes, key=lambda change: (-change.found, change.trend)),
            shifts=list(reversed(shifts)),
            machines=list(reversed(machines)),
            gaps=calendar.gaps,
            suspected=[change for change in changes if change.state == "suspected" and change.found == last],
            began={night.number: night.began[:10] for night in nights},
            head={night.number: night.head[:10] for night in nights},
            style=Markup(_part("report.css") + _part("history.css")),  # noqa: S704 - abprof's own
        )
    )


def _machines(nights: Sequence[Row]) -> list[NewMachine]:
    found = []
    for before, after in pairwise(nights):
        if before.machine != after.machine:
            old, new = _facts(before.machine), _facts(after.machine)
            names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
            differs = "; ".join(f"{name} {old.get(name, 'none')} to {new.get(name, 'none')}" for name in names)
            found.append(NewMachine(after.number, after.began[:10], differs))
    return found


def _facts(machine: str) -> dict[str, Any]:
    """What the index says of a machine, which others can write to as well."""
    try:
        facts = msgspec.json.decode(machine)
    except UNREADABLE:
        return {}
    return facts if isinstance(facts, dict) else {}


def _line(trend: Trend, changes: tuple[Change, ...], shifts: Sequence[Shift], calendar: Calendar) -> Line:
    times = [value for value in trend.head if value > 0]
    latest = f"{times[-1] / 1e6:.4g} ms" if times else "not measured"
    return Line(
        trend.name, picture(trend, changes, shifts, calendar), changes, len(trend.numbers), latest, reach_of(trend)
    )
