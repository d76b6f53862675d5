"""Draw a run's changes: a chart of all rows, as SVG within the page and as a PNG, and the tree of a row's call."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray

from abprof.records import Arm, Block, CellHistory, Comparison, Launch, Observation, Options
from abprof.records.quantities import plural, signed
from abprof.records.visible import visible
from abprof.report import sentences
from abprof.report.text import clean, duration, levels, span
from abprof.verdict import stats

Floats = NDArray[np.float64]
FARTHEST = 60.0  # per cent of time up to which an interval stretches the axis
_FEWEST_TURNS = 8  # of a density
_CLOCK_LEAVES = 0.2  # share of the distance of two modes up to which the clock explains them: time x clock is equal


def sparkline(of: CellHistory) -> Markup:
    """Return a cell's nights as a small SVG picture, with a mark where the time changed. Its title has dates and times."""
    step, width, height = 5, 5 * len(of.ns) + 6, 20
    points = [(2 + step * place, 3 + (1 - level) * (height - 6)) for place, level in enumerate(levels(of.ns))]
    line = f'<polyline points="{" ".join(f"{x},{y:.1f}" for x, y in points)}"/>'
    at = of.dates.index(of.since) if of.since in of.dates else None
    mark = "" if at is None else f'<path d="M{points[at][0]} 0V{height}"/>'
    x, y = points[-1]
    title = ", ".join(f"{date} {duration(ns)}" for date, ns in zip(of.dates, of.ns, strict=True))
    return Markup('<svg class="spark" width="{}" height="{}" role="img"><title>{}</title>{}</svg>').format(
        width, height, f"Nights of {clean(of.series, 60)}: {title}", Markup(f'{mark}{line}<circle cx="{x}" cy="{y:.1f}" r="2"/>')  # noqa: S704
    )  # fmt: skip


class Turns:
    """All turns of one arm in the judged blocks of a cell, an array for each fact."""

    def __init__(self, blocks: Sequence[Block], arm: str) -> None:
        found = []
        for epoch, block in enumerate(block for block in blocks if arm in block.arms):
            mine, dropped = block.arms.index(arm), frozenset(block.rejected)
            started = [*block.start_order, Arm.of(arm).worker].index(Arm.of(arm).worker)
            before = -1
            for number, row in enumerate(block.rounds):
                for place, turn in enumerate(row):
                    if turn.arm == mine and number not in dropped:
                        found.append((turn.value, turn.mhz, epoch, started, place, before))
                    before = turn.arm
        every = np.array(found, dtype=float).reshape(-1, 6).T
        self.ns, mhz, epochs, self.started, self.place, self.before = every
        self.epochs = [epochs == epoch for epoch in np.unique(epochs)]  # of each the turns
        self.medians = np.array([np.median(self.ns[mine]) for mine in self.epochs])
        self.mhz = mhz * (mhz > 0).all()  # 0, not known, if a reading is missing

    def modes(self) -> str:
        """Describe two modes of the times: over the medians of epochs, each of which has one process, else over the turns
        within epochs, in half of them or more. Return "" if there is one mode."""
        each, medians = self.epochs, self.medians
        if at := stats.two_modes(medians):
            mhz, started = (np.array([known[mine].mean() for mine in each]) for known in (self.mhz, self.started))
            factors = {"the clock": mhz, "the order in which workers started": started}
            return _modes(medians, medians > at, "processes", factors, "the process")
        splits = [stats.two_modes(self.ns[mine]) for mine in each]
        split = [(mine, at) for mine, at in zip(each, splits, strict=True) if at is not None]
        if not split or len(split) < min(2, len(each)) or 2 * len(split) < len(each):
            return ""
        inside = np.concatenate([np.flatnonzero(mine) for mine, _ in split])
        high = np.concatenate([self.ns[mine] > at for mine, at in split])
        known = {"the clock": self.mhz, "the place in the round": self.place, "the arm before": self.before}
        return _modes(self.ns[inside], high, "turns", {name: of[inside] for name, of in known.items()}, "")

    def bandwidth(self) -> float:
        """Return Silverman's bandwidth, in ns. Equal times have a width of 0.01 %, too."""
        apart = np.concatenate([self.ns[mine] - at for mine, at in zip(self.epochs, self.medians, strict=True)])
        if not apart.any():  # one turn an epoch
            apart = self.ns - np.median(self.ns)
        low, high = np.quantile(apart, (0.25, 0.75))
        spread = min(filter(None, (float(apart.std()), float(high - low) / 1.34)), default=0.0)
        return float(max(0.9 * spread * len(apart) ** -0.2, 1e-4 * np.median(self.ns)))


