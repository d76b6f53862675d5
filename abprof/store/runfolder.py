"""Make, write, read and remove run folders (docs/RUN_FOLDER.md).

run.json is replaced atomically, so readers always see a complete version. A killed run keeps every finished block,
because abprof only appends lines to rounds.jsonl and evidence.jsonl, and every line has a checksum.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from abprof.records import SCHEMA, UNREADABLE, Block, Finding, Kernel, Proof, Run
from abprof.records.errors import AbprofError
from abprof.records.options import upgraded
from abprof.system import checksummed, locks, paths
from abprof.system.console import View
from abprof.system.files import pour, read_named, refusals, replace

RUN = "run.json"
ROUNDS = "rounds.jsonl"
EVIDENCE = "evidence.jsonl"
LOGS = "logs"
_NOTES = "unfinished"  # folder in the state folder, with a locked file for each running run
_IGNORE_ALL = "*\n"
_COPY = "copy the run folder again from where abprof wrote it"
_Line = TypeVar("_Line", Block, Finding)


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run; the folder's name is the run's id."""

    path: Path

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def logs(self) -> Path:
        """Path of the folder with the logs of builds and workers."""
        return self.path / LOGS

    def write_run(self, run: Run) -> None:
        """Replace run.json atomically, after checking that the new file can be read back.

        Raises ValueError for NaN or infinity (JSON has neither), AbprofError if writing fails.
        """
        text = checksummed.text(run, 1) + b"\n"
        replace(self.path / RUN, text, lambda file: msgspec.json.decode(file.read_bytes(), type=Run))

    def append_block(self, block: Block) -> None:
        """Append a block to rounds.jsonl, and flush the file to disk.

        Raises ValueError for NaN or infinity, AbprofError if writing fails.
        """
        _append(self.path / ROUNDS, checksummed.line(block))

    def append_finding(self, finding: Finding) -> None:
        """Append a finding to evidence.jsonl, and flush the file to disk."""
        _append(self.path / EVIDENCE, checksummed.line(finding))

    def sweep(self) -> None:
        """Remove temporary files that a killed run left in this folder. No other run may be using the folder."""
        for path in self.path.glob(".*.partial"):
            path.unlink(missing_ok=True)


