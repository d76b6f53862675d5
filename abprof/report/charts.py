"""Line charts as inline SVG, for sections whose table has the same numbers beside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from abprof.records.visible import visible
from abprof.report import words

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 170, 14, 46  # px around the axes; names of lines stand on the right
_DASHES = ("", "6 3", "2 3", "9 3 2 3")


@dataclass(frozen=True)
class Series:
    """A named line; `side` decides its colour and mark. Points are (x, y)."""

    name: str
    side: str
    points: tuple[tuple[float, float], ...]
    joined: bool = True


@dataclass(frozen=True)
class Scale:
    """From values to px, with the values that have a tick."""

    low: float
    high: float
    start: float
    end: float
    log: bool
    ticks: tuple[tuple[float, str], ...]

    def __call__(self, value: float) -> float:
        low, high, at = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        share = (at - low) / (high - low) if high > low else 0.5
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)


def lines(
    series: Sequence[Series],
    *,
    y: str,
    x: str = "",
    ticks: Sequence[str] = (),
    log_x: bool = False,
    log_y: bool = False,
    bands: Sequence[tuple[float, float, float, float]] = (),
) -> Markup:
    """Lines with a mark at each point. `ticks` names the places 0, 1, ... of the x axis; a band is (x from, to, y from, to).

    Nothing without two points. Names stand at the lines' right ends, so that no colour has to be matched.
    """
    points = [point for one in series for point in one.points]
    if len(points) < 2:
        return Markup("")
    across = _across([p[0] for p in points], ticks, log_x, bands)
    ys = [p[1] for p in points] + [bound for band in bands for bound in band[2:]]
    up = _up(ys, log_y)
    parts = []
    for first, last, low, high in bands:
        x0, x1, y0, y1 = across(first), across(last), up(high), up(low)
        parts.append(f'<path class="band" d="M{x0:.0f} {y0:.0f}H{x1:.0f}V{y1:.0f}H{x0:.0f}"/>')
    parts += _axes(across, up, x, y)
    parts += [_line(one, number, across, up) for number, one in enumerate(series) if one.points]
    parts += _names(series, up)
    said = escape(
        visible(f"{y}{f' over {x}' if x else ''}, {words.plural(len(series), 'line')}; the numbers are in the table")
    )
    inside = "".join(parts)
    return Markup(f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{said}">{inside}</svg>')  # noqa: S704


def _across(values: list[float], ticks: Sequence[str], log: bool, bands: Sequence[tuple[float, ...]]) -> Scale:
    if ticks:
        low, high = -0.3, len(ticks) - 0.7
        named = [(float(i), text) for i, text in enumerate(ticks)]
    else:
        values = values + [bound for band in bands for bound in band[:2]]
        low, high = min(values), max(values)
        log = log and low > 0
        distinct = sorted(set(values))
        named = [(v, _short(v)) for v in (distinct if log and len(distinct) <= 9 else _nice(low, high))]
    return Scale(low, high, LEFT, WIDTH - RIGHT, log, tuple(named))


def _up(values: list[float], log: bool) -> Scale:
    log = log and min(values) > 0
    if log:
        low, high = min(values) / 1.2, max(values) * 1.2
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        marks = [m * 10.0**e for e in range(first, last + 1) for m in (1, 2, 5) if low <= m * 10.0**e <= high]
    else:
        low, high = min(0.0, *values), max(values) * 1.08
        marks = _nice(low, high)
    return Scale(low, high, HEIGHT - BOTTOM, TOP, log, tuple((mark, _short(mark)) for mark in marks))


def _nice(low: float, high: float) -> list[float]:
    """Some four round values from low to high."""
    if high <= low:
        return [low]
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough)
    return [i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _axes(across: Scale, up: Scale, x: str, y: str) -> list[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    found = [f'<path class="axes" d="M{LEFT} {TOP}V{bottom}H{right}"/>']
    for value, text in up.ticks:
        at = up(value)
        found.append(
            f'<path class="grid" d="M{LEFT} {at:.0f}H{right}"/><text x="{LEFT - 6}" y="{at + 4:.0f}">{text}</text>'
        )
    for value, text in across.ticks:
        found.append(
            f'<text class="mid" x="{across(value):.0f}" y="{bottom + 16}">{escape(words.clean(text, 14))}</text>'
        )
    found.append(f'<text class="mid" x="{(LEFT + right) // 2}" y="{bottom + 36}">{escape(words.clean(x, 40))}</text>')
    found.append(f'<text class="start" x="{LEFT + 6}" y="{TOP}">{escape(words.clean(y, 40))}</text>')
    return found


def _line(one: Series, number: int, across: Scale, up: Scale) -> str:
    points = " ".join(f"{across(x):.0f},{up(y):.0f}" for x, y in one.points)
    dash = _DASHES[number // 2 % len(_DASHES)]
    style = f' stroke-dasharray="{dash}"' if dash and one.joined else ""
    kind = "" if one.joined else " dots"
    return f'<g class="{"base" if one.side == "base" else "target"}{kind}"><polyline points="{points}"{style}/></g>'


def _names(series: Sequence[Series], up: Callable[[float], float]) -> list[str]:
    """Each line's name beside its last point, pushed apart where they would lie on each other."""
    places = sorted((up(one.points[-1][1]) + 4, i) for i, one in enumerate(series) if one.points)
    found, last = [], 0.0
    for at, i in places:
        last = max(at, last + 13)
        kind = "base" if series[i].side == "base" else "target"
        mark = "○" if kind == "base" else "■"
        name = escape(words.clean(series[i].name, 26))
        found.append(f'<text class="start {kind}" x="{WIDTH - RIGHT + 8}" y="{last:.0f}">{mark} {name}</text>')
    return found


def _short(value: float) -> str:
    """A tick's text: 8192, 0.5, 1.2M."""
    for size, unit in ((1e9, "G"), (1e6, "M")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}" if value == int(value) else f"{value:.3g}"
