"""Write a run's results to the run's folder while the run is measured."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import Literal

import msgspec

from abprof.records import (
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
from abprof.store import runfolder
from abprof.store.runfolder import RunFolder
from abprof.system.console import View

Status = Literal["running", "complete", "interrupted"]
Judge = Callable[[Run, Sequence[Block]], Run]
Wanted = Callable[[Run, Sequence[Block], Sequence[Proof]], set[str]]
_REWRITE = 5.0  # least seconds between rewrites of run.json while measuring
_REWRITE_SHARE = 20.0  # least time between rewrites, in durations of the last rewrite: judging 1000 cells takes seconds


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
        self.kernels = {runfolder.kernel_key(kernel): kernel for kernel in head.kernels}
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
            self.blocks[:] = runfolder.standing(self.head, self.blocks)

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
                if runfolder.kernel_key(item) not in self.kernels:
                    self.kernels[runfolder.kernel_key(item)] = item
                    self.folder.append_finding(Finding(kernel=item))
            case Proof():
                self.proofs = runfolder.merged(self.proofs, [item])
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
        self.blocks[:] = runfolder.standing(self.head, self.blocks)
        with contextlib.suppress(AbprofError):
            cells = {cell.id for cell in self.head.cells}
            journal = (block for block in runfolder.blocks(self.folder.path, []) if block.cell in cells)
            # Compare block by block: reading all blocks at once would double the memory.
            for there, kept in zip_longest(runfolder.standing(self.head, journal), tuple(self.blocks)):
                if kept is None and there is not None and there == self._writing:
                    self._writing = None
                    self.blocks.append(there)
                elif there != kept:
                    self.note([Touched(path=runfolder.ROUNDS, how="changed", moment="after abprof wrote it")])
                    return