def _modes(ns: Floats, high: NDArray[np.bool_], units: str, factors: dict[str, Floats], otherwise: str) -> str:
    """Describe two modes of `ns` and the first of `factors` that they go with, else `otherwise`."""
    fast, slow = float(np.median(ns[~high])), float(np.median(ns[high]))
    mhz = factors.pop("the clock")
    if mhz.all():
        low_clock, high_clock = float(np.median(mhz[high])), float(np.median(mhz[~high]))
        unexplained = abs(math.log(slow / fast) - math.log(high_clock / low_clock))
        if unexplained < _CLOCK_LEAVES * math.log(slow / fast):
            otherwise, factors = "the clock", {}
        else:
            factors = {"the clock": (mhz > (low_clock + high_clock) / 2).astype(float), **factors}
    factor = next((name for name, of in factors.items() if stats.goes_with(high, of)), otherwise)
    return sentences.two_modes((fast, slow), (int((~high).sum()), int(high.sum())), units, factor)


class Densities:
    """The distributions of the times of a cell's turns, a curve for each side: kernel density estimates with normal
    kernels and the bandwidth of Silverman's rule, 0.9 min(sd, IQR / 1.34) n^(-1/5), of the n distances to the medians of
    epochs: processes that differ stay apart."""

    def __init__(self, blocks: Sequence[Block], arms: Mapping[str, str]) -> None:
        """Read the turns of `arms`, from the name of a side to its arm."""
        found = {side: Turns(blocks, arm) for side, arm in arms.items()}
        self.turns = {side: turns for side, turns in found.items() if len(turns.ns) >= _FEWEST_TURNS}
        modes = {side: turns.modes() for side, turns in self.turns.items()}
        self.modes = {side: of for side, of in modes.items() if of}

    def svg(self) -> Markup:
        """Return the curves as SVG. Each has a line at its median."""
        width, height, points = 420, 110, 84
        widths = {side: turns.bandwidth() for side, turns in self.turns.items()}
        ends = [(*np.quantile(turns.ns, (0.01, 0.99)), 3 * widths[side]) for side, turns in self.turns.items()]
        low, high = min(low - more for low, _, more in ends), max(high + more for _, high, more in ends)
        grid, finest = np.linspace(low, high, points + 1), (high - low) / points
        curves = {side: _density(turns.ns, max(widths[side], finest), grid) for side, turns in self.turns.items()}
        top = max(float(curve.max()) for curve in curves.values())
        parts, said = [], []
        for side, curve in curves.items():
            ys = [round(height - 4 - (height - 10) * float(y) / top) for y in curve]
            steps = " ".join(f"{width // points} {after - before}" for before, after in pairwise(ys))
            ns = self.turns[side].ns
            fast, middle, slow = (float(at) for at in np.quantile(ns, (0.05, 0.5, 0.95)))
            x = (middle - low) / (high - low) * width
            parts.append(f'<path class="{side}" d="M0 {ys[0]}l{steps}M{x:.0f} {height - 4}v-8"/>')
            said.append(f"{side}: median {duration(middle)}, 90 % of {len(ns)} turns within {span(fast, slow)}")
        for x, anchor, at in ((0, "start", low), (width, "end", high)):
            parts.append(f'<text x="{x}" y="{height + 12}" style="text-anchor:{anchor}">{duration(at)}</text>')
        head = f'<svg class="density" viewBox="-2 0 {width + 4} {height + 16}" role="img">'
        title = f"<title>{'; '.join(said)}</title>"
        return Markup(f"{head}{title}{''.join(parts)}</svg>")  # noqa: S704 - numbers and names of sides


def _density(ns: Floats, width: float, grid: Floats) -> Floats:
    """Return the estimated density at each point of `grid`, from times that are counted in 1000 bins."""
    counts, edges = np.histogram(ns, 1000, (float(grid[0]), float(grid[-1])))
    centres, full = (edges[1:] + edges[:-1]) / 2, counts > 0
    apart = (grid[:, None] - centres[None, full]) / width
    return np.asarray(np.exp(-0.5 * apart**2) @ counts[full] / (width * len(ns)))


