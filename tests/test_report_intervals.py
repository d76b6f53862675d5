"""No page says a percentage of change without its interval, or the words why there is none."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from abprof.records import Run
from abprof.report import beside, terminal
from abprof.report.closing import closing
from abprof.report.html import html
from abprof.report.lines import lines
from abprof.report.markdown import markdown
from abprof.report.view import groups

from . import runs

CHANGE = re.compile(r"\d % (?:slower|faster|change)")
INTERVAL = re.compile(r"[\d.]+(?: % (?:slower|faster))? to [\d.]+ % (?:slower|faster)|no interval from \d+ epochs?")


def quick() -> Run:
    """One epoch: changes without intervals, some between peers and variants."""
    plain = runs.run()
    bare = {"low_pct": None, "high_pct": None, "p": None, "epochs": 1, "reasons": ("quick_worth_confirming",)}
    judged = tuple(runs.changed(c, verdict="unclear", **bare) if c.pct is not None else c for c in plain.comparisons)
    peer = runs.changed(judged[-1], from_="peer:sdpa")
    return runs.changed(plain, comparisons=(*judged, peer), controls=())


MADE = [runs.run, runs.unchanged, runs.two_targets, runs.three_targets, quick]


@pytest.mark.parametrize("make", MADE)
def test_rows_that_every_page_shows(make):
    run, changes = make(), 0
    for group in groups(run):
        said = [(line.change, line.interval) for line in lines(group)]
        said += [(change, interval) for *_, change, interval, _ in beside.table(run, group).rows]
        for change, interval in said:
            if CHANGE.search(change):
                changes += 1
                assert INTERVAL.fullmatch(interval), (change, interval)
    assert changes >= 4


@pytest.mark.parametrize("make", MADE)
def test_every_line_of_terminal_log_and_markdown(make):
    run, out = make(), io.StringIO()
    terminal.show(run, Console(file=out, width=250), runs.Path("x"), everything=True)
    found = 0
    for text in (out.getvalue(), closing(run), markdown(run, runs.blocks(run))):
        for line in text.splitlines():
            without = INTERVAL.sub("INTERVAL", line)
            if CHANGE.search(without):
                found += 1
                assert "INTERVAL" in without, line
    assert found >= 8


@pytest.mark.parametrize("make", MADE)
def test_every_row_of_the_page(make):
    run = make()
    rows = re.findall(r"<tr(?: class=[\w-]+)?>(.*?)</tr>", html(run, runs.blocks(run)), re.S)
    changed = [row for row in rows if CHANGE.search(INTERVAL.sub("", row))]
    assert len(changed) >= 4
    for row in changed:
        assert INTERVAL.search(row), row


def test_the_scripts_fluctuation_is_followed_by_the_verdict_and_its_interval():
    said = closing(runs.run()).splitlines()
    places = [place for place, line in enumerate(said) if "Fluctuation: " in line]
    assert len(places) == 2
    for place in places:
        assert said[place + 1].startswith("    Verdict: ")
        assert INTERVAL.search(said[place + 1])
