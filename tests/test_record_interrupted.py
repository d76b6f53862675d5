"""^C at every line of the code that writes the record: no round is lost, and no file looks tampered with."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from abprof import report, session
from abprof.records import Run, Touched
from abprof.store import Record, runfolder
from abprof.store.runfolder import RunFolder
from abprof.system import files as disk
from abprof.system.console import View

from . import runs

# ^C on the line that leaves a `with` comes before the file is closed: the collector closes it.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")

HERE = tuple(module.__file__ for module in (disk, runfolder))
CELLS = 2


@pytest.fixture(autouse=True)
def _no_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the pages: a hundred writes take minutes, and run.json has all their data."""
    monkeypatch.setattr(report, "write_all", lambda *_: None)


def interrupted(what: Callable[[], object], at: int) -> bool:
    """Call it, and raise KeyboardInterrupt at this one of the lines that it runs through. False: it has fewer."""
    seen = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal seen
        if frame.f_code.co_filename not in HERE:
            return None
        seen += event == "line"
        if event == "line" and seen == at:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        what()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def begun(folder: Path) -> Record:
    of = runs.changed(runs.run(), observations=(), header=None, comparisons=(), touched=())
    folder.mkdir()
    made = session.new_record(RunFolder(folder), of, [], View(quiet=True))
    made.folder.write_run(of)
    made._next_write = float("inf")  # verdicts in between do not matter here
    return made


def ended(made: Record) -> Run:
    made.interrupted = True
    run = session.finish(made)
    assert run.status == "interrupted"
    assert run.touched == ()
    assert run.header.trusted
    notes: list[str] = []
    there = list(runfolder.blocks(made.folder.path, notes))
    assert notes == []
    assert list(runfolder.standing(run, there)) == made.blocks
    assert runfolder.read(made.folder.path)[0].touched == ()
    return run


def test_while_a_block_is_added(tmp_path: Path) -> None:
    first, second = [runs.changed(each, epoch=1) for each in runs.blocks(runs.run(), epochs=1)[:CELLS]]
    kept = []
    for at in range(1, 1000):
        made = begun(tmp_path / str(at))
        made.add(first)
        hit = interrupted(lambda: made.add(second), at)  # noqa: B023
        ended(made)
        kept.append(len(made.blocks))
        if not hit:
            break
    assert kept[0] == 1
    assert kept[-1] == 2
    assert kept == sorted(kept), "once it is on the disk it counts"
    assert 10 < kept.index(2) < len(kept) - 5, "struck before and after"


def struck(folder: Path, what: Callable[[Record], None]) -> Iterator[tuple[Run, Run]]:
    """At each line of it in turn, and at none: the run as it is reported, and as the disk has it."""
    for at in range(1, 1000):
        made = begun(folder / str(at))
        hit = interrupted(lambda: what(made), at)  # noqa: B023
        yield session.finish(made), runfolder.read(made.folder.path)[0]
        if not hit:
            return


def test_while_a_changed_file_is_noted(tmp_path: Path) -> None:
    """The report has everything on the disk: the next report, made from the disk, is equal."""
    found = [Touched(path=f"k{i}.so", how="changed", moment="in epoch 1") for i in range(2)]
    seen = set()
    for run, again in struck(tmp_path, lambda made: made.note(found)):
        assert again.touched == run.touched
        assert run.header.trusted == (not run.touched)
        seen.add(len(run.touched))
    assert seen == {0, 2}


@pytest.mark.parametrize("how", ["removed", "changed"])
def test_what_somebody_changes_is_still_seen(tmp_path: Path, how: str) -> None:
    first, second = [runs.changed(each, epoch=1) for each in runs.blocks(runs.run(), epochs=1)[:CELLS]]
    made = begun(tmp_path / "run")
    made.add(first)
    made.add(second)
    rounds = tmp_path / "run" / runfolder.ROUNDS
    lines = rounds.read_bytes().splitlines(keepends=True)
    rounds.write_bytes(lines[0])
    if how == "changed":
        made.folder.append_block(runs.changed(second, epoch=9))
    assert [one.path for one in session.finish(made).touched] == [runfolder.ROUNDS]
