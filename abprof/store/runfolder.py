"""A run's folder: run.json, rounds.jsonl and evidence.jsonl (docs/RUN_FOLDER.md), and what killed runs leave.

run.json is replaced whole, so that a reader or a crash at any moment sees one complete version. rounds.jsonl and
evidence.jsonl only grow, in checksummed lines, so that a killed run keeps every block that had ended.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from abprof.records import SCHEMA, UNREADABLE, Block, Finding, Kernel, Proof, Run
from abprof.records.errors import AbprofError
from abprof.records.options import upgraded
from abprof.records.visible import printable
from abprof.system import checksummed, locks, paths
from abprof.system.console import View
from abprof.system.files import content, pour, reading, refusals, replace

RUN = "run.json"
ROUNDS = "rounds.jsonl"
EVIDENCE = "evidence.jsonl"
LOGS = "logs"
_NOTES = "unfinished"  # in the state folder: a file for each living run
_ELSEWHERE = "choose another place with --runs-dir"
_COPY_AGAIN = "abprof writes it whole and checked: copy the folder again from where it was made"
_Line = TypeVar("_Line", Block, Finding)


@dataclass(frozen=True)
class RunFolder:
    """One run's folder; its name is the run's id."""

    path: Path
    made_parent: bool = False  # this run made the runs folder
    ignores: bool = False  # this run made the .gitignore in the runs folder

    @property
    def id(self) -> str:
        """The run's id."""
        return self.path.name

    @property
    def logs(self) -> Path:
        """Where build and worker logs go."""
        return self.path / LOGS

    def write_run(self, run: Run) -> None:
        """Replace run.json atomically; the bytes on disk are read back strictly before they become run.json.

        Raises ValueError on NaN or infinity (JSON has neither), AbprofError if the disk refuses.
        """
        text = checksummed.text(run, 1) + b"\n"
        replace(self.path / RUN, [text], lambda file: msgspec.json.decode(file.read_bytes(), type=Run))

    def write_text(self, name: str, text: str | Iterable[str]) -> Path:
        """Replace a text file atomically, from one string or from pieces. Raises AbprofError."""
        pieces = [text] if isinstance(text, str) else text
        return replace(self.path / name, (piece.encode(errors="replace") for piece in pieces))

    def append_block(self, block: Block) -> None:
        """Add one line to rounds.jsonl and force it to the disk; a line that does not fit is removed again.

        Raises ValueError on NaN or infinity, AbprofError if the disk refuses.
        """
        _append(self.path / ROUNDS, checksummed.line(block))

    def append_finding(self, finding: Finding) -> None:
        """Add one line to evidence.jsonl: what run.json will hold when it is written again."""
        _append(self.path / EVIDENCE, checksummed.line(finding))

    def sweep(self) -> None:
        """Remove partial files of a killed run. Only while no other run uses the folder."""
        for path in self.path.glob(".*.partial"):
            path.unlink(missing_ok=True)


def _append(target: Path, line: bytes) -> None:
    with refusals(target), target.open("ab+", buffering=0) as file:
        end = _whole_length(file)
        file.truncate(end)  # a killed run may have left part of a line
        try:
            pour(file, line)
        except OSError:
            file.truncate(end)
            raise


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


# ---------------------------------------------------------------- making and removing


@contextlib.contextmanager
def new_folder(runs_dir: Path, id: str, view: View) -> Iterator[RunFolder]:
    """A new run's folder with its log. Removed if the run ends before it has written run.json.

    What `kill -9` leaves is found by a note: a locked file in abprof's state folder that names the run folder.
    """
    notes = paths.state_dir() / _NOTES
    for line in sweep(notes.parent, runs_dir):
        view.say(line)
    note = notes / uuid.uuid4().hex
    while not locks.hold(note):  # another sweep had it open at this moment
        note = notes / uuid.uuid4().hex
    try:
        folder = create(runs_dir, id, lambda path: note.write_text(str(path), errors="surrogateescape"))
        view.attach(folder.path / "output.txt")
        try:
            yield folder
        finally:
            view.detach()
            if not (folder.path / RUN).exists():
                discard(folder)
    finally:
        locks.drop(note)