class Strip:
    """A chart of the change of every row, sorted from fastest to slowest. Shaded bands show threshold and margin."""

    def __init__(self, comparisons: Iterable[Comparison], options: Options) -> None:
        self.rows = sorted((c for c in comparisons if c.pct is not None), key=lambda c: (c.pct or 0.0, c.cell, c.to))
        ends = [abs(end) for c in self.rows for end in (c.low_pct, c.high_pct) if end is not None]
        far, self.limit = max(ends, default=0.0), options.threshold
        # Every change is on the axis. Intervals stretch the axis up to FARTHEST; noise alone never fills it.
        self.half = 1.05 * max(2 * self.limit, min(far, FARTHEST), *(abs(c.pct or 0.0) for c in self.rows))
        self.cut = "a line at the edge goes on beyond it" if far > self.half else ""
        self.bands = self.limit, min(options.margin, self.limit)
        self.levels = [(pct, f"{pct:+.1f} %") for pct in (self.half, -self.half)] + [(0.0, f"±{self.limit:g} %")]

    def y(self, pct: float) -> float:
        """Return the height of `pct` in the chart, from 0 (top) to 1 (bottom). Values beyond the axis get 0 or 1."""
        return 0.5 - max(-1.0, min(1.0, pct / self.half)) / 2

    def svg(self) -> Markup:
        """Return the chart as SVG. Verdicts differ in shape as well as in colour."""
        left, width, height = 52, 1000, 190

        def at(pct: float) -> float:
            return 8 + self.y(pct) * (height - 16)

        parts = []
        for kind, pct in zip(("inside", "margin"), self.bands, strict=True):
            parts.append(f'<path class="{kind}" d="M{left} {at(pct):.1f}H{width}V{at(-pct):.1f}H{left}"/>')
        parts.append(f'<path class="zero" d="M{left} {at(0):.1f}H{width}"/>')
        for pct, name in self.levels:
            y = min(max(at(pct) + 4, 11.0), height - 4)
            parts.append(f'<text x="{left - 6}" y="{y:.0f}">{escape(name)}</text>')
        for verdict in sentences.MARKS:
            mine = [(left + (0.5 + place) / len(self.rows) * (width - left - 10), row)
                    for place, row in enumerate(self.rows) if row.verdict == verdict]  # fmt: skip
            whiskers = "".join(f"M{x:.1f} {at(row.low_pct):.1f}V{at(row.high_pct):.1f}" for x, row in mine
                               if row.low_pct is not None and row.high_pct is not None)  # fmt: skip
            dots = " ".join(f"{x:.1f},{at(row.pct or 0.0):.1f}" for x, row in mine)
            parts += [f'<g class="{verdict}"><path d="{whiskers}"/><polyline points="{dots}"/></g>'] if mine else []
        first, last = (signed(row.pct or 0.0) for row in (self.rows[0], self.rows[-1]))
        label = f"{plural(len(self.rows), 'row')} from the fastest to the slowest change, {first} to {last}"
        head = f'<svg class="strip" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(visible(label))}">'
        return Markup(f"{head}{''.join(parts)}</svg>")  # noqa: S704

    def png(self, sentence: str, below: str) -> bytes:
        """Return the chart as a PNG for chats and slides, under a title `sentence` and a subtitle `below`."""
        from PIL import Image, ImageDraw, ImageFont

        image = Image.new("RGB", (1600, 700), "white")
        draw, ink, soft = ImageDraw.Draw(image), "#16202c", "#556270"

        def write(x: int, y: float, text: str, points: int, colour: str = soft, anchor: str = "la") -> None:
            latin = text.replace("…", "...").encode("latin-1", "replace").decode("latin-1")  # as the font has
            draw.text((x, y), latin, fill=colour, font=ImageFont.load_default(points), anchor=anchor)

        def at(pct: float) -> float:
            return 150 + self.y(pct) * 490

        write(40, 30, clean(sentence, 90), 34, ink)
        write(40, 88, clean(below, 128), 24)
        legend = "change of time with its 95 % interval, fastest to slowest, slower is up; "
        legend += f"band: threshold {self.limit:g} %{self.cut and '; '}{self.cut}"
        write(130, 662, legend if self.rows else "No row has a number.", 22)
        for pct, colour in zip(self.bands, ("#eaeef2", "#d7dfe7"), strict=True):
            if self.rows:
                draw.rectangle((130, at(pct), 1570, at(-pct)), fill=colour)
        for pct, name in self.levels if self.rows else ():
            write(116, at(pct), name, 22, anchor="rm")
        colours = {"slower": "#a64b00", "faster": "#0a5a9c", "unclear": "#6a4a9c", "broken": "#a3123f"}
        for place, row in enumerate(self.rows):
            x, y = 130 + (0.5 + place) / len(self.rows) * 1440, at(row.pct or 0.0)
            colour = colours.get(row.verdict, soft)
            if row.low_pct is not None and row.high_pct is not None:
                draw.line((x, at(row.low_pct), x, at(row.high_pct)), fill=colour, width=2)
            if way := {"slower": -1, "faster": 1}.get(row.verdict):
                draw.polygon([(x - 8, y - 7 * way), (x + 8, y - 7 * way), (x, y + 8 * way)], fill=colour)
            else:
                inside = None if row.verdict == "unclear" else colour
                draw.ellipse((x - 6, y - 6, x + 6, y + 6), outline=colour, width=2, fill=inside)
        out = io.BytesIO()
        image.save(out, "PNG", optimize=True)
        return out.getvalue()


# ---------------------------------------------------------------- where the time of a call goes, on both sides

