"""history.html: one file without references or scripts, every cell with its trend, changes, machines and gaps on it."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from abprof.cli import run_command_line
from abprof.extras.history.index import opened
from abprof.extras.history.page import page
from tests.nights import MACHINE, Nights

HOSTILE = "w/x=</title><script>alert(1)</script>\"'><img src=x onerror=alert(1)>|`@you\u202e"


def made(folder: Path) -> Nights:
    """Thirty nights of two cells: a step on night 21, another driver on 11, a week missed before 16."""
    nights = Nights(folder / "runs")
    nights.add({"w/n=1": (None, 1e6), HOSTILE: (None, 2e6)}, kind="first")
    for number in range(2, 31):
        if number == 11:
            nights.machine = MACHINE | {"driver": "590.2"}
        if number == 16:
            nights.at += timedelta(days=7)
        wobble = 1 + 0.004 * (number % 3 - 1)
        before, after = (1e6 * (1.1 if number > 21 else 1)), 1e6 * (1.1 if number > 20 else 1)
        nights.add({"w/n=1": (before * wobble, after * wobble), HOSTILE: (2e6 * wobble, 2e6 * wobble)})
    return nights


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    with opened(made(tmp_path_factory.mktemp("nights")).runs_dir) as index:
        return page(index, "main")


def test_it_says_what_happened(text: str) -> None:
    assert "main: 30 nights, 2 cells" in text
    assert re.search(r"confirmed</b></td><td>w/n=1</td><td class=\"number\">21 ", text)
    assert "driver 580.1 to 590.2" in text
    assert "1 gap" in text
    assert "the longest 8 days" in text
    assert text.count("<svg") == 2


def test_lines_are_cut_at_a_gap_and_at_another_machine(text: str) -> None:
    (level, *_) = re.findall(r'<path class="level" d="([^"]*)"', text)
    assert level.count("M") == 3


def test_nothing_is_fetched_and_nothing_runs(text: str) -> None:
    assert "default-src 'none'; style-src 'unsafe-inline'" in text
    assert "<script" not in text
    assert "<img" not in text
    assert not re.search(r"(src|href)=|url\((?!#|\"?data:)|@import|https?://", re.sub(r"&lt;.*?&gt;", "", text))


def test_without_nights(tmp_path: Path) -> None:
    with opened(tmp_path) as index:
        assert "There is no night here yet" in page(index, "")


def test_the_verb_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nights = made(tmp_path)
    assert run_command_line(["history", "page", "--runs-dir", str(nights.runs_dir)]) == 0
    assert (nights.runs_dir / "history.html").read_text().startswith("<!DOCTYPE html>")
    capsys.readouterr()
    assert run_command_line(["history", "changes", "--json", "--runs-dir", str(nights.runs_dir)]) == 0
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert [(change["trend"], change["night"], change["found"]) for change in said["changes"]] == [("w/n=1", 21, 23)]
    nights.series = "release"
    nights.add({"w/n=1": (None, 1e6)}, kind="first")
    assert run_command_line(["history", "page", "--runs-dir", str(nights.runs_dir)]) == 2
    assert "one of main, release" in capsys.readouterr().err


@pytest.mark.slow
def test_five_hundred_cells_of_a_thousand_nights_fit() -> None:
    from abprof.extras.history.index import Row
    from abprof.extras.history.page import render
    from tests.simulations.nights import fleet

    found = fleet(500, 1000, 0.01, 1)
    rows = [Row("f", "main", n, "step", "x", "{}", f"{2020 + n // 300}-{1 + n % 12:02}-01", "b", "h", "s", 0, "", 1)
            for n in range(1, 1001)]  # fmt: skip
    assert len(render("main", rows, found, [], []).encode()) < 5e6
