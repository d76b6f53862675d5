"""How numbers are said."""

from __future__ import annotations

import pytest

from abprof.report import words
from abprof.report.tables import plain

from . import runs


@pytest.mark.parametrize(
    ("pct", "low", "high", "said"),
    [
        (2.1, 1.8, 2.4, "2.1 % slower (95 % interval: 1.8 to 2.4 % slower)"),
        (-6.2, -6.5, -5.9, "6.2 % faster (95 % interval: 5.9 to 6.5 % faster)"),
        (0.9, -0.5, 2.3, "0.9 % slower (95 % interval: 0.5 % faster to 2.3 % slower)"),
        (0.02, -0.08, 0.12, "0.02 % slower (95 % interval: 0.08 % faster to 0.12 % slower)"),
        (0.001, -0.1, 0.1, "0.00 % change (95 % interval: 0.10 % faster to 0.10 % slower)"),
    ],
)
def test_a_change_is_said_with_a_word_and_its_interval(pct, low, high, said):
    row = runs.compared(runs.dense_cell("full", "fwd"), "same", pct, low_pct=low, high_pct=high)
    assert words.change(row) == said


def test_without_an_interval_it_says_why():
    cell = runs.dense_cell("full", "fwd")
    quick = runs.compared(
        cell, "unclear", 2.0, low_pct=None, high_pct=None, epochs=1, reasons=("quick_worth_confirming",)
    )
    assert words.change(quick) == "2.0 % slower (no interval from 1 epoch)"
    assert words.verdict(quick) == "unclear (one epoch: worth confirming)"
    assert words.change(runs.compared(cell, "broken", reasons=("oom",))) == "out of memory"
    assert words.change(runs.compared(cell, "unclear")) == "not recorded"


def test_missing_on_both_sides_is_not_missing_on_the_target():
    cell = runs.dense_cell("full", "fwd")
    assert words.change(runs.compared(cell, "unclear", reasons=("missing",))) == "missing on both sides"
    assert words.change(runs.compared(cell, "broken", reasons=("missing",))) == "missing"


def test_a_discovery_that_may_be_chance_says_so():
    row = runs.compared(runs.dense_cell("full", "fwd"), "slower", 2.1)
    assert words.verdict(row) == "slower (among this many rows it may be chance)"
    assert words.verdict(runs.changed(row, discovery=True)) == "slower"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("identical_code", "identical code"),
        ("base_crash", "base: crash"),
        ("base_proof", "base: what it loaded is not its own"),
        ("proof", "what it loaded is not its own"),
        ("missing", "missing"),
        ("peer_build_failed", "peer: build failed"),
        ("something_new", "something new"),
    ],
)
def test_reason_codes_in_words(code, said):
    assert words.reason(code) == said


@pytest.mark.parametrize(
    ("ns", "said"),
    [(3586100.0, "3.586 ms"), (41200.0, "41.20 µs"), (999949.0, "999.9 µs"), (999999.9, "1.000 ms"),
     (2.5e9, "2.500 s"), (12.0, "12.00 ns"), (None, "not recorded")],
)  # fmt: skip
def test_times(ns, said):
    assert words.duration(ns) == said


def test_foreign_text_is_one_visible_line():
    assert words.clean("a\n\tb\x1b[31m\u202ec\0") == "a b\ufffd[31m\ufffdc\ufffd"
    assert words.clean("é🔥 naïve") == "é🔥 naïve"
    assert words.clean("x" * 500) == "x" * 299 + "…"
    assert plain("a,b") == "a,b"
