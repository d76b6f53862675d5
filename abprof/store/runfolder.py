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
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from abprof.records import (
    SCHEMA,
    UNREADABLE,
    Arm,
    Block,
    Finding,
    Kernel,
    Loss,
    Machine,
    Placed,
    Profile,
    Proof,
    Run,
    Sampled,
    Touched,
    Trace,
)
from abprof.records.errors import AbprofError
from abprof.records.names import short_labels
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
Status = Literal["running", "complete", "interrupted"]
Judge = Callable[[Run, Sequence[Block]], Run]
Wanted = Callable[[Run, Sequence[Block], Sequence[Proof]], set[str]]
_REWRITE = 5.0  # least seconds between rewrites of run.json while measuring
_REWRITE_SHARE = 20.0  # least time between rewrites, in durations of the last rewrite: judging 1000 cells takes seconds


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
        """Replace run.json atomically, after checking that the new file can be read back. Raises ValueError for NaN or
        infinity (JSON has neither), AbprofError if writing fails."""
        text = checksummed.text(run, 1) + b"\n"
        replace(self.path / RUN, text, lambda file: msgspec.json.decode(file.read_bytes(), type=Run))

    def append_block(self, block: Block) -> None:
        """Append a block to rounds.jsonl, and flush the file to disk. Raises ValueError for NaN or infinity,
        AbprofError if writing fails."""
        _append(self.path / ROUNDS, checksummed.line(block))

    def append_finding(self, finding: Finding) -> None:
        """Append a finding to evidence.jsonl, without waiting for the disk: an epoch has several."""
        _append(self.path / EVIDENCE, checksummed.line(finding), flush=False)

    def sweep(self) -> None:
        """Remove temporary files that a killed run left in this folder. No other run may be using the folder."""
        for path in self.path.glob(".*.partial"):
            path.unlink(missing_ok=True)


