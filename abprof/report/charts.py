"""Draw a chart of all changes of a run, as SVG within the page and as a PNG."""

from __future__ import annotations

import io
from collections.abc import Iterable

from markupsafe import Markup, escape

from abprof.records import Comparison, Options
from abprof.records.quantities import plural, signed
from abprof.records.visible import visible
from abprof.report import sentences
from abprof.report.text import clean

FARTHEST = 60.0  # per cent of time up to which an interval stretches the axis


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
