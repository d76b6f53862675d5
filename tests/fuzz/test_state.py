"""What lies in abprof's own folders, which others can write to as well: indexes, heartbeats, noise, bisections, notes."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from pathlib import Path

import msgspec
import pytest

from abprof.extras import bisect
from abprof.extras.bisect import job
from abprof.extras.nightly.index import FILE
from abprof.records.errors import AbprofError
from abprof.system import heartbeat
from abprof.system.console import View
from tests.bisect.test_pages import Measured, begun
from tests.bisect.test_search import line, slips
from tests.fuzz.asked import Asker, asker, one_clear_line
from tests.fuzz.mutations import DEEP, bytes_of, fewest, hunt, many, texts_of
from tests.nights import Nights

__all__ = ["asker"]
CELL, OTHER = "w/n=1,mask=a", "w/n=2,mask=b"


# ---------------------------------------------------------------- history.sqlite


@pytest.fixture
def nights(tmp_path: Path) -> Path:
    """A folder of runs with an index that fits it."""
    made = Nights(tmp_path / "runs")
    made.add({CELL: (None, 100.0), OTHER: (None, 50.0)}, kind="first")
    for number in range(6):
        made.add({CELL: (101.0, 103.0 + 9 * (number > 2)), OTHER: (50.0, 50.0)}, verdicts={CELL: "slower"})
    return made.runs_dir


def history(asker: Asker, folder: Path) -> list[int]:
    """All that reads the index."""
    places = ("--runs-dir", folder)
    return [
        asker("history", "query", *places),
        asker("history", "query", "--json", "--metric", "wall", *places),
        asker("history", "changes", *places),
        asker("history", "page", asker.folder / "page.html", "--series", "main", *places),
    ]


@fewest
def test_any_bytes_of_an_index_are_read_or_made_again(nights: Path, asker: Asker, examples: int) -> None:
    assert history(asker, nights) == [0, 0, 0, 0]
    whole = (nights / FILE).read_bytes()

    def ask(data: bytes) -> None:
        (nights / FILE).write_bytes(data)
        history(asker, nights)

    hunt(bytes_of(whole), ask, examples)


def foreign(file: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as database:
        for statement in statements:
            database.execute(statement)


# ---------------------------------------------------------------- the state folder


def beaten(folder: Path) -> Path:
    """The file of a heartbeat that says all it can."""
    beat = heartbeat.Heartbeat(series="main", repo=str(folder), runs_dir="r", began=1e9, ended=1e9 + 5, did="step",
                               exit_code=2, reported=3)  # fmt: skip
    heartbeat.write(folder, beat)
    (file,) = (folder / heartbeat.FOLDER).iterdir()
    return file


@many
def test_any_heartbeat_is_told_or_passed_over(tmp_path: Path, examples: int) -> None:
    file = beaten(tmp_path)

    def ask(data: bytes) -> None:
        file.write_bytes(data)
        heartbeat.read(tmp_path, str(tmp_path), "main")
        for _, said, advice in heartbeat.examine(tmp_path):
            assert "\n" not in said + advice
            assert "\x1b" not in said
            assert len(said) < 3000

    whole = json.loads(file.read_bytes())
    hunt(texts_of(whole), ask, examples)
    ask(b"[" * DEEP)
    for path in ("x" * 5000, "\0", "/" * 5000, "~\x1b[2J"):
        ask(msgspec.json.encode({**whole, "repo": path, "series": "\x1b[2J\n"}))


# ---------------------------------------------------------------- bisect.json


@pytest.mark.parametrize("count", [4, 1000])
@many
def test_any_bisection_is_gone_on_with_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, examples: int
) -> None:
    """Of one that is interrupted, and of one that is complete: what stands there is asked further, or refused."""
    world, bad = line(slips(20, {7: 3.0, 15: 5.0}), silent={9})
    monkeypatch.setattr(job, "measure", Measured(world, stop_after=count))
    with contextlib.suppress(KeyboardInterrupt):
        bisect.finish(begun(world, bad), tmp_path, View(quiet=True))
    whole = json.loads((tmp_path / job.FILE).read_bytes())
    monkeypatch.setattr(job, "measure", Measured(world, stop_after=0))

    def ask(data: bytes) -> None:
        folder = tmp_path / "one"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / job.FILE).write_bytes(data)
        try:
            known = bisect.read(folder)
            with contextlib.suppress(KeyboardInterrupt):
                known = bisect.finish(known, folder, View(quiet=True))
            known.decided, bisect.result(known)
        except AbprofError as error:
            one_clear_line(error)

    hunt(texts_of(whole), ask, examples)
    ask(b"[" * DEEP)
