"""The doorway to a run folder: the only place that writes or reads run.json, rounds.jsonl and evidence.jsonl
(docs/RUN_FOLDER.md).

run.json is replaced whole, so that a reader or a crash at any moment sees one complete version. rounds.jsonl and
evidence.jsonl only grow, in checksummed lines, so that a killed run keeps every block that had ended, and what was loaded.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from abprof.records import SCHEMA, UNREADABLE, Block, Run, Told
from abprof.records.errors import AbprofError
from abprof.records.options import upgraded
from abprof.records.visible import printable
from abprof.store import streaming as page
from abprof.store.recovery import completed
from abprof.system import checksummed as sealed
from abprof.system.files import content, pour, reading, refusals, replace

RUN = "run.json"
ROUNDS = "rounds.jsonl"
EVIDENCE = "evidence.jsonl"
LOGS = "logs"
_ELSEWHERE = "choose another place with --runs-dir"
_Line = TypeVar("_Line", Block, Told)
_RESULTS = ("header", "observations", "comparisons", "within", "controls", "warnings")  # what rounds.jsonl gives again


@dataclass(frozen=True)
class RunFolder:
    """One run's folder. `id` is the folder's name, and what `Run.id` must be."""

    path: Path
    made_parent: bool = False  # the runs folder did not exist before
    ignores: bool = False  # the .gitignore in the runs folder is of this run's making

    @property
    def id(self) -> str:
        """The run's id: the folder's name."""
        return self.path.name

    @property
    def logs(self) -> Path:
        """Where build and worker logs go."""
        return self.path / LOGS

    def write_run(self, run: Run) -> None:
        """Replace run.json atomically; the bytes on disk are read back strictly before they become run.json.

        Raises ValueError on NaN or infinity (JSON has neither), AbprofError when the disk refuses.
        """
        written: list[tuple[str, int]] = []
        replace(self.path / RUN, page.noted(run, written), lambda file: page.fits(file, written))

    def write_text(self, name: str, text: str | Iterable[str]) -> Path:
        """Replace a file that is made from the run (a table, a page) atomically, by the whole or by pieces that are made as
        they are written. Raises AbprofError."""
        pieces = [text] if isinstance(text, str) else text
        return replace(self.path / name, (piece.encode(errors="replace") for piece in pieces))

    def append_block(self, block: Block) -> None:
        """Add one line to rounds.jsonl and force it to the disk. A line that does not fit is taken back whole.

        Raises ValueError on NaN or infinity, AbprofError when the disk refuses.
        """
        _append(self.path / ROUNDS, sealed.line(block))

    def append_told(self, told: Told) -> None:
        """The same in evidence.jsonl, of what run.json is to hold when it is written again."""
        _append(self.path / EVIDENCE, sealed.line(told))

    def sweep(self) -> None:
        """Remove what a killed run left of files that it was replacing. Only while no other run is at work here."""
        for path in self.path.glob(".*.partial"):
            path.unlink(missing_ok=True)


def _append(target: Path, line: bytes) -> None:
    with refusals(target), target.open("ab+", buffering=0) as file:
        end = _whole_length(file)
        file.truncate(end)  # what a killed run left of its last line
        try:
            pour(file, line)
        except OSError:
            file.truncate(end)
            raise


def create(runs_dir: Path, run_id: str, claim: Callable[[Path], object] = str) -> RunFolder:
    """Make a folder that no other run has: `runs_dir/run_id`, or with `-2`, `-3`, ... when that is taken. `claim` is
    told of each before it is tried.

    A runs folder made here gets a `.gitignore`, so that runs never show in `git status`; one that already holds
    something of the user's is left as it is and the run folder gets the `.gitignore` instead.
    Raises AbprofError when the folder cannot be made.
    """
    if not run_id or run_id in (".", "..") or "/" in run_id or "\0" in run_id:
        raise ValueError(f"not a folder name: {run_id!r}")
    with refusals(runs_dir, _ELSEWHERE):
        made_parent = not runs_dir.exists()
        runs_dir.mkdir(parents=True, exist_ok=True)
        ignores = not any(runs_dir.iterdir())
        if ignores:
            _ignore(runs_dir)
        path = _make_unshared(runs_dir, run_id, claim)
        (path / LOGS).mkdir()
        if not (runs_dir / ".gitignore").exists():
            _ignore(path)
    return RunFolder(path, made_parent, ignores)


def makeable(runs_dir: Path) -> None:
    """Raises AbprofError where no folder can be made in `runs_dir`, as far as can be told without making one."""
    with refusals(runs_dir, _ELSEWHERE):
        there = next(path for path in (runs_dir, *runs_dir.parents) if path.exists())
        if not there.is_dir():
            kind = errno.EEXIST if there == runs_dir else errno.ENOTDIR
        elif os.access(there, os.W_OK | os.X_OK):
            return
        else:
            kind = errno.EACCES
        raise OSError(kind, os.strerror(kind))


def discard(folder: RunFolder) -> None:
    """Remove a run folder in which no run.json ever stood, and what was made around it if nobody else uses that."""
    shutil.rmtree(folder.path, ignore_errors=True)
    runs_dir = folder.path.parent
    with suppress(OSError):
        if folder.ignores and [path.name for path in runs_dir.iterdir()] == [".gitignore"]:
            (runs_dir / ".gitignore").unlink()
        if folder.made_parent:
            runs_dir.rmdir()  # refused by the system when another run has just made its folder here


def read(path: Path) -> tuple[Run, list[Block], list[str]]:
    """A run folder's head and results, its whole blocks in file order, and a note for each block that was dropped.

    `path` is the folder, or its run.json. Raises AbprofError when there is no run, when it does not fit the schema,
    or when a newer abprof wrote it.
    """
    folder = path.parent if path.name == RUN else path
    file = folder / RUN
    try:
        data = content(file)
    except (FileNotFoundError, NotADirectoryError):
        raise AbprofError("no run here", where=str(folder), advice=f"a run folder holds {RUN}") from None
    except OSError as error:
        raise AbprofError(error.strerror or str(error), where=str(file)) from None
    run, notes = _read_run(data, file)
    del data
    found, dropped = read_blocks(folder)
    cells = {cell.id for cell in run.cells}
    known = [block for block in found if block.cell in cells]
    if len(known) < len(found):
        dropped.append(f"{ROUNDS}: {len(found) - len(known)} blocks are of cells that {RUN} does not have, dropped")
    known = list(standing(run, known))
    if run.observations and not known:
        dropped.append(f"{ROUNDS}: no round can be read, so the results are those that {RUN} holds")
    torn: list[str] = []
    told = list(_read_lines(folder / EVIDENCE, Told, "evidence", torn))
    return completed(run, told), known, notes + dropped + torn


def standing(run: Run, blocks: Iterable[Block]) -> Iterator[Block]:
    """The blocks without those of lost shards whose cells were measured again."""
    lost = {(loss.shard, cell) for loss in run.losses for cell in loss.cells}
    return (block for block in blocks if not block.shard or (block.shard, block.cell) not in lost)


def _read_run(data: bytes, file: Path) -> tuple[Run, list[str]]:
    with suppress(*UNREADABLE):  # the usual one; what else may be is looked at more closely
        run = _decode_run(data)
        if run.schema == SCHEMA:
            return run, []
    data, notes = _finite(data)
    _refuse_newer(data, file)
    try:
        return _decode_run(data), notes
    except UNREADABLE as error:
        raise AbprofError(f"not a run of this abprof: {error}", where=str(file), advice=_WHOLE) from None


def _finite(data: bytes) -> tuple[bytes, list[str]]:
    """The bytes of run.json without its results if a number in it is none, for they are made again from the rounds."""
    with suppress(*UNREADABLE):
        msgspec.json.decode(data)
        return data, []
    strange: list[str] = []

    def number(text: str) -> float | None:
        value = float(text)
        if isfinite(value):
            return value
        strange.append(text)
        return None

    try:
        loose = json.loads(data, parse_constant=strange.append, parse_float=number)
    except (ValueError, RecursionError):
        return data, []
    if not strange or not isinstance(loose, dict):
        return data, []
    kept = {key: value for key, value in loose.items() if key not in _RESULTS}
    said = f"{RUN}: a number in it is {strange[0]}, which JSON has not; its results are made again from {ROUNDS}"
    return json.dumps(kept).encode(), [said]


def read_blocks(folder: Path) -> tuple[list[Block], list[str]]:
    """The blocks of rounds.jsonl that are whole and a note for each that is not. No file means no
    block yet."""
    notes: list[str] = []
    return list(blocks(folder, notes)), notes


def blocks(folder: Path, notes: list[str]) -> Iterator[Block]:
    """The same one by one; what cannot be read is added to the notes."""
    yield from _read_lines(folder / ROUNDS, Block, "a block", notes)


def _read_lines(file: Path, kind: type[_Line], what: str, notes: list[str]) -> Iterator[_Line]:
    with refusals(file), suppress(FileNotFoundError), reading(file) as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                notes.append(f"{file.name} line {number}: torn (the run was killed while writing it), dropped")
                return
            try:
                read: _Line = sealed.unseal(line[:-1], kind, what)
                if isinstance(read, Block):
                    read.coherent()
                yield read
            except ValueError as error:
                notes.append(f"{file.name} line {number}: {error}, dropped")


def _decode_run(data: bytes) -> Run:
    """Raises what UNREADABLE names. A run of schema 1 is read as if it were written now."""
    if msgspec.json.decode(data, type=_Schema).schema != 1:
        return msgspec.json.decode(data, type=Run)
    try:
        return msgspec.convert(upgraded(msgspec.json.decode(data)), Run)
    except (KeyError, TypeError, AttributeError) as error:
        raise msgspec.ValidationError(f"lacks {error}") from error


class _Schema(msgspec.Struct):
    schema: int = SCHEMA


_WHOLE = "abprof writes it whole and checked: copy the folder again from where it was made"


def _refuse_newer(data: bytes, file: Path) -> None:
    try:
        loose: Any = msgspec.json.decode(data)
    except UNREADABLE as error:
        raise AbprofError(f"not JSON: {error}", where=str(file), advice=_WHOLE) from None
    schema = loose.get("schema") if isinstance(loose, dict) else None
    if isinstance(schema, int) and schema > SCHEMA:
        what = f"written by a newer abprof (schema {schema}, this one reads {SCHEMA})"
        header = loose.get("header")
        said = str(header.get("sentence", "")) if isinstance(header, dict) else ""
        said = printable(said, 200)
        what += f"; it says: {said}" if said else ""
        raise AbprofError(what, where=str(file), advice="update abprof to read this run")


def _make_unshared(runs_dir: Path, run_id: str, claim: Callable[[Path], object]) -> Path:
    number = 1
    while True:
        path = runs_dir / (run_id if number == 1 else f"{run_id}-{number}")
        claim(path)
        try:
            path.mkdir(parents=True)  # a run that was refused may just have removed the runs folder
        except FileExistsError:
            number += 1
            continue
        return path


def _ignore(folder: Path) -> None:
    (folder / ".gitignore").write_text("*\n")


def _whole_length(file: FileIO) -> int:
    """Bytes up to and with the last newline."""
    size = file.seek(0, os.SEEK_END)
    if not size:
        return 0
    file.seek(size - 1)
    if file.read(1) == b"\n":
        return size
    file.seek(0)
    return (file.read() or b"").rfind(b"\n") + 1
