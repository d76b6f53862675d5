"""The page's colours have the contrast that WCAG 2.2 AA asks for, by day, by night and on paper."""

from __future__ import annotations

import re

import pytest

from abprof.system.bundled import bundled

STYLE = (bundled("templates") / "report.css").read_text()
DAY, NIGHT, PAPER = (
    dict(re.findall(r"--([\w-]+): (#[0-9a-f]+)", part)) for part in re.findall(r":root \{(.*?)\}", STYLE, re.S)
)
SCHEMES = {"day": DAY, "night": NIGHT, "paper": DAY | PAPER}
VERDICTS = ("slower", "faster", "broken", "unclear", "same")
TEXT = [
    *((ink, ground) for ink in ("ink", "soft", "faster") for ground in ("page", "card")),
    *((verdict, f"{verdict}-soft") for verdict in VERDICTS),
    *((side, ground) for side in ("base", "target") for ground in ("card", "page")),
]
MARKS = [
    (colour, ground) for colour in (*VERDICTS, "base", "target", "ink", "soft") for ground in ("card", "band", "core")
]


def luminance(colour: str) -> float:
    """Relative luminance, as WCAG defines it."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_the_formula():
    assert contrast("#000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#fff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_text_can_be_read(scheme):
    colours = SCHEMES[scheme]
    poor = {
        (a, b): round(contrast(colours[a], colours[b]), 2) for a, b in TEXT if contrast(colours[a], colours[b]) < 4.5
    }
    assert poor == {}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_marks_can_be_seen_on_their_bands(scheme):
    colours = SCHEMES[scheme]
    poor = {
        (a, b): round(contrast(colours[a], colours[b]), 2) for a, b in MARKS if contrast(colours[a], colours[b]) < 3
    }
    assert poor == {}


def test_every_colour_has_its_night():
    assert DAY.keys() == NIGHT.keys()
