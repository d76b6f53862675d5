"""The strip of all changes as a PNG for chats and slides, drawn by Pillow: small, well kept, with a font of its own."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from abprof.records import Run
from abprof.report import pictures, places, words
from abprof.report.facts import counts
from abprof.report.view import groups

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

WIDTH, HEIGHT = 1600, 700
_LEFT, _TOP, _RIGHT, _BOTTOM = 130, 150, 1570, 640
_INK, _SOFT, _BAND, _CORE = "#16202c", "#556270", "#eaeef2", "#d7dfe7"
_COLOURS = {"slower": "#a64b00", "faster": "#0a5a9c", "unclear": "#6a4a9c", "broken": "#a3123f"}


def png(run: Run) -> bytes:
    """The sentence, the counts, and the strip. Without a row that has a number the strip's place says so."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (WIDTH, HEIGHT), "white")
    draw = ImageDraw.Draw(image)
    sentence = words.clean(run.header.sentence if run.header else "Nothing was judged", 200)
    draw.text((40, 30), _fit(sentence, 92), fill=_INK, font=ImageFont.load_default(34))
    told = ", ".join(f"{count} {name}" for name, count in counts(run))
    draw.text(
        (40, 88),
        _fit(f"{told}   {words.clean(places.said(run), 60)}", 130),
        fill=_SOFT,
        font=ImageFont.load_default(24),
    )
    laid = pictures.lay_out(
        [row.comparison for group in groups(run) for row in group.rows if row.comparison], run.options
    )
    if laid is None:
        draw.text((40, 350), "No row has a number.", fill=_SOFT, font=ImageFont.load_default(26))
    else:
        _strip(draw, run, laid)
        font = ImageFont.load_default(22)
        for pct, text in pictures.levels(run.options, laid.half):
            draw.text((_LEFT - 14, _y(laid.y(pct))), text, fill=_SOFT, font=font, anchor="rm")
        legend = "change of time with its 95 % interval, from the fastest to the slowest, slower is up; "
        legend += f"band: threshold {run.options.threshold:g} %"
        draw.text((_LEFT, 662), legend, fill=_SOFT, font=font)
    out = io.BytesIO()
    image.save(out, "PNG", optimize=True)
    return out.getvalue()


def _strip(draw: ImageDraw, run: Run, laid: pictures.Strip) -> None:
    limit, margin = run.options.threshold, min(run.options.margin, run.options.threshold)
    for pct, colour in ((limit, _BAND), (margin, _CORE)):
        draw.rectangle((_LEFT, _y(laid.y(pct)), _RIGHT, _y(laid.y(-pct))), fill=colour)
    draw.line((_LEFT, _y(0.5), _RIGHT, _y(0.5)), fill=_SOFT)
    for place in laid.places:
        x, colour = _LEFT + place.x * (_RIGHT - _LEFT), _COLOURS.get(place.verdict, _SOFT)
        if place.low is not None and place.high is not None:
            draw.line((x, _y(place.low), x, _y(place.high)), fill=colour, width=2)
        _mark(draw, place.verdict, x, _y(place.y), colour)


def _mark(draw: ImageDraw, verdict: str, x: float, y: float, colour: str) -> None:
    """A verdict's own shape: a triangle up or down, a ring, a dot."""
    way = {"slower": -1, "faster": 1}.get(verdict)
    if way:
        draw.polygon([(x - 8, y - 7 * way), (x + 8, y - 7 * way), (x, y + 8 * way)], fill=colour)
    elif verdict == "unclear":
        draw.ellipse((x - 6, y - 6, x + 6, y + 6), outline=colour, width=2)
    else:
        draw.ellipse((x - 5, y - 5, x + 5, y + 5), fill=colour)


def _y(share: float) -> float:
    return _TOP + share * (_BOTTOM - _TOP)


def _fit(text: str, letters: int) -> str:
    """ASCII of the font's, cut to the picture's width."""
    plain = text.encode("latin-1", "replace").decode("latin-1")
    return plain if len(plain) <= letters else plain[: letters - 3] + "..."
