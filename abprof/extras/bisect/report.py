"""A bisection as text for a terminal, and as report.md and report.html in its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup, escape

from abprof.extras.bisect.search import Finding
from abprof.extras.bisect.steps import Bisection, Row, answer_text, change_text, name, question_text, weaker
from abprof.records.visible import visible
from abprof.report.render import asset, environment
from abprof.report.text import code
from abprof.report.text import markdown as escape_markdown
from abprof.system import files as disk
from abprof.verdict import stats

_COLUMNS = 41  # of a terminal's picture
_WIDTH, _HEIGHT, _EDGE, _LEFT = 1000, 220, 16, 64
_LEAST = 1.0  # per cent: a narrower axis would fill the picture with noise
_NAMED = 12  # commits of a range that are named
_ANSWERS = {
    "below": "not slower than {}",
    "above": "slower than {}",
    "between": "slower than {}, by a part of the whole",
}
_KINDS = {"below": "good", "above": "slow", "between": "slow", "unclear": "open", "cannot": "cannot"}
_MARKS = {"good": "o", "slow": "+", "open": "?", "cannot": "x", "culprit": "@"}
_KEY = "  @ culprit; + slower than the commit it was measured against, o not; ? open; x cannot be measured"


def decided(of: Bisection) -> bool:
    """Whether every row has its answer: culprits, or nothing slower."""
    return all(finding.kind == "culprit" for found in of.found for finding in found.findings)


def result(of: Bisection) -> list[str]:
    """The findings, row by row."""
    if not of.found:
        return [f"nothing changed: {name(of, of.good)} and {name(of, of.bad)} hold the same kernels"]
    lines = []
    for found in of.found:
        lines += [f"{found.row.label}: {_sentence(of, finding)}" for finding in found.findings]
        if not found.findings:
            ends = next(one for one in of.steps[0].rows if one.row == found.row)
            text = f"{question_text(ends).capitalize()} {answer_text(ends.answer)}"
            nothing = "nothing changed." if ends.answer.high is None or ends.answer.high >= 0 else "faster, not slower."
            if ends.answer.low is not None and ends.answer.low > 0:
                nothing = "slower, by less than the threshold (a smaller --threshold finds it)."
            lines.append(f"{found.row.label}: {nothing} {text}")
    return lines


def _sentence(of: Bisection, finding: Finding) -> str:
    last, parent, count = name(of, finding.commits[-1]), finding.parent[:10], len(finding.commits)
    change = change_text(finding.answer)
    if finding.kind == "culprit":
        return f"{last} made it slower than its parent {parent}: {change}"
    if finding.kind == "range":
        which = f" ({', '.join(commit[:10] for commit in finding.commits)})" if count <= _NAMED else ""
        return f"one of {count} commits after {parent} up to {last} made it slower: {change}{which}"
    if finding.kind == "doubtful":
        others = f" or one of {count - 1} commits that it merged or follows" if count > 1 else ""
        return f"the steps lead to {last}{others}, not confirmed against {parent}: {change}"
    return f"undecided after {parent} up to {last}: {change}"


# ---------------------------------------------------------------- the graph of a row


@dataclass(frozen=True)
class Point:
    """A measured commit. `pct`, `low`, `high`: change of time against the good end, per cent; None without a number."""

    commit: str
    place: int  # in the history, 0 is the good end
    name: str
    answer: str
    kind: str  # a key of _MARKS
    run: str
    pct: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Graph:
    """The measured commits of a row, and the ends of an axis that holds them, per cent."""

    row: Row
    points: tuple[Point, ...]
    commits: int  # of the history
    low: float
    high: float

    def share(self, pct: float) -> float:
        """Where on the axis, 0 to 1."""
        return (pct - self.low) / (self.high - self.low)


def graphs(of: Bisection) -> list[Graph]:
    """A graph for each row."""
    return [_graph(of, row) for row in dict.fromkeys(one.row for step in of.steps for one in step.rows)]


def _graph(of: Bisection, row: Row) -> Graph:
    """The first answer of each commit; its change adds to the level of the commit that it was measured against."""
    places = {commit: place for place, commit in enumerate((of.good, *(link.commit for link in of.links)))}
    culprits = {f.commits[0] for one in of.found if one.row == row for f in one.findings if f.kind == "culprit"}
    levels, points = {of.good: 0.0}, {of.good: Point(of.good, 0, name(of, of.good), "the good end", "good", "")}
    for step, answer in ((each, one.answer) for each in of.steps for one in each.rows if one.row == row):
        if step.commit in levels or step.commit not in places:
            continue
        level, numbers = levels.get(step.base), dict[str, float]()
        if level is not None and answer.theta is not None:
            levels[step.commit] = level + answer.theta
            if answer.low is not None and answer.high is not None:
                bounds = {"pct": answer.theta, "low": answer.low, "high": answer.high}
                numbers = {key: stats.percent(level + value) for key, value in bounds.items()}
        kind = "culprit" if step.commit in culprits else _KINDS[answer.result]
        said = _ANSWERS.get(answer.result, f"{answer.result}: {answer.reason}".replace("{", "(")).format(step.base[:10])
        commit, place = step.commit, places[step.commit]
        points[commit] = Point(commit, place, name(of, commit), said, kind, step.run, **numbers)
    known = [pct for point in points.values() for pct in (point.pct, point.low, point.high) if pct is not None]
    low, high = min([0.0, *known]), max([_LEAST, *known])
    edge = (high - low) * 0.04
    ordered = tuple(sorted(points.values(), key=lambda point: point.place))
    return Graph(row, ordered, len(places), low - edge, high + edge)


def lines(of: Bisection) -> list[str]:
    """Every row's graph for a terminal, a line for each measured commit."""
    found = []
    for graph in graphs(of):
        found += [f"{graph.row.label}: change of time against the good end", _KEY]
        before = -1
        for point in graph.points:
            between = point.place - before - 1
            if before >= 0 and between:
                found.append(f"{'':13}{between} {'commit' if between == 1 else 'commits'} between")
            before = point.place
            pct = "" if point.pct is None else f"{point.pct:+.2f} %"
            bar = f"{point.commit[:10]} {_bar(graph, point)} {pct:>9}  {_MARKS[point.kind]} {point.name[11:50]}"
            found.append(f"  {bar}".rstrip())
    return found


