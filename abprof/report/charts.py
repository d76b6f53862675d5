"""Pictures: inline SVG that needs no library, script or network and follows the page's colours, and one PNG.

Every picture has its numbers as text beside it; its `aria-label` says what it shows.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from abprof.records import Comparison, Options, Verdict
from abprof.records.quantities import plural
from abprof.records.visible import visible
from abprof.report import sentences
from abprof.report.text import clean, signed

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

FARTHEST = 60.0  # per cent of time that an axis shows at most


def _svg(kind: str, width: int, height: int, inside: str, label: str) -> Markup:
    aria = escape(visible(label))
    return Markup(f'<svg class="{kind}" viewBox="0 0 {width} {height}" role="img" aria-label="{aria}">{inside}</svg>')  # noqa: S704


# ---------------------------------------------------------------- one interval in a table


class Axis:
    """The axis of one table: +-`half` per cent of time, faster to the left. Its bands are the picture's background."""

    def __init__(self, comparisons: Iterable[Comparison | None], options: Options) -> None:
        known = [c for c in comparisons if c is not None and c.pct is not None]
        bounds = [abs(bound) for c in known for bound in (c.low_pct, c.high_pct, c.pct) if bound is not None]
        widest = max((options.threshold_of(c.cell) for c in known), default=0.0)
        # Twice the largest threshold at least, so that noise never fills it; 0 without a number.
        self.half = min(max(2 * widest, *bounds) * 1.05, FARTHEST) if bounds else 0.0
        self.options = options

    def interval(self, row: Comparison | None) -> Markup:
        """The change and its interval; nothing without a number. The caps and the dot are markers of report.css."""
        if row is None or row.pct is None:
            return Markup("")
        left, right = (row.pct if bound is None else bound for bound in (row.low_pct, row.high_pct))
        limit = self.options.threshold_of(row.cell)
        own = "" if limit == self.options.threshold else f' style="{self.bands(limit)}"'
        line = "H".join(f"{84 + self._px(max(-self.half, min(self.half, pct))):.0f}" for pct in (row.pct, right))
        start = f"{84 + self._px(max(-self.half, min(self.half, left))):.0f}"
        return Markup(f'<svg{own}><path d="M{start} 11H{line}"/></svg>')  # noqa: S704

    def bands(self, limit: float | None = None) -> Markup:
        """Half the widths in px of the threshold's band and the margin's, as CSS variables."""
        limit = self.options.threshold if limit is None else limit
        widths = [self._px(min(pct, self.half)) if self.half else 0 for pct in (limit, min(self.options.margin, limit))]
        return Markup("--t:{:.1f}px;--m:{:.1f}px").format(*widths)

    def _px(self, pct: float) -> float:
        return pct / self.half * 79


# ---------------------------------------------------------------- all cells