MOST_PARTS = 12  # of one node; the parts that changed least are added up
_REST = 0.01  # share of a node's time: a smaller rest is the scatter of medians
_HOST = "outside torch's operations"


@dataclass(frozen=True)
class Node:
    """A call, a phase or a kernel, with its time in ns on each side. None: this side has no such part."""

    name: str
    ns: tuple[float | None, float | None]
    parts: tuple[Node, ...] = ()
    kernel: bool = False

    @property
    def sides(self) -> tuple[float, float]:
        return self.ns[0] or 0.0, self.ns[1] or 0.0

    @property
    def change(self) -> float:
        """Return the change in ns; negative is faster."""
        return self.sides[1] - self.sides[0]

    @property
    def texts(self) -> list[str]:
        """Return the time of each side, the difference, and the change in per cent or the only side with this part."""
        times = ["–" if ns is None else duration(ns) for ns in self.ns]
        difference = f"{'-' if self.change < 0 else '+'}{duration(abs(self.change))}" if self.change else "0"
        if None in self.ns:
            return [*times, difference, "base only" if self.ns[1] is None else "target only"]
        return [*times, difference, f"{100 * self.change / self.sides[0]:+.1f} %" if self.change and self.ns[0] else ""]

    def share(self, of: Node) -> float:
        """Return this node's change over the largest change in the tree `of`, from -1 to 1."""
        return self.change / (max(abs(one.change) for _, one in of.rows()) or 1.0)

    def rows(self, depth: int = 0) -> Iterator[tuple[int, Node]]:
        """Yield (depth, node) of this node and all its parts, each before its own parts."""
        yield depth, self
        for part in self.parts:
            yield from part.rows(depth + 1)


_Side = tuple[list[tuple[tuple[str, ...], Launch]], Mapping[str, float | None]]  # (phases, launch); phase -> ns


def call_tree(before: Observation | None, after: Observation | None) -> Node | None:
    """Return a call as phases and kernels (on a CPU, torch's operations), from the profiled pass of both sides.

    Return None if a side's launches are unknown. If their phases are unknown, as in older runs, the tree has none.
    """
    seen = [(one, one.census) for one in (before, after) if one and one.census and not one.census.missing]
    if len(seen) < 2 or not any(census.launches for _, census in seen):
        return None
    placed = all(one.phases is not None for _, census in seen for one in census.launches)
    sides, inside = list[_Side](), set[str]()
    for one, census in seen:
        paths = [(launch.phases or () if placed else (), launch) for launch in census.launches]
        # A GPU's phases are the sums of their kernels; a CPU's have time outside of torch's operations, too.
        wall = one.metrics.get("wall")
        timed = {} if census.on_device else (placed and one.phases) or {"total": wall.value if wall else None}
        sides.append((paths, timed))
        inside |= {name for path, _ in paths for name in path}
    first, second = (timed for _, timed in sides)
    alone = [name for name in {**first, **second} if name not in {"total", "residual", *inside}]
    parts = [Node(clean(name, 80), (first.get(name), second.get(name))) for name in alone]
    return _node("total", sides, [part for part in parts if any(part.ns)])


def _node(name: str, sides: Sequence[_Side], parts: Sequence[Node] = ()) -> Node:
    """Return the node of a phase: `parts`, the phases inside, and the kernels that are launched in none of those."""
    made, launched = [*parts], [launched for launched, _ in sides]
    for phase in dict.fromkeys(path[0] for of in launched for path, _ in of if path):
        inner = [([(path[1:], one) for path, one in of if path[:1] == (phase,)], timed) for of, timed in sides]
        made.append(_node(phase, inner))
    for kernel in dict.fromkeys(one.name for of in launched for path, one in of if not path):
        each = [[one.ns for path, one in of if not path and one.name == kernel] for of in launched]
        ns = (sum(each[0]) if each[0] else None, sum(each[1]) if each[1] else None)
        made.append(Node(clean(kernel, 80), ns, kernel=True))
    sums = _sums(made)
    one, two = (max(timed.get(name) or 0.0, ns) for (_, timed), ns in zip(sides, sums, strict=True))
    if one - sums[0] > _REST * one or two - sums[1] > _REST * two:
        made.append(Node(_HOST, (one - sums[0], two - sums[1])))
    if len(made) > MOST_PARTS:
        others = sorted(made, key=lambda part: abs(part.change))[: len(made) - MOST_PARTS + 1]
        made = [*(part for part in made if part not in others), Node(f"{len(others)} others", _sums(others))]
    whole = (one if launched[0] or one else None, two if launched[1] or two else None)
    return Node("call" if name == "total" else clean(name, 80), whole, tuple(made))


def _sums(parts: Sequence[Node]) -> tuple[float, float]:
    return sum(part.sides[0] for part in parts), sum(part.sides[1] for part in parts)
