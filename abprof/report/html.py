"""report.html: one file that needs nothing else. templates/report.html holds its words, order and looks."""

from __future__ import annotations

import re
from collections.abc import Sequence

from markupsafe import Markup, escape

from abprof.model import Block, Comparison, Run, Settings

from . import facts, failures, lines, view, words
from .pages import environment

WIDTH, HEIGHT = 168, 22  # px of an interval's picture
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")


def html(run: Run, blocks: Sequence[Block]) -> str:
    """The whole report as one HTML document, without scripts and without references to anything outside."""
    made = environment(escape)
    made.filters["log"] = log_link
    groups = view.groups(run)
    return made.get_template("report.html").render(
        run=run,
        groups=groups,
        blocks=blocks,
        facts=facts,
        failures=failures,
        lines=lines,
        words=words,
        scale=scale,
        picture=picture,
    )


def scale(group: view.Group, settings: Settings) -> float:
    """Half the width of a group's axis in per cent: twice the largest threshold at least, so that noise never fills it.

    0 when no row has a number.
    """
    bounds = [
        abs(bound)
        for row in group.rows
        if row.comparison
        for bound in (row.comparison.low_pct, row.comparison.high_pct, row.comparison.pct)
        if bound is not None
    ]
    widest = max((settings.threshold_of(row.cell.id) for row in group.rows), default=0.0)
    return min(max(2 * widest, *bounds) * 1.05, 60.0) if bounds else 0.0


def picture(comparison: Comparison | None, half: float, settings: Settings) -> Markup:
    """The change and its interval on an axis of +-half per cent, faster to the left; nothing without a number."""
    if comparison is None or comparison.pct is None:
        return Markup("")
    threshold = settings.threshold_of(comparison.cell)
    margin = min(settings.margin, threshold)

    def x(pct: float) -> str:
        return f"{WIDTH / 2 + max(-1.0, min(1.0, pct / half)) * (WIDTH / 2 - 5):.1f}"

    def band(kind: str, pct: float) -> str:
        width = float(x(pct)) - float(x(-pct))
        return f'<rect class="{kind}" x="{x(-pct)}" y="1" width="{width:.1f}" height="{HEIGHT - 2}"/>'

    middle = HEIGHT / 2
    zero = f'<line class="zero" x1="{x(0)}" x2="{x(0)}" y1="0" y2="{HEIGHT}"/>'
    parts = [band("inside", threshold), band("margin", margin), zero]
    low, high = comparison.low_pct, comparison.high_pct
    if low is not None and high is not None:
        parts.append(f'<line class="whisker" x1="{x(low)}" x2="{x(high)}" y1="{middle}" y2="{middle}"/>')
        parts += [
            f'<line class="whisker" x1="{x(b)}" x2="{x(b)}" y1="{middle - 4}" y2="{middle + 4}"/>' for b in (low, high)
        ]
    parts.append(f'<circle cx="{x(comparison.pct)}" cy="{middle}" r="3.5"/>')
    said = escape(words.change(comparison))
    return Markup(  # noqa: S704
        f'<svg class="interval" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{said}">{"".join(parts)}</svg>'
    )


def log_link(path: str) -> Markup:
    """A log as a link inside the run folder; a name that is anything but a plain relative path stays text."""
    shown = escape(words.clean(path))
    if _PLAIN_PATH.fullmatch(path):
        return Markup(f'<a href="{shown}">{shown}</a>')  # noqa: S704
    return shown