class Strip:
    """Every row with a number in the order of its change, over the threshold's band; slower is up.

    `rows` have (verdict, share of the width, and shares of the height from the top: change, lower bound, upper bound).
    """

    def __init__(self, comparisons: Iterable[Comparison], options: Options) -> None:
        known = sorted((c for c in comparisons if c.pct is not None), key=lambda c: (c.pct or 0.0, c.cell, c.to))
        self.half, self.options = Axis(known, options).half, options
        self.label = ""
        if known:
            first, last = (signed(row.pct or 0.0) for row in (known[0], known[-1]))
            self.label = f"{plural(len(known), 'row')} from the fastest to the slowest change, {first} to {last}"
        places = [(0.5 + i) / len(known) for i in range(len(known))]
        self.rows: list[tuple[Verdict, float, float, float | None, float | None]] = [
            (c.verdict, x, self.y(c.pct or 0.0), *(None if b is None else self.y(b) for b in (c.low_pct, c.high_pct)))  # type: ignore[misc]
            for x, c in zip(places, known, strict=True)
        ]

    def y(self, pct: float) -> float:
        """The share of the height from the top; what is beyond the axis stands at its end."""
        return 0.5 - max(-1.0, min(1.0, pct / self.half)) / 2

    def bands(self) -> tuple[float, float]:
        """The threshold and the margin, per cent."""
        return self.options.threshold, min(self.options.margin, self.options.threshold)

    def levels(self) -> list[tuple[float, str]]:
        """The heights with a name: the ends, and the threshold, once where both its lines would lie on each other."""
        limit = self.options.threshold
        ends = [(self.half, f"{self.half:+.1f} %"), (-self.half, f"{-self.half:+.1f} %")]
        if limit / self.half < 0.15:
            return [*ends, (0.0, f"±{limit:g} %")]
        return [*ends, (limit, f"{limit:+g} %"), (-limit, f"{-limit:+g} %")] if self.half > 1.6 * limit else ends

    def svg(self) -> Markup:
        """The strip as SVG; nothing without a number. A verdict has its own shape as well as its colour."""
        if not self.rows:
            return Markup("")
        left, width, height = 52, 1000, 190

        def at(share: float) -> float:
            return 8 + share * (height - 16)

        parts = []
        for kind, pct in zip(("inside", "margin"), self.bands(), strict=True):
            top, bottom = at(self.y(pct)), at(self.y(-pct))
            parts.append(f'<path class="{kind}" d="M{left} {top:.1f}H{width}V{bottom:.1f}H{left}"/>')
        parts.append(f'<path class="zero" d="M{left} {at(0.5):.1f}H{width}"/>')
        for pct, name in self.levels():
            parts.append(_text(left - 6, min(max(at(self.y(pct)) + 4, 11.0), at(1.0) + 4), name))
        for verdict in sentences.MARKS:
            mine = [(left + x * (width - left - 10), *of) for kind, x, *of in self.rows if kind == verdict]
            whiskers = (f"M{x:.1f} {at(a):.1f}V{at(b):.1f}" for x, _, a, b in mine if a is not None and b is not None)
            dots = " ".join(f"{x:.1f},{at(y):.1f}" for x, y, _, _ in mine if y is not None)
            if mine:
                path = f'<path d="{"".join(whiskers)}"/>'
                parts.append(f'<g class="{verdict}">{path}<polyline points="{dots}"/></g>')
        return _svg("strip", width, height, "".join(parts), self.label)

    def png(self, sentence: str, below: str) -> bytes:
        """The strip as a picture for chats and slides, with two lines of text, drawn by Pillow."""
        from PIL import Image, ImageDraw, ImageFont

        image = Image.new("RGB", (1600, 700), "white")
        draw = ImageDraw.Draw(image)
        ink, soft = "#16202c", "#556270"
        draw.text((40, 30), _latin(sentence, 92), fill=ink, font=ImageFont.load_default(34))
        draw.text((40, 88), _latin(below, 130), fill=soft, font=ImageFont.load_default(24))
        if self.rows:
            self._draw(draw, soft)
            for pct, name in self.levels():
                draw.text((116, 150 + self.y(pct) * 490), name, fill=soft, font=ImageFont.load_default(22), anchor="rm")
            legend = "change of time with its 95 % interval, from the fastest to the slowest, slower is up; "
            legend += f"band: threshold {self.options.threshold:g} %"
            draw.text((130, 662), legend, fill=soft, font=ImageFont.load_default(22))
        else:
            draw.text((40, 350), "No row has a number.", fill=soft, font=ImageFont.load_default(26))
        out = io.BytesIO()
        image.save(out, "PNG", optimize=True)
        return out.getvalue()

    def _draw(self, draw: ImageDraw, soft: str) -> None:
        def at(share: float) -> float:
            return 150 + share * 490

        for pct, colour in zip(self.bands(), ("#eaeef2", "#d7dfe7"), strict=True):
            draw.rectangle((130, at(self.y(pct)), 1570, at(self.y(-pct))), fill=colour)
        draw.line((130, at(0.5), 1570, at(0.5)), fill=soft)
        colours = {"slower": "#a64b00", "faster": "#0a5a9c", "unclear": "#6a4a9c", "broken": "#a3123f"}
        for verdict, share, middle, low, high in self.rows:
            x, y, colour = 130 + share * 1440, at(middle), colours.get(verdict, soft)
            if low is not None and high is not None:
                draw.line((x, at(low), x, at(high)), fill=colour, width=2)
            way = {"slower": -1, "faster": 1}.get(verdict)
            if way:
                draw.polygon([(x - 8, y - 7 * way), (x + 8, y - 7 * way), (x, y + 8 * way)], fill=colour)
            elif verdict == "unclear":
                draw.ellipse((x - 6, y - 6, x + 6, y + 6), outline=colour, width=2)
            else:
                draw.ellipse((x - 5, y - 5, x + 5, y + 5), fill=colour)


def _latin(text: str, letters: int) -> str:
    """Letters that the font has, cut to the picture's width."""
    return clean(text, letters - 2).replace("…", "...").encode("latin-1", "replace").decode("latin-1")


