"""Pictures: what is drawn lies where the numbers say, and axes do not make noise look large."""

from __future__ import annotations

import re

import pytest
from abprof.report.pictures import Axis, Track, reach, strip, turns
from abprof.report.view import groups

from abprof.records import Options
from abprof.report import pictures

from . import runs

RULES = Options(threshold=1.5, margin=0.5)
CELL = runs.dense_cell("full", "fwd")
HALF = 168 / 2 - 5  # px of half an axis


def test_the_interval_is_drawn_where_it_is():
    drawn = Axis(10.0, RULES).interval(runs.compared(CELL, "slower", 5.0, 1.0))
    left, dot, right = (f"{84 + share * HALF:.0f}" for share in (0.4, 0.5, 0.6))
    assert f'd="M{left} 11H{dot}H{right}"' in drawn
    alone = Axis(10.0, RULES).interval(runs.changed(runs.compared(CELL, "slower", 5.0), low_pct=None, high_pct=None))
    assert f'd="M{dot} 11H{dot}H{dot}"' in alone
    assert Axis(10.0, RULES).interval(runs.compared(CELL, "broken")) == ""
    assert Axis(10.0, RULES).interval(None) == ""


def test_what_is_beyond_the_axis_stands_at_its_end():
    drawn = Axis(10.0, RULES).interval(runs.compared(CELL, "faster", -80.0, 1.0))
    assert f"H{84 - HALF:.0f}H" in drawn


def test_bands_are_the_rules():
    assert Axis(10.0, RULES).bands() == f"--t:{0.15 * HALF:.1f}px;--m:{0.05 * HALF:.1f}px"
    own = runs.changed(RULES, thresholds=(("dense/*", 5.0),))
    drawn = Axis(10.0, own).interval(runs.compared(CELL, "same", 0.1))
    assert f'<svg style="--t:{0.5 * HALF:.1f}px;--m:{0.05 * HALF:.1f}px">' in drawn


def test_the_axis_is_never_narrower_than_twice_the_threshold():
    dense, sparse, _ = groups(runs.run())
    rows = [row.comparison for row in dense.rows]
    assert reach(rows, RULES) == pytest.approx(6.5 * 1.05)
    assert reach(rows, runs.changed(RULES, thresholds=(("dense/*", 5.0),))) == pytest.approx(10.5)
    assert reach([row.comparison for row in sparse.rows], RULES) == 0.0


def test_the_strip_goes_from_the_fastest_to_the_slowest():
    run = runs.run()
    drawn = strip(run.comparisons, RULES)
    known = [c for c in run.comparisons if c.pct is not None]
    dots = re.findall(r"(\d[\d.]*),(\d[\d.]*)", drawn)
    assert len(dots) == len(known)
    highest = sorted((float(x), float(y)) for x, y in dots)
    heights = [y for _, y in highest]
    assert heights == sorted(heights, reverse=True), "slower is up"
    assert (
        f'aria-label="{len(known)} rows from the fastest to the slowest change, 6.2 % faster to 2.1 % slower"' in drawn
    )
    assert strip([runs.compared(CELL, "broken")], RULES) == ""


def letters(drawn: str, arm: str) -> list[int]:
    text = re.search(rf"data-{arm}=([\w-]+)", drawn)
    assert text
    return [pictures._LETTERS.index(letter) for letter in text[1]]


def test_turns_are_heights_from_the_top_quantiles_first():
    drawn = turns([Track("base", (100.0, 110.0, 120.0), (100.0, 105.0, 110.0, 115.0, 120.0))])
    assert letters(drawn, "base") == [63, 47, 32, 16, 0, 63, 32, 0]
    assert 'data-ends="120.0 ns|100.0 ns"' in drawn
    assert turns([Track("base", (), ())]) == ""


def test_a_quiet_cell_looks_quiet():
    drawn = turns([Track("base", (1000.0, 1001.0), (1000.0, 1000.2, 1000.5, 1000.8, 1001.0))])
    heights = letters(drawn, "base")
    assert max(heights) - min(heights) <= 4
    flat = turns([Track("base", (1000.0,), (1000.0,) * 5)])
    assert set(letters(flat, "base")) == {32}