def _bar(graph: Graph, point: Point) -> str:
    def column(pct: float) -> int:
        return round(graph.share(pct) * (_COLUMNS - 1))

    signs = [" "] * _COLUMNS
    signs[column(0.0)] = "|"
    if point.low is not None and point.high is not None:
        for at in range(column(point.low), column(point.high) + 1):
            signs[at] = "-"
    if point.pct is not None or point.kind == "good":
        signs[column(point.pct or 0.0)] = _MARKS[point.kind]
    return "".join(signs)


def write(folder: Path, of: Bisection) -> None:
    """Replace report.md and report.html. Raises AbprofError when the disk refuses."""
    for file, made in (("report.md", environment(escape_markdown)), ("report.html", environment(escape))):
        page = made.get_template(f"bisect.{file.rpartition('.')[2]}").render(
            of=of,
            ends=[name(of, commit) for commit in (of.good, of.bad)],
            result=result(of) if of.status == "complete" else [],
            weaker=weaker(of),
            graphs=graphs(of),
            picture=_picture,
            name=lambda commit: name(of, commit),
            question=question_text,
            answer=answer_text,
            code=code,
            style=Markup(asset("report.css") + asset("bisect.css")),  # noqa: S704 - abprof's own
        )
        disk.replace(folder / file, page.encode(errors="replace"))


def _picture(graph: Graph) -> Markup:
    """Commits from the good end to the bad one, and each one's change with its interval; up is slower."""

    def y(pct: float) -> float:
        return _HEIGHT - _EDGE - (_HEIGHT - 2 * _EDGE) * graph.share(pct)

    zero, left = y(0.0), _LEFT - 8
    parts = [f'<path class="zero" d="M{_LEFT} {zero:.1f}H{_WIDTH}"/><text x="{left}" y="{zero + 4:.0f}">0 %</text>']
    top = max((point.pct for point in graph.points if point.pct is not None), default=0.0)
    if graph.share(top) - graph.share(0.0) > 0.15:
        parts.append(f'<text x="{left}" y="{y(top) + 4:.0f}">{top:+.1f} %</text>')
    for point in graph.points:
        x = _LEFT + (_WIDTH - _LEFT - _EDGE) * point.place / max(1, graph.commits - 1)
        inside = f"<title>{escape(visible(point.name))}: {escape(visible(point.answer))}</title>"
        if point.low is not None and point.high is not None:
            inside += f'<path d="M{x:.1f} {y(point.low):.1f}V{y(point.high):.1f}"/>'
        inside += f'<circle cx="{x:.1f}" cy="{y(point.pct or 0.0):.1f}" r="{7 if point.kind == "culprit" else 4}"/>'
        parts.append(f'<g class="{point.kind}">{inside}</g>')
    label = f"{len(graph.points)} of {graph.commits} commits measured, in the order of the history; up is slower"
    drawn = (
        f'<svg class="bisect" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
    )
    return Markup(drawn)  # noqa: S704 - every text in it is escaped above