def create(runs_dir: Path, run_id: str, claim: Callable[[Path], object] = str) -> RunFolder:
    """Make `runs_dir/run_id`, or with `-2`, `-3`, ... if it exists. `claim` is called with each path before it is made.

    A runs folder made here gets a `.gitignore`, so that runs never show in `git status`; in one that holds other files
    the run folder gets it. Raises AbprofError if the folder cannot be made.
    """
    if not run_id or run_id in (".", "..") or "/" in run_id or "\0" in run_id:
        raise ValueError(f"not a folder name: {run_id!r}")
    with refusals(runs_dir, _ELSEWHERE):
        made_parent = not runs_dir.exists()
        runs_dir.mkdir(parents=True, exist_ok=True)
        ignores = not any(runs_dir.iterdir())
        if ignores:
            (runs_dir / ".gitignore").write_text("*\n")
        number, path = 1, runs_dir / run_id
        while True:
            claim(path)
            try:
                path.mkdir(parents=True)  # another run may just have removed the runs folder
                break
            except FileExistsError:
                number += 1
                path = runs_dir / f"{run_id}-{number}"
        (path / LOGS).mkdir()
        if not (runs_dir / ".gitignore").exists():
            (path / ".gitignore").write_text("*\n")
    return RunFolder(path, made_parent, ignores)


def makeable(runs_dir: Path) -> None:
    """Raises AbprofError if no folder can be made in `runs_dir`, as far as can be seen without making one."""
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
    """Remove a run folder without run.json, and what was made around it if it is empty."""
    shutil.rmtree(folder.path, ignore_errors=True)
    runs_dir = folder.path.parent
    with suppress(OSError):
        if folder.ignores and [path.name for path in runs_dir.iterdir()] == [".gitignore"]:
            (runs_dir / ".gitignore").unlink()
        if folder.made_parent:
            runs_dir.rmdir()  # fails if another run has just made its folder here


def sweep(state: Path, runs_dir: Path | None = None) -> list[str]:
    """Remove folders of killed runs that have no run.json (only in `runs_dir`, if given). Returns a line for each."""
    lines = []
    for note in sorted((state / _NOTES).glob("*")):
        folder = _named(note)
        if folder is None or (runs_dir is not None and folder.parent != runs_dir):
            continue
        with locks.abandoned(note) as dead:
            ours = re.fullmatch(r"\d{8}T\d{6}Z-.+", folder.name) and folder.is_dir()
            # A run killed before it made its folder may have named one that another run then made: that run's note lives.
            if dead and ours and not (folder / RUN).exists() and not _claimed(folder, note):
                shutil.rmtree(folder, ignore_errors=True)
                lines.append(f"removed {folder}, which a killed run left without {RUN}")
    return lines


def _named(note: Path) -> Path | None:
    """The folder that a note names; None if its run has just ended."""
    try:
        return Path(note.read_text(errors="surrogateescape") or "/")
    except FileNotFoundError:
        return None


def _claimed(folder: Path, besides: Path) -> bool:
    """Whether a living run's note names the folder."""
    for note in besides.parent.glob("*"):
        if note != besides and _named(note) == folder:
            with locks.abandoned(note) as dead:
                if not dead:
                    return True
    return False


# ---------------------------------------------------------------- reading


def read(path: Path) -> tuple[Run, list[Block], list[str]]:
    """Read a run: its head and results, its whole blocks in file order, and a note for each line that was dropped.

    `path` is the folder, or its run.json. Raises AbprofError if there is no run, if it does not fit the schema, or if a
    newer abprof wrote it.
    """
    folder = path.parent if path.name == RUN else path
    file = folder / RUN
    try:
        data = content(file)
    except (FileNotFoundError, NotADirectoryError):
        raise AbprofError("no run here", where=str(folder), advice=f"a run folder holds {RUN}") from None
    except OSError as error:
        raise AbprofError(error.strerror or str(error), where=str(file)) from None
    run, notes = _read_run(data, file), list[str]()
    found = list(blocks(folder, notes))
    cells = {cell.id for cell in run.cells}
    known = [block for block in found if block.cell in cells]
    if len(known) < len(found):
        notes.append(f"{ROUNDS}: {len(found) - len(known)} blocks are of cells that {RUN} does not have, dropped")
    known = list(standing(run, known))
    if run.observations and not known:
        notes.append(f"{ROUNDS}: no round can be read, so the results are those that {RUN} holds")
    findings = list(_read_lines(folder / EVIDENCE, Finding, "evidence", notes))
    return _completed(run, findings), known, notes


