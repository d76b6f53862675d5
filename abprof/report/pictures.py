"""Pictures as inline SVG. They need no library, no script and no network, print well, and follow the page's colours:
200 cells with their turns are some 100 KB, where the leanest plotting library's page is 900 KB before its first cell.
Every picture has its numbers as text beside it; its `aria-label` says what it shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from abprof.model import Comparison, Settings

from . import words

WIDTH, HEIGHT, MIDDLE = 168, 22, 11  # px of an interval's picture
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
FARTHEST = 60.0  # per cent of time that an axis shows at most


# ---------------------------------------------------------------- one interval


def reach(comparisons: Iterable[Comparison | None], settings: Settings) -> float:
    """Half the width of an axis in per cent: twice the largest threshold at least, so that noise never fills it.

    0 when no comparison has a number.
    """
    known = [c for c in comparisons if c is not None and c.pct is not None]
    bounds = [abs(bound) for c in known for bound in (c.low_pct, c.high_pct, c.pct) if bound is not None]
    widest = max((settings.threshold_of(c.cell) for c in known), default=0.0)
    return min(max(2 * widest, *bounds) * 1.05, FARTHEST) if bounds else 0.0


class Axis:
    """The axis of one table: +-`half` per cent of time, faster to the left. Its bands are the picture's background."""

    def __init__(self, half: float, settings: Settings) -> None:
        self.half, self.settings = half, settings

    def interval(self, comparison: Comparison | None) -> Markup:
        """The change and its interval; nothing without a number. What it shows stands beside it as text."""
        if comparison is None or comparison.pct is None:
            return Markup("")
        low, high, parts = comparison.low_pct, comparison.high_pct, ""
        if low is not None and high is not None:
            left, right = self._x(low), self._x(high)
            parts = f'<path d="M{left} {MIDDLE}H{right}M{left} 7v8M{right} 7v8"/>'
        limit = self.settings.threshold_of(comparison.cell)
        own = "" if limit == self.settings.threshold else f' style="{self.bands(limit)}"'
        dot = f'<circle cx="{self._x(comparison.pct)}" cy="{MIDDLE}"/>'
        return Markup(f"<svg{own}>{parts}{dot}</svg>")  # noqa: S704

    def bands(self, limit: float | None = None) -> Markup:
        """Half the widths in px of the threshold's band and the margin's, as CSS variables."""
        limit = self.settings.threshold if limit is None else limit
        widths = (
            [self._wide(min(pct, self.half)) for pct in (limit, min(self.settings.margin, limit))]
            if self.half
            else [0, 0]
        )
        return Markup("--t:{:.1f}px;--m:{:.1f}px").format(*widths)

    def _wide(self, pct: float) -> float:
        return pct / self.half * (WIDTH / 2 - 5)

    def _x(self, pct: float) -> str:
        return f"{WIDTH / 2 + self._wide(max(-self.half, min(self.half, pct))):.0f}"


# ---------------------------------------------------------------- all cells


def strip(comparisons: Sequence[Comparison], settings: Settings) -> Markup:
    """Every row with a number in the order of its change, each with its interval, over the threshold's band.

    Slower is up. A verdict has its own shape as well as its colour. Intervals are cut at the axis.
    """
    ordered = sorted((c for c in comparisons if c.pct is not None), key=lambda c: (c.pct or 0.0, c.cell, c.to))
    half = reach(ordered, settings)
    if not half:
        return Markup("")
    left, width, height = 52, 1000, 190
    step = (width - left - 10) / len(ordered)

    def y(pct: float) -> float:
        return height / 2 - max(-1.0, min(1.0, pct / half)) * (height / 2 - 8)

    parts = [_level(y, left, width, settings, half)]
    for verdict in words.MARKS:
        mine = [(left + (i + 0.5) * step, c) for i, c in enumerate(ordered) if c.verdict == verdict]
        whiskers = "".join(
            f"M{x:.1f} {y(c.low_pct):.1f}V{y(c.high_pct):.1f}"
            for x, c in mine
            if c.low_pct is not None and c.high_pct is not None
        )
        dots = " ".join(f"{x:.1f},{y(c.pct or 0.0):.1f}" for x, c in mine)
        if mine:
            parts.append(f'<g class="{verdict}"><path d="{whiskers}"/><polyline points="{dots}"/></g>')
    label = f"{words.plural(len(ordered), 'row')} from the fastest to the slowest change, {words.signed(ordered[0].pct or 0.0)}"
    return _svg("strip", width, height, "".join(parts), f"{label} to {words.signed(ordered[-1].pct or 0.0)}")


def _level(y: Callable[[float], float], left: int, width: int, settings: Settings, half: float) -> str:
    """The band of the threshold, that of the margin, zero, and what they are called."""
    limit, margin = settings.threshold, min(settings.margin, settings.threshold)
    found = [
        f'<path class="{kind}" d="M{left} {y(pct):.1f}H{width}V{y(-pct):.1f}H{left}"/>'
        for kind, pct in (("inside", limit), ("margin", margin))
    ]
    found.append(f'<path class="zero" d="M{left} {y(0):.1f}H{width}"/>')
    named = [(half, f"{half:+.1f} %"), (-half, f"{-half:+.1f} %")]
    if y(-limit) - y(limit) < 24:  # px: two lines of text
        named.append((0.0, f"±{limit:g} %"))
    elif half > 1.6 * limit:
        named += [(limit, f"{limit:+g} %"), (-limit, f"{-limit:+g} %")]
    for pct, text in named:
        found.append(f'<text x="{left - 6}" y="{min(max(y(pct) + 4, 11.0), y(-half) + 4):.0f}">{text}</text>')
    return "".join(found)


# ---------------------------------------------------------------- one cell's turns


@dataclass(frozen=True)
class Track:
    """One arm's turns in the order they ran, thinned, and the quantiles of all of them (5, 25, 50, 75, 95 %), in ns."""

    arm: str
    values: tuple[float, ...]
    quantiles: tuple[float, ...]


def turns(tracks: Sequence[Track]) -> Markup:
    """Turns from the first to the last, and beside them their distribution, on one axis of time.

    Each height is one letter (A is the top), which report.js draws: as paths 200 cells' turns alone would be 100 KB more.
    Five letters of the quantiles come first. The axis spans at least 2 % of the median, so that quiet cells look quiet.
    """
    known = [track for track in tracks if track.values]
    if not known:
        return Markup("")
    low = min(min(*t.values, t.quantiles[0]) for t in known)
    high = max(max(*t.values, t.quantiles[4]) for t in known)
    least = 0.02 * known[0].quantiles[2]
    if high - low < least:
        low, high = (low + high - least) / 2, (low + high + least) / 2
    span = (high - low) or 1.0
    drawn = "".join(
        f" data-{track.arm}={''.join(_LETTERS[round((high - v) / span * 63)] for v in (*track.quantiles, *track.values))}"
        for track in known
    )
    labels = f"<text x=60 y=13>{words.duration(high)}</text><text x=60 y=76>{words.duration(low)}</text>"
    return Markup(f"<svg class=turns role=img aria-label=Turns{drawn}>{labels}</svg>")  # noqa: S704


def _svg(kind: str, width: int, height: int, inside: str, label: str = "") -> Markup:
    said = f'role="img" aria-label="{escape(label)}"' if label else 'aria-hidden="true"'
    return Markup(f'<svg class="{kind}" viewBox="0 0 {width} {height}" {said}>{inside}</svg>')  # noqa: S704
