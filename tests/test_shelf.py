"""Rounds that are laid aside: the same sequence, the same bytes in a file, the same verdicts, and hardly any memory."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abprof.records import Block, Run, Turn
from abprof.store.record import Record
from abprof.store.runfolder import RunFolder
from abprof.store.spill import Laid, Shelf, columns
from abprof.store.streaming import pieces
from abprof.system import checksummed as sealed
from abprof.system.console import View
from abprof.verdict import judge as verdict

from . import runs

WHOLE = st.integers(0, 2**53)
NUMBER = st.floats(allow_nan=False, allow_infinity=False)
TURN = st.builds(Turn, st.integers(0, 9), WHOLE, WHOLE, NUMBER, NUMBER, NUMBER, NUMBER, WHOLE)


def block(rounds: Sequence[Sequence[Turn]]) -> Block:
    of = runs.run()
    return runs.changed(runs.blocks(of)[0], rounds=tuple(map(tuple, rounds)))


@given(st.lists(st.lists(TURN, min_size=1, max_size=4), min_size=1, max_size=9))
def test_what_comes_back_is_what_was_laid(rounds: list[list[Turn]]) -> None:
    shelf = Shelf()
    first, second = block(rounds), block(rounds[::-1])
    laid = shelf.lay(first), shelf.lay(second)
    assert all(isinstance(each.rounds, Laid) for each in laid)
    assert laid == (first, second)
    assert tuple(laid[0].rounds) == first.rounds
    assert (len(laid[1].rounds), laid[1].rounds[-1]) == (len(rounds), second.rounds[-1])
    assert sealed.line(laid[0]) == sealed.line(first)
    assert sealed.unseal(sealed.line(laid[1])[:-1], Block, "a block") == second
    for each in (laid[0].rounds, first.rounds):
        table, rows = columns(each)
        assert [tuple(line) for line in table.tolist()] == [msgspec.structs.astuple(t) for row in rounds for t in row]
        assert rows.tolist() == [number for number, row in enumerate(rounds) for _ in row]


def test_what_does_not_fit_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty, huge = block([]), block([[Turn(0, 0, 2**60 + 1, 1.0, 1.0)]])
    assert Shelf().lay(empty) is empty
    assert Shelf().lay(huge) is huge  # a float would not hold it
    usual, shelf = block([[Turn(0, 0, 1, 1.0, 1.0)]]), Shelf(tmp_path / "not there")
    assert shelf.lay(usual) == usual

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    assert shelf.lay(usual) is usual
    monkeypatch.undo()
    again = shelf.lay(usual)
    assert isinstance(again.rounds, Laid)
    assert again == usual


def test_a_shelf_leaves_nothing_in_its_folder(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    laid = shelf.lay(runs.blocks(runs.run())[0])
    assert list(tmp_path.iterdir()) == []
    assert len(laid.rounds) == 4


def test_verdicts_do_not_know_where_rounds_are() -> None:
    of = runs.run()
    plain = runs.blocks(of, epochs=4, rounds=8)
    shelf = Shelf()
    laid = [shelf.lay(each) for each in plain]
    assert verdict.judge(of, laid, of.proofs) == verdict.judge(of, plain, of.proofs)
    assert verdict.undecided(of, laid, of.proofs) == verdict.undecided(of, plain, of.proofs)


def test_a_record_holds_no_rounds(tmp_path: Path) -> None:
    """Of blocks with five times the rounds it takes the same memory."""
    of = runs.changed(runs.run(), observations=(), header=None)

    def held(name: str, rounds: int) -> int:
        made = runs.blocks(runs.run(), epochs=1, rounds=rounds)
        path = tmp_path / name
        path.mkdir()
        record = Record(RunFolder(path), of, [], View(quiet=True))
        record._next_write = float("inf")  # verdicts in between are another matter
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for number in range(20):
            for each in made:
                record.add(runs.changed(each, epoch=number + 1, quick=True))
        found = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert sum(len(each.rounds) for each in record.blocks) == 20 * len(made) * rounds
        return found

    held("warm", 20)
    few, many = held("few", 20), held("many", 100)
    assert many < 1.1 * few


def test_a_page_is_what_the_whole_would_be() -> None:
    """run.json, list by list, has the bytes that it has had: read strictly, and NaN refused."""
    import json

    def page(run: Run) -> bytes:
        return b"".join(piece for _, piece in pieces(run))

    of = runs.run()
    assert page(of) == json.dumps(msgspec.to_builtins(of), ensure_ascii=False, indent=1).encode()
    bare = runs.changed(of, observations=(), notes=("two\nlines", 'a "quote"'), environment={})
    assert json.loads(page(bare)) == json.loads(json.dumps(msgspec.to_builtins(bare)))
    with pytest.raises(ValueError, match="not JSON compliant"):
        page(runs.changed(of, ceilings=None, cells=(runs.changed(of.cells[0], flops=float("nan")),)))
