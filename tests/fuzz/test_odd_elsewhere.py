"""Odd words beside a run's own reports: two runs compared, nights, recordings of ncu, older scripts' tables, summaries."""

from __future__ import annotations

import csv
import io

import pytest

from tests import runs
from tests.fuzz import rich
from tests.fuzz.asked import Asker, asker, steering
from tests.fuzz.mutations import hunt
from tests.fuzz.test_odd_texts import LETTERS, ODD, odd, rendered, whole
from tests.nights import Nights

__all__ = ["asker"]
seldom = pytest.mark.parametrize("examples", [1, pytest.param(60, marks=pytest.mark.nightly)])


@seldom
def test_two_runs_beside_each_other(asker: Asker, examples: int) -> None:
    plain = runs.write(asker.folder / "runs", rich.spread())

    def ask(letters: list[str]) -> None:
        other = runs.write(asker.folder / "runs", runs.changed(odd(rich.spread(), letters), id=plain.name))
        for format in ("csv", "md"):
            assert asker("report", plain, other, "--format", format) == 0
            if format == "csv":
                whole("two runs", asker.said.decode())
            elif format == "md":
                rendered(asker.said.decode())

    ask(list(ODD))
    hunt(LETTERS, ask, examples)


def test_nights_of_odd_cells(asker: Asker) -> None:
    cells = [f"{text}{number}".encode(errors="replace").decode() for number, text in enumerate(ODD)]
    nights = Nights(asker.folder / "runs", series="\x1b[2J=1+1|`<b>\n@you")
    nights.add(dict.fromkeys(cells, (None, 100.0)), kind="first")
    nights.add(dict.fromkeys(cells, (100.0, 110.0)), verdicts=dict.fromkeys(cells, "slower"))
    where = ("--runs-dir", nights.runs_dir)
    assert asker("history", "query", *where) == 0
    whole("history", asker.said.decode())
    assert asker.said.count(b"\n") == len(list(csv.reader(io.StringIO(asker.said.decode()))))
    assert asker("history", "changes", *where) == 0
    assert asker("history", "page", asker.folder / "page.html", *where) == 0
    page = (asker.folder / "page.html").read_text()
    assert not steering(page)
    assert "<script>alert" not in page
    assert "<img" not in page
