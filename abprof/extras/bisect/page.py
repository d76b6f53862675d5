"""A bisection as people see it: what was measured of each row in the order of the history, as lines for a terminal, and as
report.md and report.html in its folder, replaced after each step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup, escape

from abprof.extras.bisect import telling
from abprof.extras.bisect.questions import Answer
from abprof.extras.bisect.state import Given, Row, State, Step
from abprof.records.visible import visible
from abprof.report.render import asset, environment
from abprof.report.text import code
from abprof.report.text import markdown as escape_markdown
from abprof.system import files as disk
from abprof.verdict import stats

_COLUMNS = 41  # of a terminal's picture
_WIDTH, _HEIGHT, _EDGE, _LEFT = 1000, 220, 16, 64
_LEAST = 1.0  # per cent: a narrower axis would fill the picture with noise


@dataclass(frozen=True)
class Point:
    """A commit that was measured. `pct` is its change of time against the good end in per cent; None: it has none."""

    commit: str
    place: int  # in the history, 0 is the good end
    name: str
    said: str  # as it was answered, in words
    kind: str  # good, slow, open, cannot, culprit
    run: str
    pct: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Graph:
    """One row: what was measured, and the axis that holds it all, in per cent of time."""

    row: Row
    points: tuple[Point, ...]
    commits: int  # of the history
    low: float
    high: float

    def share(self, pct: float) -> float:
        """Where on the axis, 0 to 1."""
        return (pct - self.low) / (self.high - self.low)


def graphs(of: State) -> list[Graph]:
    """A graph for each row. A commit that was measured against another than the good end stands on that one's level."""
    rows = list(dict.fromkeys(given.row for step in of.steps for given in step.rows))
    return [_graph(of, row) for row in rows]


def _graph(of: State, row: Row) -> Graph:
    places = {commit: place for place, commit in enumerate((of.good, *(link.commit for link in of.links)))}
    levels, points = {of.good: 0.0}, {of.good: Point(of.good, 0, telling.name(of, of.good), "the good end", "good", "")}
    for step, given in ((each, given) for each in of.steps for given in each.rows if given.row == row):
        base, commit, answer = step.base, step.commit, given.answer
        if commit in points and base not in points:  # asked the other way round: whether what came before is slower
            base, commit, answer = commit, base, answer.turned
        if commit in levels or commit not in places:  # the first answer is the one that was asked for
            continue
        level = levels.get(base)
        if level is not None and answer.theta is not None:
            levels[commit] = level + answer.theta
        points[commit] = _point(of, step, given, commit, answer, places[commit], level)
    known = [pct for point in points.values() for pct in (point.pct, point.low, point.high) if pct is not None]
    low, high = min([0.0, *known]), max([_LEAST, *known])
    edge = (high - low) * 0.04
    ordered = tuple(sorted(points.values(), key=lambda point: point.place))
    return Graph(row, ordered, len(places), low - edge, high + edge)


def _point(of: State, step: Step, given: Given, commit: str, answer: Answer, place: int, level: float | None) -> Point:
    numbers: Mapping[str, float | None] = {}
    if level is not None and answer.theta is not None and answer.low is not None and answer.high is not None:
        bounds = (stats.percent(level + bound) for bound in (answer.theta, answer.low, answer.high))
        numbers = dict(zip(("pct", "low", "high"), bounds, strict=True))
    turned = commit != step.commit
    kind = "culprit" if commit in _culprits(of, given.row) else _kind(answer, turned=turned)
    said = _said(step.commit, answer, _TURNED) if turned else _said(step.base, answer, _AS_ASKED)
    return Point(commit, place, telling.name(of, commit), said, kind, step.run, **numbers)


_AS_ASKED = {
    "below": "not slower than {}",
    "above": "slower than {}",
    "between": "slower than {}, though not by the whole",
}
_TURNED = {
    "below": "not faster than {}",
    "above": "faster than {}",
    "between": "faster than {}, though not by the whole",
}


def _said(base: str, answer: Answer, words: Mapping[str, str]) -> str:
    return words.get(answer.said, f"{answer.said}: {answer.reason}").format(base[:10])


def _kind(answer: Answer, *, turned: bool) -> str:
    yes, no = ("good", "slow") if turned else ("slow", "good")
    return {"below": no, "above": yes, "between": yes, "unclear": "open", "cannot": "cannot"}[answer.said]


