"""One cell's trend as SVG: absolute time and ratio chain in per cent of where they began. Gaps stay gaps."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

import numpy as np
from markupsafe import Markup

from abprof.extras.history.changes import Change
from abprof.extras.history.fleet import Shift
from abprof.extras.history.trend import Floats, Trend
from abprof.records.visible import visible

WIDTH, HEIGHT, PAD = 720.0, 96.0, 8.0
LEAST = 3.0  # per cent up and down: a smaller axis would fill the picture with noise
POINTS = 220  # of a line: what a screen can show


@dataclass(frozen=True)
class Calendar:
    """Where each night stands from left to right, by its date as far as dates go on; and where lines are cut."""

    place: dict[int, float]  # night -> x
    breaks: frozenset[int]  # nights before which some were missed
    gaps: tuple[tuple[int, float], ...]  # (night, days since the one before)
    machines: frozenset[int]  # nights that began on another machine

    @classmethod
    def of(cls, nights: Sequence[tuple[int, str]], machines: Sequence[int]) -> Calendar:
        """From (number, began). A clock that jumped back or a date that cannot be read counts as one usual night."""
        days = [_days(began) for _, began in nights]
        steps = [after - before for before, after in pairwise(days)]
        usual = statistics.median([step for step in steps if step > 0] or [1.0])
        at, x = {}, 0.0
        gaps = []
        for i, (number, _) in enumerate(nights):
            step = steps[i - 1] if i else 0.0
            if i:
                x += step if step > 0 else usual
            if step > 1.6 * usual:
                gaps.append((number, step))
            at[number] = x
        width = max(x, 1e-9)
        place = {number: PAD + (WIDTH - 2 * PAD) * x / width for number, x in at.items()}
        return cls(place, frozenset(number for number, _ in gaps), tuple(gaps), frozenset(machines))


def _days(began: str) -> float:
    try:
        return datetime.fromisoformat(began).timestamp() / 86400
    except ValueError:
        return math.nan


def picture(trend: Trend, changes: Sequence[Change], shifts: Sequence[Shift], calendar: Calendar) -> Markup:
    """The picture, which says in words what it shows."""
    level, chain = _level(trend), _chain(trend)
    reach = reach_of(trend)
    label = f"Trend of {trend.name} over {len(trend.numbers)} nights, {-reach:.0f} to {reach:.0f} % of time; {_words(changes)}"

    def y(pct: float) -> float:
        return HEIGHT / 2 - pct / reach * (HEIGHT / 2 - PAD)

    parts = [f'<path class="zero" d="M0 {HEIGHT / 2:.0f}H{WIDTH:.0f}"/>']
    parts += [
        _upright("machine", calendar.place[night], f"another machine from night {night}")
        for night in sorted(calendar.machines & set(trend.numbers))
    ]
    for shift in (it for it in shifts if it.night in calendar.place):
        said = f"the machine: {shift.pct:+.1f} % in all cells, night {shift.night}"
        parts.append(_upright("shift", calendar.place[shift.night], said))
    for name, values in (("chain", chain), ("level", level)):
        parts.append(f'<path class="{name}" d="{_path(trend, values, calendar, y)}"/>')
    parts += [_marked(change, calendar.place.get(change.night, PAD)) for change in changes]
    size = f'viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" preserveAspectRatio="none"'
    shown = Markup('<svg class="trend" {} role="img" aria-label="{}">').format(Markup(size), visible(label))  # noqa: S704
    return shown + Markup("".join(parts) + "</svg>")  # noqa: S704 - numbers and our own words


def reach_of(trend: Trend) -> float:
    """How far the picture reaches up and down, in per cent."""
    both = np.concatenate([_level(trend), _chain(trend)])
    return max(LEAST, float(np.nanmax(np.abs(both))) if np.isfinite(both).any() else 0.0) * 1.1


def _words(changes: Sequence[Change]) -> str:
    told = [f"{change.state} {change.pct:+.1f} % since night {change.night}" for change in changes]
    return "; ".join(told) or "no change"


def _upright(kind: str, x: float, said: str) -> str:
    return f'<path class="{kind}" d="M{x:.0f} 0V{HEIGHT:.0f}"><title>{said}</title></path>'


def _marked(change: Change, x: float) -> str:
    """A filled triangle for a confirmed change, an open circle for a suspected one."""
    way, shape = ("slower", "M-6 5H6L0 -6Z") if change.pct > 0 else ("faster", "M-6 -5H6L0 6Z")
    mark = '<circle r="5"/>' if change.state == "suspected" else f'<path d="{shape}"/>'
    said = f"{change.state}: {change.pct:+.1f} %, {change.kind}, since night {change.night}"
    return f'<g class="{change.state} {way}" transform="translate({x:.0f} {PAD:.0f})"><title>{said}</title>{mark}</g>'


def _level(trend: Trend) -> Floats:
    """The head's time in per cent of the first; on another machine it goes on from where the old one ended, because its
    first base is the old one's last head."""
    log = np.full(len(trend.numbers), np.nan)
    offset, before = None, math.nan
    for i, head in enumerate(trend.head):
        if not head > 0:
            continue
        if offset is None:
            offset = math.log(head)
        elif i and trend.machine[i] != trend.machine[i - 1] and trend.base[i] > 0 and math.isfinite(before):
            offset = math.log(trend.base[i]) - before
        log[i] = before = math.log(head) - offset
    return np.asarray(np.expm1(log) * 100)


def _chain(trend: Trend) -> Floats:
    """The product of the ratios so far, in per cent."""
    return np.asarray(np.expm1(np.cumsum(np.nan_to_num(trend.ratio))) * 100)


def _path(trend: Trend, values: Floats, calendar: Calendar, y: Callable[[float], float]) -> str:
    text, pen = list[str](), False
    kept = set(_thin(values))
    for i, number in enumerate(trend.numbers):
        if number in calendar.breaks or number in calendar.machines or not math.isfinite(values[i]):
            pen = False
        if i not in kept or not math.isfinite(values[i]) or number not in calendar.place:
            continue
        text.append(f"{'L' if pen else 'M'}{calendar.place[number]:.0f} {y(float(values[i])):.0f}")
        pen = True
    return "".join(text)


def _thin(values: Floats) -> Iterator[int]:
    """Indexes of at most POINTS values: of each stretch the lowest and the highest, so that no spike is lost."""
    if len(values) <= POINTS:
        yield from range(len(values))
        return
    for part in np.array_split(np.arange(len(values)), POINTS // 2):
        known = part[np.isfinite(values[part])]
        if len(known):
            yield from sorted({int(known[np.argmin(values[known])]), int(known[np.argmax(values[known])])})
