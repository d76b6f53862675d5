"""Write history.html: the trend of every cell over all nights, in one file without scripts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from markupsafe import Markup, escape

from abprof.extras.nightly.changes import Change, Floats, Shift, Trend, find_changes, levels, trends
from abprof.extras.nightly.history import History
from abprof.records.quantities import signed
from abprof.records.visible import visible
from abprof.report import asset, environment

FILE = "history.html"
_WIDTH, _HEIGHT, _PAD = 720.0, 96.0, 8.0
_LEAST = 3.0  # smallest half-height of a trend's axis, in per cent; a smaller axis would only show noise


def history_page(history: History, series: str) -> str:
    """Return the nights of `series` as an HTML page, with the cells that changed last at the top."""
    nights, found = history.nights(series), list(trends(history.values(series)))
    changes, shifts = find_changes(found)
    step = (_WIDTH - 2 * _PAD) / max(len(nights) - 1, 1)
    at = {night.number: _PAD + step * place for place, night in enumerate(nights)}
    moved = [(before.machine, after) for before, after in pairwise(nights) if before.machine != after.machine]
    machines = {night.number: _difference(old, night.machine) for old, night in moved}
    by_trend: dict[str, list[Change]] = {}
    for change in changes:
        by_trend.setdefault(change.trend, []).append(change)
    last = {name: max(change.found for change in of_trend) for name, of_trend in by_trend.items()}
    ordered = sorted(found, key=lambda trend: (-last.get(trend.name, 0), trend.name))
    template = environment(escape).get_template("history.html")
    return template.render(
        series=series,
        nights=nights,
        lines=[_line(trend, by_trend.get(trend.name, []), shifts, machines, at) for trend in ordered],
        changes=sorted(changes, key=lambda change: (-change.found, change.trend)),
        shifts=list(reversed(shifts)),
        machines=list(reversed(machines.items())),
        began={night.number: night.began[:10] for night in nights},
        head={night.number: night.head[:10] for night in nights},
        style=Markup(asset("report.css") + asset("history.css")),  # noqa: S704 - abprof's own
    )


def _difference(before: str, after: str) -> str:
    old, new = (msgspec.json.decode(machine, type=dict[str, str]) for machine in (before, after))
    names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    return "; ".join(f"{name} {old.get(name, 'none')} to {new.get(name, 'none')}" for name in names)


def _line(
    trend: Trend, changes: Sequence[Change], shifts: Sequence[Shift], machines: dict[int, str], at: dict[int, float]
) -> dict[str, Any]:
    level = levels(trend)
    reach = max(_LEAST, float(np.nanmax(np.abs(level))) if np.isfinite(level).any() else 0.0) * 1.1
    words = "; ".join(f"{signed(change.pct)} since night {change.night}" for change in changes) or "no change"
    label = f"Trend of {trend.name} over {len(trend.numbers)} nights, {-reach:.0f} to {reach:.0f} % of time; {words}"
    marks = [("machine", night, f"another machine from night {night}") for night in machines]
    marks += [("shift", it.night, f"machine shift: {signed(it.pct)} in all cells, night {it.night}") for it in shifts]
    parts = [f'<path class="zero" d="M0 {_HEIGHT / 2:.0f}H{_WIDTH:.0f}"/>']
    for kind, night, title in marks:
        if night in at:
            parts.append(f'<path class="{kind}" d="M{at[night]:.0f} 0V{_HEIGHT:.0f}"><title>{title}</title></path>')
    parts.append(f'<path class="level" d="{_path(trend, level, reach, machines, at)}"/>')
    for change in changes:
        way, shape = ("slower", "M-6 5H6L0 -6Z") if change.pct > 0 else ("faster", "M-6 -5H6L0 6Z")
        title = f"{signed(change.pct)} since night {change.night}"
        move = f"translate({at.get(change.night, _PAD):.0f} {_PAD:.0f})"
        parts.append(f'<g class="change {way}" transform="{move}"><title>{title}</title><path d="{shape}"/></g>')
    size = Markup(f'viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" preserveAspectRatio="none"')  # noqa: S704 - numbers
    picture = Markup('<svg class="trend" {} role="img" aria-label="{}">').format(size, visible(label))
    times = [value for value in trend.head if value > 0]
    return {
        "name": trend.name,
        "picture": picture + Markup("".join(parts) + "</svg>"),  # noqa: S704 - numbers and our own words
        "nights": len(trend.numbers),
        "latest": f"{times[-1] / 1e6:.4g} ms" if times else "not measured",
        "reach": reach,
    }


def _path(trend: Trend, level: Floats, reach: float, machines: dict[int, str], at: dict[int, float]) -> str:
    text, pen = list[str](), False
    for number, value in zip(trend.numbers, level, strict=True):
        known = math.isfinite(value) and number in at
        pen = pen and known and number not in machines
        if known:
            y = _HEIGHT / 2 - float(value) / reach * (_HEIGHT / 2 - _PAD)
            text.append(f"{'L' if pen else 'M'}{at[number]:.0f} {y:.0f}")
            pen = True
    return "".join(text)