def _culprits(of: State, row: Row) -> set[str]:
    found = (finding for one in of.found if one.row == row for finding in one.findings)
    return {finding.commits[0] for finding in found if finding.kind == "culprit"}


# ---------------------------------------------------------------- terminal


_KEY = "  @ culprit; + slower than what it was asked against, o not; ? open; x cannot be measured"
_MARKS = {"good": "o", "slow": "+", "open": "?", "cannot": "x", "culprit": "@"}


def lines(of: State) -> list[str]:
    """Every row's graph, a line for each commit that was measured."""
    return [line for graph in graphs(of) for line in _lines(graph)]


def _lines(graph: Graph) -> list[str]:
    found = [f"{graph.row.label}: change of time against the good end", _KEY]
    before = -1
    for point in graph.points:
        if before >= 0 and point.place > before + 1:
            between = point.place - before - 1
            found.append(f"{'':13}{between} {'commit' if between == 1 else 'commits'} between")
        before = point.place
        pct = "" if point.pct is None else f"{point.pct:+.2f} %"
        found.append(
            f"  {point.commit[:10]} {_bar(graph, point)} {pct:>9}  {_MARKS[point.kind]} {point.name[11:50]}".rstrip()
        )
    return found


def _bar(graph: Graph, point: Point) -> str:
    signs = [" "] * _COLUMNS
    signs[_column(graph, 0.0)] = "|"
    if point.low is not None and point.high is not None and point.pct is not None:
        for column in range(_column(graph, point.low), _column(graph, point.high) + 1):
            signs[column] = "-"
    if point.pct is not None or point.kind == "good":
        signs[_column(graph, point.pct or 0.0)] = _MARKS[point.kind]
    return "".join(signs)


def _column(graph: Graph, pct: float) -> int:
    return round(graph.share(pct) * (_COLUMNS - 1))


# ---------------------------------------------------------------- pages


def write(folder: Path, of: State) -> None:
    """report.md and report.html. Raises AbprofError when the disk refuses."""
    for name, made in (("report.md", environment(escape_markdown)), ("report.html", environment(escape))):
        page = made.get_template(f"bisect.{name.rpartition('.')[2]}").render(
            of=of,
            ends=[telling.name(of, commit) for commit in (of.good, of.bad)],
            result=telling.result(of) if of.status == "complete" else [],
            weaker=telling.weaker(of),
            graphs=graphs(of),
            picture=picture,
            name=lambda commit: telling.name(of, commit),
            asked=telling.asked,
            words=telling.in_words,
            code=code,
            style=Markup(asset("report.css") + asset("bisect.css")),  # noqa: S704 - abprof's own
        )
        disk.replace(folder / name, page.encode(errors="replace"))


def picture(graph: Graph) -> Markup:
    """Commits from the good end to the bad one, and each one's change with its interval; up is slower."""

    def x(point: Point) -> float:
        return _LEFT + (_WIDTH - _LEFT - _EDGE) * point.place / max(1, graph.commits - 1)

    def y(pct: float) -> float:
        return _HEIGHT - _EDGE - (_HEIGHT - 2 * _EDGE) * graph.share(pct)

    parts = [
        f'<path class="zero" d="M{_LEFT} {y(0.0):.1f}H{_WIDTH}"/><text x="{_LEFT - 8}" y="{y(0.0) + 4:.0f}">0 %</text>'
    ]
    top = max((point.pct for point in graph.points if point.pct is not None), default=0.0)
    if graph.share(top) - graph.share(0.0) > 0.15:
        parts.append(f'<text x="{_LEFT - 8}" y="{y(top) + 4:.0f}">{top:+.1f} %</text>')
    for point in graph.points:
        inside = f"<title>{escape(visible(point.name))}: {escape(visible(point.said))}</title>"
        if point.low is not None and point.high is not None:
            inside += f'<path d="M{x(point):.1f} {y(point.low):.1f}V{y(point.high):.1f}"/>'
        shape = (
            f'<circle cx="{x(point):.1f}" cy="{y(point.pct or 0.0):.1f}" r="{7 if point.kind == "culprit" else 4}"/>'
        )
        parts.append(f'<g class="{point.kind}">{inside}{shape}</g>')
    label = escape(
        f"{len(graph.points)} of {graph.commits} commits measured, in the order of the history; up is slower"
    )
    drawn = "".join(parts)
    return Markup(f'<svg class="bisect" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">{drawn}</svg>')  # noqa: S704
