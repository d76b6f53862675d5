"""Odd names of cells and branches in the nights' history."""

from __future__ import annotations

import csv
import io

from abprof.extras.nightly import history_page, read_history
from tests.fuzz.asked import Asker, asker, steering
from tests.fuzz.test_odd_texts import ODD, whole
from tests.nights import Nights

__all__ = ["asker"]


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
    page = history_page(read_history(nights.runs_dir), nights.series)
    assert not steering(page)
    assert "<script>alert" not in page
    assert "<img" not in page