def _append(target: Path, line: bytes) -> None:
    with refusals(target), target.open("ab+", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        if end and file.read(1) != b"\n":  # a killed run left part of a line
            file.seek(0)
            end = (file.read() or b"").rfind(b"\n") + 1
            file.truncate(end)
        try:
            pour(file, line)
        except OSError:
            file.truncate(end)
            raise


# ---------------------------------------------------------------- making and removing


@contextlib.contextmanager
def new_folder(runs_dir: Path, id: str, view: View) -> Iterator[RunFolder]:
    """Make the folder of a new run, and append what `view` prints to a log there while the block runs.
    Afterwards, remove the folder if it has no run.json."""
    for line in sweep(paths.state_dir(), runs_dir):
        view.say(line)
    folder = create(runs_dir, id, _claim)
    try:
        view.attach(folder.path / "output.txt")
        try:
            yield folder
        finally:
            view.detach()
            if not (folder.path / RUN).exists():
                _discard(folder.path)
    finally:
        locks.drop(_lock_of(folder.path))


def _lock_of(path: Path) -> Path:
    return paths.state_dir() / _NOTES / hashlib.sha256(os.fsencode(path)).hexdigest()[:16]


def _claim(path: Path) -> bool:
    if not locks.hold(_lock_of(path)):
        return False
    _lock_of(path).write_text(str(path), errors="surrogateescape")
    return True


def create(runs_dir: Path, run_id: str, claim: Callable[[Path], bool] = lambda _: True) -> RunFolder:
    """Make the folder `runs_dir/run_id`, with `-2`, `-3`, ... appended if the name is taken or `claim(path)` is False.

    A `.gitignore` hides the run from `git status`. Raises AbprofError if the folder cannot be made.
    """
    with refusals(runs_dir, "choose another place with --runs-dir"):
        runs_dir.mkdir(parents=True, exist_ok=True)
        if not any(runs_dir.iterdir()):
            (runs_dir / ".gitignore").write_text(_IGNORE_ALL)
        for number in itertools.count(1):
            path = runs_dir / (run_id if number == 1 else f"{run_id}-{number}")
            if claim(path):
                try:
                    path.mkdir(parents=True)  # another run may just have removed the runs folder
                    break
                except FileExistsError:
                    locks.drop(_lock_of(path))
        (path / LOGS).mkdir()
        if not (runs_dir / ".gitignore").exists():
            (path / ".gitignore").write_text(_IGNORE_ALL)
    return RunFolder(path)


def _discard(path: Path) -> None:
    """Remove the run folder `path`, and also the runs folder if no other run is left there."""
    shutil.rmtree(path, ignore_errors=True)
    ignore = path.parent / ".gitignore"
    with suppress(OSError):
        if list(path.parent.iterdir()) == [ignore] and ignore.read_text() == _IGNORE_ALL:
            ignore.unlink()
            path.parent.rmdir()  # fails if another run has just made its folder here


def sweep(state: Path, runs_dir: Path | None = None) -> list[str]:
    """Remove folders without run.json that killed runs left, in `runs_dir` or anywhere. Return a message for each."""
    lines = []
    for note in sorted((state / _NOTES).glob("*")):
        with suppress(FileNotFoundError):  # the run has just ended
            folder = Path(note.read_text(errors="surrogateescape"))
            if runs_dir is None or folder.parent == runs_dir:
                with locks.abandoned(note) as dead:
                    ours = re.fullmatch(r"\d{8}T\d{6}Z-.+", folder.name) and folder.is_dir()
                    if dead and ours and not (folder / RUN).exists():
                        shutil.rmtree(folder, ignore_errors=True)
                        lines.append(f"removed {folder}, which a killed run left without {RUN}")
    return lines


# ---------------------------------------------------------------- reading


def read(path: Path) -> tuple[Run, list[Block], list[str]]:
    """Return a run, its valid blocks (each: one cell's rounds in one epoch) in file order, and notes on lines left out.

    `path`: the run folder or its run.json. Raises AbprofError if run.json is missing, invalid or from a newer abprof.
    """
    folder = path.parent if path.name == RUN else path
    file = folder / RUN
    if not os.path.lexists(file):
        raise AbprofError("no run here", where=str(folder), advice=f"a run folder holds {RUN}")
    data = read_named(file, 4 << 30)
    run, notes = _read_run(data, file), list[str]()
    found = list(blocks(folder, notes))
    cells = {cell.id for cell in run.cells}
    known = [block for block in found if block.cell in cells]
    if len(known) < len(found):
        notes.append(f"{ROUNDS}: {len(found) - len(known)} blocks are of cells that {RUN} does not have, dropped")
    known = list(standing(run, known))
    if run.observations and not known:
        notes.append(f"{ROUNDS}: no round can be read, so the results are those of {RUN}")
    findings = list(_read_lines(folder / EVIDENCE, Finding, "evidence", notes))
    return _completed(run, findings), known, notes


def blocks(folder: Path, notes: list[str]) -> Iterator[Block]:
    """Yield the valid blocks of rounds.jsonl, and add a note for each invalid line to `notes`."""
    return _read_lines(folder / ROUNDS, Block, "a block", notes)


def standing(run: Run, blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield `blocks`, leaving out those of lost shards if other shards measured their cells again."""
    lost = {(loss.shard, cell) for loss in run.losses for cell in loss.cells}
    return (block for block in blocks if not block.shard or (block.shard, block.cell) not in lost)


def _read_lines(file: Path, kind: type[_Line], what: str, notes: list[str]) -> Iterator[_Line]:
    with refusals(file), suppress(FileNotFoundError), file.open("rb") as lines:
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
        raise AbprofError(f"damaged after abprof wrote it: not JSON: {error}", where=str(file), advice=_COPY) from None
    schema = loose.get("schema") if isinstance(loose, dict) else None
    if isinstance(schema, int) and schema > SCHEMA:
        what = f"written by a newer abprof (schema {schema}, this one reads {SCHEMA})"
        raise AbprofError(what, where=str(file), advice="update abprof to read this run")
    try:
        return msgspec.convert(upgraded(loose), Run)
    except (*UNREADABLE, KeyError, TypeError, AttributeError) as error:
        what = f"no field {error}" if isinstance(error, KeyError) else str(error)
        raise AbprofError(f"damaged after abprof wrote it: {what}", where=str(file), advice=_COPY) from None


def _completed(run: Run, findings: Sequence[Finding]) -> Run:
    """Return the run, with those findings of evidence.jsonl added that run.json lacks."""
    if not findings:
        return run

    def found(field: str) -> list[Any]:
        return [value for finding in findings if (value := getattr(finding, field)) is not None]

    looked = {_proof_key(proof): proof for proof in merged((), found("proof"))}
    proofs = tuple(looked.pop(_proof_key(proof), proof) for proof in run.proofs)  # evidence.jsonl has all checks
    kernels = {kernel_key(kernel): kernel for kernel in (*found("kernel"), *run.kernels)}  # run.json's has more
    return msgspec.structs.replace(
        run,
        proofs=(*proofs, *looked.values()),
        kernels=tuple(kernels.values()),
        touched=tuple(dict.fromkeys((*run.touched, *found("touched")))),
        machines=run.machines | {placed.device: placed.machine for placed in found("placed")},
        arms=tuple(dict.fromkeys((*run.arms, *found("arm")))),
    )


def merged(proofs: Iterable[Proof], more: Iterable[Proof]) -> list[Proof]:
    """Return all proofs, merging those with equal side, kernel, epoch and result: `looks` counts their checks."""
    known = {_proof_key(proof): proof for proof in proofs}
    for proof in more:
        key = _proof_key(proof)
        looks = proof.looks + (known.pop(key).looks if key in known else 0)
        known[key] = msgspec.structs.replace(proof, looks=looks)
    return list(known.values())


def _proof_key(proof: Proof) -> tuple[Any, ...]:
    return proof.epoch, proof.side, proof.kernel, proof.ok, proof.device, proof.shard


def kernel_key(kernel: Kernel) -> tuple[str, ...]:
    """Return the fields that identify a compiled kernel."""
    return kernel.side, kernel.package, kernel.kind, kernel.key, kernel.sha256
