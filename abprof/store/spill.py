"""Rounds laid aside: most of what a run measures, and of what nothing needs but one cell's at a time.

Ten thousand cells of four epochs have some million turns, which as records would take gigabytes. A shelf is a file without a
name; a block on it is the same record, whose rounds are read back when somebody asks for them. rounds.jsonl is another thing:
that one can be written by whoever is at the machine, and verdicts rest on what was measured.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast, overload

import msgspec
import numpy as np
from numpy.typing import NDArray

from abprof.records import Block, Turn

ARM, START, END, VALUE, WALL, EMPTY, MHZ, WAITED = range(8)  # columns, in the order of Turn's fields
_WHOLE = 2.0**53  # whole numbers up to here are the same as floats
_BYTES = 8

Table = NDArray[np.float64]
Row = tuple[Turn, ...]


class Shelf:
    """Where blocks lay their rounds. What the disk refuses stays in memory."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder`: on whose disk; that of the system's temporary files where it has no room or none is given."""
        self._end = 0
        self._file = -1
        for place in (folder, None):
            with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=place) as file:
                self._file = os.dup(file.fileno())
                weakref.finalize(self, os.close, self._file)
                return

    def lay(self, block: Block) -> Block:
        """The same block, its rounds on the shelf."""
        if self._file < 0 or not block.rounds or isinstance(block.rounds, Laid):
            return block
        table, widths = _table(block.rounds)
        if not table.size or np.abs(table[:, [START, END, WAITED]]).max() > _WHOLE:
            return block
        start = at = self._end
        data = memoryview(table.tobytes())
        try:
            while data:
                written = os.pwrite(self._file, data, at)
                at, data = at + written, data[written:]
        except OSError:
            return block
        self._end = at
        laid = Laid(self, start, len(table), widths)
        return msgspec.structs.replace(block, rounds=cast("tuple[Row, ...]", laid))

    def table(self, start: int, turns: int) -> Table:
        """So many turns as columns. Raises OSError where they cannot be read."""
        data = os.pread(self._file, turns * 8 * _BYTES, start)
        if len(data) < turns * 8 * _BYTES:
            raise OSError("rounds that were laid aside cannot be read back")
        return np.frombuffer(data).reshape(turns, 8)


class Laid(Sequence[Row]):
    """A block's rounds on a shelf: the sequence that they were, read when it is asked for."""

    __slots__ = ("_shelf", "_start", "_turns", "_widths")

    def __init__(self, shelf: Shelf, start: int, turns: int, widths: int | tuple[int, ...]) -> None:
        self._shelf, self._start, self._turns = shelf, start, turns
        self._widths = widths  # turns of each round; one number where all have as many

    @property
    def rows(self) -> NDArray[np.int64]:
        """The number of each turn's round."""
        if isinstance(self._widths, int):
            return np.arange(self._turns) // self._widths
        return np.repeat(np.arange(len(self._widths)), self._widths)

    @property
    def table(self) -> Table:
        """A line a turn, in the order they ran."""
        return self._shelf.table(self._start, self._turns)

    def __len__(self) -> int:
        return self._turns // self._widths if isinstance(self._widths, int) else len(self._widths)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Row, ...]: ...
    def __getitem__(self, index: int | slice) -> Row | tuple[Row, ...]:
        return tuple(self)[index]

    def __iter__(self) -> Iterator[Row]:
        lines = iter(self.table.tolist())
        for width in [self._widths] * len(self) if isinstance(self._widths, int) else self._widths:
            yield tuple(_turn(next(lines)) for _ in range(width))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Laid):
            same = self._widths == other._widths
            return same and np.array_equal(self.table, other.table)
        return isinstance(other, Sequence) and len(self) == len(other) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]


def columns(rounds: Sequence[Row]) -> tuple[Table, NDArray[np.int64]]:
    """Rounds as a table, a line a turn, and the number of each turn's round; whether they are on a shelf or not."""
    if isinstance(rounds, Laid):
        return rounds.table, rounds.rows
    table, widths = _table(rounds)
    count = [widths] * len(rounds) if isinstance(widths, int) else widths
    return table, np.repeat(np.arange(len(rounds)), count)


def plain(value: Any) -> Any:
    """For msgspec, which does not know them: rounds on a shelf as what they are."""
    if isinstance(value, Laid):
        return list(value)
    raise NotImplementedError(type(value))


def _table(rounds: Sequence[Row]) -> tuple[Table, int | tuple[int, ...]]:
    widths = tuple(len(row) for row in rounds)
    lines = [
        (turn.arm, turn.start, turn.end, turn.value, turn.wall, turn.empty, turn.mhz, turn.waited)
        for row in rounds
        for turn in row
    ]
    table = np.array(lines, dtype=float).reshape(len(lines), 8)
    return table, widths[0] if widths and widths[0] and len(set(widths)) == 1 else widths


def _turn(line: list[float]) -> Turn:
    arm, start, end, value, wall, empty, mhz, waited = line
    return Turn(int(arm), int(start), int(end), value, wall, empty, mhz, int(waited))