# ---------------------------------------------------------------- line charts

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 300, 64, 170, 14, 46  # px; names of lines stand on the right


@dataclass(frozen=True)
class Series:
    """A named line; `side` decides its colour and mark. Points are (x, y)."""

    name: str
    side: str
    points: tuple[tuple[float, float], ...]
    joined: bool = True


def _scale(low: float, high: float, start: float, end: float, log: bool) -> Callable[[float], float]:
    """From values to px."""

    def px(value: float) -> float:
        first, last, at = (math.log(v) if log else v for v in (low, high, value))
        share = (at - first) / (last - first) if last > first else 0.5
        return start + min(max(share, 0.0), 1.0) * (end - start)

    return px


def lines(
    series: Sequence[Series],
    *,
    y: str,
    x: str = "",
    ticks: Sequence[str] = (),
    log_x: bool = False,
    bands: Sequence[tuple[float, float, float, float]] = (),
) -> Markup:
    """Lines with a mark at each point, their names at the right end. `ticks` names the places 0, 1, ... of the x axis; a band
    is (x from, to, y from, to). Nothing without two points."""
    points = [point for one in series for point in one.points]
    if len(points) < 2:
        return Markup("")
    xs = [p[0] for p in points] + [bound for band in bands if not ticks for bound in band[:2]]
    log_x = log_x and min(xs) > 0 and not ticks
    distinct = sorted(set(xs))
    if ticks:
        marks, (low, high) = list(enumerate(ticks)), (-0.3, len(ticks) - 0.7)
    else:
        low, high = min(xs), max(xs)
        marks = [(v, _short(v)) for v in (distinct if log_x and len(distinct) <= 9 else _nice(low, high))]  # type: ignore[misc]
    across = _scale(low, high, LEFT, WIDTH - RIGHT, log_x)
    ys = [p[1] for p in points] + [bound for band in bands for bound in band[2:]]
    bottom, top = min(0.0, *ys), max(ys) * 1.08
    up = _scale(bottom, top, HEIGHT - BOTTOM, TOP, log=False)
    heights = _nice(bottom, top)
    floor, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = [
        f'<path class="band" d="M{across(a):.0f} {up(d):.0f}H{across(b):.0f}V{up(c):.0f}H{across(a):.0f}"/>'
        for a, b, c, d in bands
    ]
    parts.append(f'<path class="axes" d="M{LEFT} {TOP}V{floor}H{right}"/>')
    for value in heights:
        at = up(value)
        parts.append(f'<path class="grid" d="M{LEFT} {at:.0f}H{right}"/>{_text(LEFT - 6, at + 4, _short(value))}')
    parts += [_text(across(at), floor + 16, clean(name, 14), "mid") for at, name in marks]
    parts += [_text((LEFT + right) // 2, floor + 36, clean(x, 40), "mid"), _text(LEFT + 6, TOP, clean(y, 40), "start")]
    last = 0.0
    drawn = [one for one in series if one.points]
    for one in drawn:
        spots = " ".join(f"{across(px):.0f},{up(py):.0f}" for px, py in one.points)
        kind = "base" if one.side == "base" else "target"
        parts.append(f'<g class="{kind}{"" if one.joined else " dots"}"><polyline points="{spots}"/></g>')
    for height, one in sorted(((up(one.points[-1][1]) + 4, one) for one in drawn), key=lambda pair: pair[0]):
        last = max(height, last + 13)  # names that would lie on each other are pushed apart
        kind, mark = ("base", "○") if one.side == "base" else ("target", "■")
        parts.append(_text(right + 8, last, f"{mark} {clean(one.name, 26)}", f"start {kind}"))
    label = f"{y}{f' over {x}' if x else ''}, {plural(len(series), 'line')}; the numbers are in the table"
    return _svg("chart", WIDTH, HEIGHT, "".join(parts), label)


def _text(x: float, y: float, sentence: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.0f}" y="{y:.0f}">{escape(sentence)}</text>'


def _nice(low: float, high: float) -> list[float]:
    """Some four round values from low to high."""
    if high <= low:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / 4))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= (high - low) / 4)
    return [i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _short(value: float) -> str:
    """A tick's text: 8192, 0.5, 1.2M."""
    for width, unit in ((1e9, "G"), (1e6, "M")):
        if abs(value) >= width:
            return f"{value / width:g}{unit}"
    return f"{value:g}" if value == int(value) else f"{value:.3g}"