def _append(target: Path, line: bytes, *, flush: bool = True) -> None:
    with refusals(target), target.open("ab+", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        if end and file.read(1) != b"\n":  # a killed run left part of a line
            file.seek(0)
            end = (file.read() or b"").rfind(b"\n") + 1
            file.truncate(end)
        try:
            pour(file, line, flush=flush)
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
    A `.gitignore` hides the run from `git status`. Raises AbprofError if the folder cannot be made."""
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


# ---------------------------------------------------------------- a run while it is measured


class Record:
    """Collects the results of a run while the run is measured, and writes the results to the run's folder.

    `head`: the run without results (the header). `judge` returns a run with verdicts. `wanted` returns the ids of cells
    that need another epoch. `older`: how many of `blocks`, from the first on, earlier invocations of abprof measured.
    """

    def __init__(
        self,
        folder: RunFolder,
        head: Run,
        blocks: Sequence[Block],
        view: View,
        judge: Judge,
        wanted: Wanted,
        older: int = 0,
    ) -> None:
        self.folder, self.head, self.view = folder, head, view
        self._labels = short_labels(head.cells)
        self.blocks = list(blocks)
        self.proofs = list(head.proofs)
        self.kernels = {kernel_key(kernel): kernel for kernel in head.kernels}
        self.traces = {(trace.cell, trace.arm, trace.by): trace for trace in head.traces}
        self.profiles = {(profile.cell, profile.arm): profile for profile in head.profiles}
        self.sampled = {(one.cell, one.arm): one for one in head.sampled}
        self.older, self.interrupted = older, False
        self._judge, self._wanted = judge, wanted
        self._writing: Block | None = None  # a block that ^C may leave on disk but not in `blocks`
        self._next_write = 0.0

    @property
    def own_blocks(self) -> list[Block]:
        """Blocks that this invocation of abprof measured."""
        return self.blocks[self.older :]

    @property
    def next_epoch(self) -> int:
        return 1 + max((block.epoch for block in self.blocks), default=0)

    def start(self, head: Run) -> None:
        """Set the header, and write run.json for the first time."""
        self.head = head
        self.folder.write_run(head)

    def placed(self, device: str, machine: Machine) -> None:
        """Add a device and its machine to the header, or update the machine if the header has this device."""
        before = self.head.machines.get(device)
        if before:
            made = {(build.side, build.kernel): build for build in (*before.builds, *machine.builds)}
            ceilings = machine.ceilings or before.ceilings
            machine = msgspec.structs.replace(machine, ceilings=ceilings, builds=tuple(made.values()))
        if machine != before:
            self.head = msgspec.structs.replace(self.head, machines={**self.head.machines, device: machine})
            self.folder.append_finding(Finding(placed=Placed(device=device, machine=machine)))

    def knows(self, arm: Arm) -> None:
        """Add `arm` to the header if the header lacks this arm."""
        if arm not in self.head.arms:
            self.head = msgspec.structs.replace(self.head, arms=(*self.head.arms, arm))
            self.folder.append_finding(Finding(arm=arm))

    def lost(self, losses: Sequence[Loss]) -> None:
        """Record lost shards, and drop their blocks of cells that other shards measured again."""
        if losses:
            self.head = msgspec.structs.replace(self.head, losses=(*self.head.losses, *losses))
            self.folder.write_run(self.judged("running"))
            self.blocks[:] = standing(self.head, self.blocks)

    def note(self, found: Iterable[Touched]) -> None:
        """Add files that were changed during the run to the header, and print a warning for each."""
        found = tuple(found)
        self.head = msgspec.structs.replace(self.head, touched=(*self.head.touched, *found))
        for touched in found:
            self.folder.append_finding(Finding(touched=touched))
            self.view.warn(f"{touched.path} was {touched.how} {touched.moment}")

    def add(self, item: Block | Proof | Kernel | Trace | Profile | Sampled) -> None:
        """Add a result. Blocks, proofs and kernels are also written to disk at once."""
        match item:
            case Trace():
                self.traces[item.cell, item.arm, item.by] = item
            case Profile():
                self.profiles[item.cell, item.arm] = item
            case Sampled():
                self.sampled[item.cell, item.arm] = item
            case Kernel():
                if kernel_key(item) not in self.kernels:
                    self.kernels[kernel_key(item)] = item
                    self.folder.append_finding(Finding(kernel=item))
            case Proof():
                self.proofs = merged(self.proofs, [item])
                self.folder.append_finding(Finding(proof=item))
            case Block():
                self._writing = item
                self.folder.append_block(item)
                self.blocks.append(item)
                self._writing = None
                began = time.monotonic()
                if began > self._next_write:
                    self.folder.write_run(self.judged("running"))
                    done = time.monotonic()
                    self._next_write = done + max(_REWRITE, _REWRITE_SHARE * (done - began))

    def wanted(self) -> set[str]:
        """Return the ids of cells that need another epoch, and update the live block."""
        todo = self._wanted(self.head, self.own_blocks, self.proofs)
        cells = self.head.cells
        labels = [self._labels[cell.id] for cell in cells if cell.id in todo]
        self.view.progress(f"epoch {self.next_epoch}", len(cells), labels)
        return todo

    def known(self, status: Status) -> Run:
        """Return the run with the proofs, kernels, traces and profiles so far, but without verdicts."""
        return msgspec.structs.replace(
            self.head,
            status=status,
            proofs=tuple(self.proofs),
            kernels=tuple(self.kernels.values()),
            traces=tuple(self.traces.values()),
            profiles=tuple(self.profiles.values()),
            sampled=tuple(self.sampled.values()),
        )

    def judged(self, status: Status) -> Run:
        """Return the run with verdicts from all blocks so far."""
        return self._judge(self.known(status), self.blocks)

    def close(self, ended: str) -> None:
        """Set the run's end time (ISO 8601), and warn if rounds.jsonl no longer holds the blocks that abprof wrote."""
        self.head = msgspec.structs.replace(self.head, ended=ended)
        self.blocks[:] = standing(self.head, self.blocks)
        with suppress(AbprofError):
            cells = {cell.id for cell in self.head.cells}
            journal = (block for block in blocks(self.folder.path, []) if block.cell in cells)
            # Compare block by block: reading all blocks at once would double the memory.
            for there, kept in itertools.zip_longest(standing(self.head, journal), tuple(self.blocks)):
                if kept is None and there is not None and there == self._writing:
                    self._writing = None
                    self.blocks.append(there)
                elif there != kept:
                    self.note([Touched(path=ROUNDS, how="changed", moment="after abprof wrote it")])
                    return
