"""Files in abprof's own folders, which other programs can change: heartbeats, noise, bisections, notes."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

import msgspec
import pytest

from abprof.extras import bisect
from abprof.records.errors import AbprofError
from abprof.system import heartbeat
from abprof.system.console import View
from tests.bisect.test_pages import Measured, begun
from tests.bisect.test_search import line, slips
from tests.fuzz.commands import one_clear_line
from tests.fuzz.mutations import DEEP, hunt, many, texts_of

CELL, OTHER = "w/n=1,mask=a", "w/n=2,mask=b"


def beaten(folder: Path) -> Path:
    """The file of a heartbeat that says all it can."""
    beat = heartbeat.Heartbeat(series="main", repo=str(folder), ended=1e9 + 5, did="step", exit_code=2)
    heartbeat.write(folder, beat)
    (file,) = (folder / heartbeat.FOLDER).iterdir()
    return file


@many
def test_any_heartbeat_is_shown_or_skipped(tmp_path: Path, examples: int) -> None:
    file = beaten(tmp_path)

    def ask(data: bytes) -> None:
        file.write_bytes(data)
        for _, said, advice in heartbeat.examine(tmp_path):
            assert "\n" not in said + advice
            assert "\x1b" not in said
            assert len(said) < 3000

    whole = json.loads(file.read_bytes())
    hunt(texts_of(whole), ask, examples)
    ask(b"[" * DEEP)
    for path in ("x" * 5000, "\0", "/" * 5000, "~\x1b[2J"):
        ask(msgspec.json.encode({**whole, "repo": path, "series": "\x1b[2J\n"}))


@pytest.mark.parametrize("count", [4, 1000])
@many
def test_any_bisection_is_gone_on_with_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, examples: int
) -> None:
    """The file of an interrupted or complete bisection: it is continued or refused."""
    world, bad = line(slips(20, {7: 3.0, 15: 5.0}), silent={9})
    monkeypatch.setattr(bisect, "measure", Measured(world, stop_after=count))
    with contextlib.suppress(KeyboardInterrupt):
        bisect.finish(begun(world, bad), tmp_path, View(quiet=True))
    whole = json.loads((tmp_path / bisect.FILE).read_bytes())
    monkeypatch.setattr(bisect, "measure", Measured(world, stop_after=0))

    def ask(data: bytes) -> None:
        folder = tmp_path / "one"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / bisect.FILE).write_bytes(data)
        try:
            known = bisect.read(folder)
            with contextlib.suppress(KeyboardInterrupt):
                known = bisect.finish(known, folder, View(quiet=True))
            known.decided, bisect.result(known)
        except AbprofError as error:
            one_clear_line(error)

    hunt(texts_of(whole), ask, examples)
    ask(b"[" * DEEP)
