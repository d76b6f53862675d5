"""run.json, written and read back piece by piece: of a run of ten thousand rows one at a time is in memory as text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec

from abprof.records import Run
from abprof.system import checksummed as sealed

Noted = tuple[str, int]  # the list that a piece is an item of ("": it is what stands around them), and its bytes


def pieces(run: Run) -> Iterator[tuple[str, bytes]]:
    """The run as JSON with a line for each value, in pieces that follow each other: an item of one of its lists with the
    list's name, all else with "". Raises ValueError on NaN or infinity."""
    before = b"{"
    for field in msgspec.structs.fields(Run):
        value = getattr(run, field.name)
        head = before + b"\n " + json.dumps(field.encode_name).encode() + b": "
        if isinstance(value, tuple) and value:
            yield "", head + b"["
            for at, item in enumerate(value):
                text = sealed.text(item, 1).replace(b"\n", b"\n  ")  # within a string JSON has none
                yield field.name, (b",\n  " if at else b"\n  ") + text
            before = b"\n ],"
        else:
            yield "", head + sealed.text(value, 1).replace(b"\n", b"\n ")
            before = b","
    yield "", before.removesuffix(b",") + b"\n}"


def noted(run: Run, written: list[Noted]) -> Iterator[bytes]:
    """The pieces, with a newline at the end; each is noted in `written` as it is given."""
    for of, piece in pieces(run):
        written.append((of, len(piece)))
        yield piece
    yield b"\n"


def fits(file: Path, written: Iterable[Noted]) -> None:
    """Raises MsgspecError unless the file reads as a run: what stands around the lists, and item by item what is in them."""
    around = bytearray()
    with file.open("rb") as read:
        for of, length in written:
            piece = read.read(length)
            if of:
                msgspec.json.decode(piece.removeprefix(b","), type=_LISTS[of])
            else:
                around += piece
        msgspec.json.decode(around + read.read(), type=Run)


def _lists() -> dict[str, Any]:
    """The fields of a run that are lists, and what is in them."""
    types = {field.name: field.type for field in msgspec.structs.fields(Run)}
    return {name: get_args(kind)[0] for name, kind in types.items() if get_args(kind)[1:] == (...,)}


_LISTS = _lists()