def blocks(folder: Path, notes: list[str]) -> Iterator[Block]:
    """The whole blocks of rounds.jsonl; a note is added for each line that cannot be read."""
    return _read_lines(folder / ROUNDS, Block, "a block", notes)


def standing(run: Run, blocks: Iterable[Block]) -> Iterator[Block]:
    """The blocks without those of lost shards whose cells were measured again."""
    lost = {(loss.shard, cell) for loss in run.losses for cell in loss.cells}
    return (block for block in blocks if not block.shard or (block.shard, block.cell) not in lost)


def _read_lines(file: Path, kind: type[_Line], what: str, notes: list[str]) -> Iterator[_Line]:
    with refusals(file), suppress(FileNotFoundError), reading(file) as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                notes.append(f"{file.name} line {number}: torn (the run was killed while writing it), dropped")
                return
            try:
                read: _Line = checksummed.unseal(line[:-1], kind, what)
                if isinstance(read, Block):
                    read.coherent()
                yield read
            except ValueError as error:
                notes.append(f"{file.name} line {number}: {error}, dropped")


def _read_run(data: bytes, file: Path) -> Run:
    with suppress(*UNREADABLE):  # the usual case
        run = msgspec.json.decode(data, type=Run)
        if run.schema == SCHEMA:
            return run
    try:
        loose: Any = msgspec.json.decode(data)
    except UNREADABLE as error:
        raise AbprofError(f"not JSON: {error}", where=str(file), advice=_COPY_AGAIN) from None
    schema = loose.get("schema") if isinstance(loose, dict) else None
    if isinstance(schema, int) and schema > SCHEMA:
        header = loose.get("header")
        sentence = printable(str(header.get("sentence", "")), 200) if isinstance(header, dict) else ""
        what = f"written by a newer abprof (schema {schema}, this one reads {SCHEMA})"
        what += f"; it says: {sentence}" if sentence else ""
        raise AbprofError(what, where=str(file), advice="update abprof to read this run")
    try:
        return msgspec.convert(upgraded(loose), Run)
    except (*UNREADABLE, KeyError, TypeError, AttributeError) as error:
        what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        raise AbprofError(f"not a run of this abprof: {what}", where=str(file), advice=_COPY_AGAIN) from None


def _completed(run: Run, findings: Sequence[Finding]) -> Run:
    """The run with what evidence.jsonl has and run.json, of a killed run, has not."""
    if not findings:
        return run
    looked = {
        _proof_key(proof): proof for proof in merged((), (one.proof for one in findings if one.proof is not None))
    }
    proofs = tuple(looked.pop(_proof_key(proof), proof) for proof in run.proofs)  # evidence.jsonl has all looks
    kernels = {kernel_key(one.kernel): one.kernel for one in findings if one.kernel is not None}
    kernels |= {kernel_key(kernel): kernel for kernel in run.kernels}  # run.json's may have been read already
    return msgspec.structs.replace(
        run,
        proofs=(*proofs, *looked.values()),
        kernels=tuple(kernels.values()),
        touched=tuple(dict.fromkeys((*run.touched, *(one.touched for one in findings if one.touched is not None)))),
        machines=run.machines | {one.placed.device: one.placed.machine for one in findings if one.placed is not None},
        arms=tuple(dict.fromkeys((*run.arms, *(one.arm for one in findings if one.arm is not None)))),
    )


def merged(proofs: Iterable[Proof], more: Iterable[Proof]) -> list[Proof]:
    """Add proofs. A worker proves itself before and after timing: the same answer twice is one proof of two looks."""
    known = {_proof_key(proof): proof for proof in proofs}
    for proof in more:
        key = _proof_key(proof)
        looks = proof.looks + (known.pop(key).looks if key in known else 0)
        known[key] = msgspec.structs.replace(proof, looks=looks)
    return list(known.values())


def _proof_key(proof: Proof) -> tuple[Any, ...]:
    return proof.epoch, proof.side, proof.kernel, proof.ok, proof.device, proof.shard


def kernel_key(kernel: Kernel) -> tuple[str, ...]:
    """Equal for two records of the same kernel."""
    return kernel.side, kernel.package, kernel.kind, kernel.key, kernel.sha256
