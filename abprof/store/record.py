"""The run while it is made: its head and what was measured so far. Saved as each block ends."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import zip_longest
from typing import Literal

import msgspec

from abprof.evidence.causes import explained
from abprof.evidence.machine_code import kernels
from abprof.evidence.machine_code.reader import Reader
from abprof.measure import resume as rerun
from abprof.measure import timers
from abprof.records import (
    Arm,
    Block,
    Build,
    Kernel,
    Loss,
    Machine,
    Placed,
    Profile,
    Proof,
    Run,
    Sampled,
    Told,
    Touched,
    Trace,
    names,
)
from abprof.records.errors import AbprofError
from abprof.store import runfolder
from abprof.store.recovery import identity, merged
from abprof.store.runfolder import RunFolder
from abprof.system.console import View
from abprof.verdict import CellCache, judge, provisional, undecided

Until = Callable[[Run, Sequence[Block], Sequence[Proof]], set[str]]  # ids of the cells that need one more epoch
_REWRITE = 5.0  # seconds between rewrites of run.json while measuring
_REWRITE_SHARE = 20.0  # and at least so many times what the last one took: a thousand cells take seconds to judge


class Record:
    """Grows block by block. run.json stands before the first turn, and is rewritten with what is known so far.

    What is told is known here before it is on the disk: where ^C comes in between, the report that follows has it.
    """

    def __init__(
        self,
        folder: RunFolder,
        head: Run,
        blocks: list[Block],
        view: View,
        older: int = 0,
        until: Until | None = None,
    ) -> None:
        self.folder = folder
        self.head = head
        self.view = view
        self.blocks = list(blocks)
        self.proofs: list[Proof] = list(head.proofs)
        self.kernels = {identity(kernel): kernel for kernel in head.kernels}
        self.traces = {(trace.cell, trace.arm, trace.by): trace for trace in head.traces}
        self.profiles = {(profile.cell, profile.arm): profile for profile in head.profiles}
        self.sampled = {(one.cell, one.arm): one for one in head.sampled}
        self.older = older  # blocks of earlier invocations: a rerun plans its looks on its own
        self._kept = CellCache()
        self._fresh = CellCache() if older else self._kept  # of this invocation's blocks alone
        self.until = until or partial(undecided, aggregate=self._fresh.aggregate)
        self.interrupted = False
        self._writing: Block | None = None  # on its way to the disk: ^C may find it there, and not yet among the blocks
        self._labels = names.short_labels(head.cells)
        self._cells = {cell.id: cell for cell in head.cells}
        self._of = _by_cell(self.blocks)
        self._next_write = 0.0

    @property
    def next_epoch(self) -> int:
        """The number of the next epoch."""
        return 1 + max((block.epoch for block in self.blocks), default=0)

    @property
    def done(self) -> int:
        """Epochs that count towards this invocation's first look: those of an interrupted run that is resumed."""
        ours = [block for block in self.blocks[self.older :] if block.metric and block.judged]
        return len({block.epoch for block in ours if not block.quick})

    def start(self, builds: tuple[Build, ...], **more: object) -> None:
        """The builds are known: write the head."""
        self.head = msgspec.structs.replace(self.head, builds=builds, **more)
        self.folder.write_run(self.head)

    def placed(self, device: str, machine: Machine) -> None:
        """A device that part of the run is measured on. What was told of it before stands."""
        before = self.head.machines.get(device)
        if before:
            made = {(build.side, build.kernel): build for build in (*before.builds, *machine.builds)}
            best = machine.ceilings or before.ceilings
            machine = msgspec.structs.replace(machine, ceilings=best, builds=tuple(made.values()))
        if machine != before:
            self.head = msgspec.structs.replace(self.head, machines={**self.head.machines, device: machine})
            self.folder.append_told(Told(placed=Placed(device=device, machine=machine)))

    def knows(self, arm: Arm) -> None:
        """An arm that takes turns in some cell."""
        if arm not in self.head.arms:
            self.head = msgspec.structs.replace(self.head, arms=(*self.head.arms, arm))
            self.folder.append_told(Told(arm=arm))

    def lost(self, losses: Sequence[Loss]) -> None:
        """What these shards measured of these cells does not stand any more; on disk first."""
        if losses:
            self.head = msgspec.structs.replace(self.head, losses=(*self.head.losses, *losses))
            self.folder.write_run(self.judged("running"))
            self.blocks[:] = list(runfolder.standing(self.head, self.blocks))
            self._of = _by_cell(self.blocks)

    def wanted(self) -> set[str]:
        """Cells that need one more epoch."""
        todo = self.until(self.head, self.blocks[self.older :], self.proofs)
        self.view.progress(f"epoch {self.next_epoch}: {len(todo)} of {len(self.head.cells)} cells undecided")
        return todo

    def epochs(self) -> dict[str, int]:
        """Cell -> epochs of this invocation that its verdict can rest on."""
        head = msgspec.structs.replace(self.head, proofs=tuple(self.proofs))
        return rerun.epochs(head, self.blocks[self.older :], self._fresh.aggregate)

    def add(self, item: Block | Proof | Kernel | Trace | Profile | Sampled) -> None:
        """Keep a block on disk before anything else is done with it."""
        if isinstance(item, Kernel):
            self._compiled(item)
            return
        if isinstance(item, Trace):
            self.traces[item.cell, item.arm, item.by] = item  # a later one stands for the same code
            return
        if isinstance(item, Profile):
            self.profiles[item.cell, item.arm] = item
            return
        if isinstance(item, Sampled):
            self.sampled[item.cell, item.arm] = item
            return
        if isinstance(item, Proof):
            self._prove(item)
            return
        self._writing = item
        self.folder.append_block(item)
        self.blocks.append(item)
        self._writing = None
        self._of.setdefault(item.cell, []).append(item)
        self._show(item)
        began = time.monotonic()
        if began > self._next_write:
            self.folder.write_run(self.judged("running"))
            done = time.monotonic()
            self._next_write = done + max(_REWRITE, _REWRITE_SHARE * (done - began))

    def note(self, found: Iterable[Touched]) -> None:
        """Files that changed and should not have: they stand in the head, for every later judgement."""
        told = tuple(found)
        self.head = msgspec.structs.replace(self.head, touched=(*self.head.touched, *told))
        for one in told:
            self.folder.append_told(Told(touched=one))
            self.view.warn(f"{one.path} was {one.how} {one.moment}")

    def _rounds_touched(self) -> Iterator[Touched]:
        """Whether rounds.jsonl, of which reports are made again, holds what was measured. What ^C found on its way is a
        round like the others once it is on the disk."""
        self.blocks[:] = list(runfolder.standing(self.head, self.blocks))
        with contextlib.suppress(AbprofError):
            ours = {cell.id for cell in self.head.cells}
            found = (block for block in runfolder.blocks(self.folder.path, []) if block.cell in ours)
            # Block by block: all of them once more would take their memory twice.
            for there, kept in zip_longest(runfolder.standing(self.head, found), tuple(self.blocks)):
                if kept is None and there is not None and there == self._writing:
                    self._writing = None
                    self.blocks.append(there)
                elif there != kept:
                    yield Touched(path=runfolder.ROUNDS, how="changed", moment="after abprof wrote it")
                    return

    def read_kernels(self, reader: Reader) -> None:
        """What the machine code of everything loaded is made of. To be called after all timing."""
        run = msgspec.structs.replace(self.head, proofs=tuple(self.proofs))
        read = {identity(kernel): kernel for kernel in kernels.read_all(run, self.kernels.values(), reader)}
        lost = {who for who, kernel in read.items() if kernel.missing and who in self.kernels}  # their files are gone
        self.kernels |= {who: kernel for who, kernel in read.items() if who not in lost}
        self.kernels |= {who: read[who] for who in lost if self.kernels[who].missing}

    def _compiled(self, item: Kernel) -> None:
        if identity(item) not in self.kernels:
            self.kernels[identity(item)] = item
            self.folder.append_told(Told(kernel=item))

    def _prove(self, item: Proof) -> None:
        self.proofs = merged(self.proofs, [item])
        self.folder.append_told(Told(proof=item))

    def _show(self, block: Block) -> None:
        if block.beside:  # what has no time there is told where its row is
            return
        label = self._labels.get(block.cell, block.cell)
        for arm, outcome in block.outcomes.items():
            if outcome.status not in {"ok", "identical"}:
                self.view.say(f"  {label}  {arm}: {outcome.status}, {outcome.reason}")
        if not (block.judged and block.rounds):
            return
        # Asked of this cell alone: what all of them say takes long when there are a thousand.
        head = msgspec.structs.replace(self.head, cells=(self._cells[block.cell],))
        for row in provisional(head, self._of[block.cell]):
            epochs = "1 epoch" if row.epochs == 1 else f"{row.epochs} epochs"
            self.view.say(f"  {label}  {row.before} -> {row.after}: {row.pct:+.2f} % of time so far ({epochs})")

    def judged(self, status: Literal["running", "complete", "interrupted"]) -> Run:
        """The run with verdicts on everything measured so far; with its own results where no round is left to judge."""
        found = {
            "kernels": tuple(self.kernels.values()),
            "traces": tuple(self.traces.values()),
            "profiles": tuple(self.profiles.values()),
            "sampled": tuple(self.sampled.values()),
        }
        notes = tuple(dict.fromkeys((*self.head.notes, *timers.notes(self.blocks))))
        head = msgspec.structs.replace(self.head, status=status, notes=notes, **found)
        if head.observations and not self.blocks:
            return head
        judgement = judge(head, self.blocks, self.proofs, self._kept.aggregate)
        run = msgspec.structs.replace(
            head,
            header=judgement.header,
            observations=judgement.observations,
            comparisons=judgement.comparisons,
            within=judgement.within,
            controls=judgement.controls,
            proofs=tuple(self.proofs),
            kernels=head.kernels,
            warnings=judgement.warnings,
        )
        return explained(run)

    def finish(self, status: Literal["running", "complete", "interrupted"] | None = None) -> Run:
        """Judge, write run.json and every report. `status` keeps that of a run that is only reported again."""
        from abprof import report

        if status is None:
            ended = datetime.now(UTC).isoformat(timespec="seconds")
            self.head = msgspec.structs.replace(self.head, ended=ended)
            self.note(self._rounds_touched())
        run = self.judged(status or ("interrupted" if self.interrupted else "complete"))
        self._kept.clear()
        self._fresh.clear()
        self.folder.write_run(run)
        self.view.detach()
        report.write_all(self.folder.path, run, self.blocks)
        return run


def _by_cell(blocks: Sequence[Block]) -> dict[str, list[Block]]:
    found: dict[str, list[Block]] = {}
    for block in blocks:
        found.setdefault(block.cell, []).append(block)
    return found
