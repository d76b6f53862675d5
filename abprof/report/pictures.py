"""Pictures as inline SVG. They need no library, no script and no network, print well, and follow the page's colours:
200 cells with their turns are some 100 KB, where the leanest plotting library's page is 900 KB before its first cell.
Every picture has its numbers as text beside it; its `aria-label` says what it shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from abprof.records import Comparison, Options
from abprof.records.visible import visible
from abprof.report import words

WIDTH, HEIGHT, MIDDLE = 168, 22, 11  # px of an interval's picture
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
FARTHEST = 60.0  # per cent of time that an axis shows at most


# ---------------------------------------------------------------- one interval


def reach(comparisons: Iterable[Comparison | None], settings: Options) -> float:
    """Half the width of an axis in per cent: twice the largest threshold at least, so that noise never fills it.

    0 when no comparison has a number.
    """
    known = [c for c in comparisons if c is not None and c.pct is not None]
    bounds = [abs(bound) for c in known for bound in (c.low_pct, c.high_pct, c.pct) if bound is not None]
    widest = max((settings.threshold_of(c.cell) for c in known), default=0.0)
    return min(max(2 * widest, *bounds) * 1.05, FARTHEST) if bounds else 0.0


class Axis:
    """The axis of one table: +-`half` per cent of time, faster to the left. Its bands are the picture's background."""

    def __init__(self, half: float, settings: Options) -> None:
        self.half, self.settings = half, settings

    def interval(self, comparison: Comparison | None) -> Markup:
        """The change and its interval; nothing without a number. What it shows stands beside it as text."""
        if comparison is None or comparison.pct is None:
            return Markup("")
        pct, low, high = comparison.pct, comparison.low_pct, comparison.high_pct
        left, right = (pct if bound is None else bound for bound in (low, high))
        limit = self.settings.threshold_of(comparison.cell)
        own = "" if limit == self.settings.threshold else f' style="{self.bands(limit)}"'
        # The ends' caps and the dot in the middle are markers, which report.css sets: here every byte counts a row.
        line = f'<path d="M{self._x(left)} {MIDDLE}H{self._x(pct)}H{self._x(right)}"/>'
        return Markup(f"<svg{own}>{line}</svg>")  # noqa: S704

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


@dataclass(frozen=True)
class Place:
    """A row on the strip: shares of its width, and of its height from the top."""

    verdict: str
    x: float
    y: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Strip:
    """Every row with a number in the order of its change, on an axis of +-`half` per cent. Slower is up."""

    half: float
    places: tuple[Place, ...]
    label: str

    def y(self, pct: float) -> float:
        """The share of the height, from the top; what is beyond the axis stands at its end."""
        return 0.5 - max(-1.0, min(1.0, pct / self.half)) / 2


def lay_out(comparisons: Sequence[Comparison], settings: Options) -> Strip | None:
    """Where each row stands; None when none has a number."""
    ordered = sorted((c for c in comparisons if c.pct is not None), key=lambda c: (c.pct or 0.0, c.cell, c.to))
    half = reach(ordered, settings)
    if not half:
        return None
    first, last = (words.signed(ordered[i].pct or 0.0) for i in (0, -1))
    label = f"{words.plural(len(ordered), 'row')} from the fastest to the slowest change, {first} to {last}"
    bare = Strip(half, (), label)
    places = [
        Place(
            c.verdict,
            (i + 0.5) / len(ordered),
            bare.y(c.pct or 0.0),
            None if c.low_pct is None else bare.y(c.low_pct),
            None if c.high_pct is None else bare.y(c.high_pct),
        )
        for i, c in enumerate(ordered)
    ]
    return Strip(half, tuple(places), label)


def strip(comparisons: Sequence[Comparison], settings: Options) -> Markup:
    """Every row with a number, each with its interval, over the threshold's band. A verdict has its own shape as well as
    its colour; nothing without a number."""
    laid = lay_out(comparisons, settings)
    if laid is None:
        return Markup("")
    left, width, height, edge = 52, 1000, 190, 8

    def x(share: float) -> float:
        return left + share * (width - left - 10)

    def y(share: float) -> float:
        return edge + share * (height - 2 * edge)

    parts = [_levels(lambda pct: y(laid.y(pct)), left, width, settings, laid.half)]
    for verdict in words.MARKS:
        mine = [place for place in laid.places if place.verdict == verdict]
        whiskers = "".join(
            f"M{x(p.x):.1f} {y(p.low):.1f}V{y(p.high):.1f}" for p in mine if p.low is not None and p.high is not None
        )
        dots = " ".join(f"{x(place.x):.1f},{y(place.y):.1f}" for place in mine)
        if mine:
            parts.append(f'<g class="{verdict}"><path d="{whiskers}"/><polyline points="{dots}"/></g>')
    return _svg("strip", width, height, "".join(parts), laid.label)


def levels(settings: Options, half: float) -> list[tuple[float, str]]:
    """The heights that are named: the ends, and the threshold, once where both its lines would lie on each other."""
    limit = settings.threshold
    ends = [(half, f"{half:+.1f} %"), (-half, f"{-half:+.1f} %")]
    if limit / half < 0.15:
        return [*ends, (0.0, f"±{limit:g} %")]
    return [*ends, (limit, f"{limit:+g} %"), (-limit, f"{-limit:+g} %")] if half > 1.6 * limit else ends


def _levels(y: Callable[[float], float], left: int, width: int, settings: Options, half: float) -> str:
    """The band of the threshold, that of the margin, zero, and what they are called."""
    limit, margin = settings.threshold, min(settings.margin, settings.threshold)
    found = [
        f'<path class="{kind}" d="M{left} {y(pct):.1f}H{width}V{y(-pct):.1f}H{left}"/>'
        for kind, pct in (("inside", limit), ("margin", margin))
    ]
    found.append(f'<path class="zero" d="M{left} {y(0):.1f}H{width}"/>')
    for pct, text in levels(settings, half):
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

    Each height is one letter (A is the top), which report.js draws, with the axis's ends: as paths 200 cells' turns alone
    would be 100 KB more. Five letters of the quantiles come first. The axis spans at least 2 % of the median, so that
    quiet cells look quiet.
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
    ends = f"{words.duration(high)}|{words.duration(low)}"
    return Markup(f'<svg class=turns data-ends="{ends}"{drawn}></svg>')  # noqa: S704


def _svg(kind: str, width: int, height: int, inside: str, label: str = "") -> Markup:
    said = f'role="img" aria-label="{escape(visible(label))}"' if label else 'aria-hidden="true"'
    return Markup(f'<svg class="{kind}" viewBox="0 0 {width} {height}" {said}>{inside}</svg>')  # noqa: S704
