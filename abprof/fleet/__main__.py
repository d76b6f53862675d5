"""`python -m abprof.fleet SHARD.json [--with PID] [--more]`: measure a shard here, and print its news (messages.py).

With `--more` the files of further shards of the run come on standard input, a line each, whenever the one before has ended. The
program ends with its input, or if no file comes for a long time.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from abprof.builds import Watch, in_use
from abprof.fleet.messages import (
    IDLE,
    REPEAT_AFTER,
    Began,
    Ended,
    Loaded,
    Measured,
    News,
    Noticed,
    Proved,
    Said,
    Shard,
    read_shard,
)
from abprof.measure import Continued, Plan, RunContext, continued, epochs, follow_up, look_around, make_plan
from abprof.measure.epoch_loop import Item
from abprof.measure.plan import build_kernels, other_cells, watched
from abprof.measure.run_context import Settled, alone, not_busy, signals, worktrees
from abprof.records import Block, Build, Checkout, Kernel, Proof, Run
from abprof.records.errors import AbprofError, Exit
from abprof.records.options import File
from abprof.system import checksummed as sealed
from abprof.system import processes as proc
from abprof.system.console import View
from abprof.system.processes import dies_with
from abprof.verdict import undecided

Tell = Callable[[News], None]


class _NewsView(View):
    """Sends what a person would see as news."""

    def __init__(self, tell: Tell) -> None:
        super().__init__(quiet=True)
        self._tell = tell

    def say(self, line: str, style: str = "") -> None:
        del style
        self._tell(Said(line=line))

    def warn(self, line: str) -> None:
        self._tell(Said(line=line, warning=True))

    def build_line(self, job: str, line: str) -> None:
        """Stays in the build's log."""


class _Progress:
    """Blocks and proofs of the shard's cells, and which cells need one more epoch. No verdict rests on it."""

    def __init__(self, shard: Shard, head: Run) -> None:
        self._shard, self._head = shard, head
        self.blocks, self._proofs = list(shard.blocks), list(shard.proofs)
        self._measured: dict[str, set[int]] = {}  # cell -> epochs here

    @property
    def next_epoch(self) -> int:
        return max(self._shard.first, 1 + max((block.epoch for block in self.blocks), default=0))

    def add(self, item: Item) -> None:
        if isinstance(item, Block):
            self.blocks.append(item)
            self._measured.setdefault(item.cell, set()).add(item.epoch)
        elif isinstance(item, Proof):
            self._proofs.append(item)

    def wanted(self) -> set[str]:
        """Cells without a verdict, and those that the coordinator wants more of."""
        few = {cell for cell, least in self._shard.least.items() if len(self._measured.get(cell, ())) < least}
        return undecided(self._head, self.blocks, self._proofs) | few


class ShardWorker(contextlib.ExitStack):
    """Keeps place, worktrees, plan and builds from one shard to the next.

    A shard that has to build gets fresh worktrees, in which no code under test has run.
    """

    def __init__(self) -> None:
        super().__init__()
        self._place: RunContext | None = None
        self._trees: tuple[Checkout, ...] = ()
        self._plan: Plan | None = None
        self._built: dict[str, tuple[Build, ...]] = {}  # package -> builds made here

    def measure(self, shard: Shard, tell: Tell) -> Ended:
        """Measure a shard. Raises AbprofError if it cannot begin here, KeyboardInterrupt on ^C and SIGTERM."""
        view = _NewsView(tell)
        if shard.cpus:
            os.sched_setaffinity(0, shard.cpus)
        Path(shard.logs).mkdir(parents=True, exist_ok=True)
        with proc.no_orphans():
            place = self._prepared(shard, view)
            with _device(place, shard, view):
                if self._plan is not None:
                    plan = other_cells(place, self._plan, shard.run, Path(shard.logs))
                else:
                    rest = Continued(shard.run, shard.run.cells, part=True, timers=shard.timers)
                    plan = self._plan = make_plan(place, self._trees, Path(shard.logs), view, rest)
                with in_use(place.cache):
                    watch = watched(place, plan)
                    return _measure(place, plan, watch, self._builds(place, plan, shard, view), shard, tell)

    def _prepared(self, shard: Shard, view: View) -> RunContext:
        """The place, with worktrees of the sides."""
        if self._place and self._plan and self._ready(self._plan, shard) is not None:
            return self._place
        self.close()
        options = continued.as_asked(shard.run, shard.repository, shard.budget)
        own = (shard.device,) if shard.device else () if shard.run.machine.kind == "cuda" else options.device
        options = msgspec.structs.replace(options, device=own, probe=(), executor="")
        settled = Settled(shard.run.sides, shard.file or File(), shard.run.id)
        self._plan, self._place = None, look_around(options, view, settled)
        self._trees = self.enter_context(worktrees(self._place, f"{shard.run.id}/{shard.number}", view))
        return self._place

    def _ready(self, plan: Plan, shard: Shard) -> tuple[Build, ...] | None:
        """The shard's builds, if they are here: the run's, made by the same toolchain, or those of an earlier shard."""
        kernels = {cell.kernel for cell in shard.run.cells}
        mine = tuple(build for build in shard.run.builds if build.kernel in kernels)
        if _same_toolchain(plan, shard) and all(build.failure or Path(build.path, "src").is_dir() for build in mine):
            return mine
        names = {build.kernel for build in mine}
        return tuple(b for name in names for b in self._built[name]) if names <= self._built.keys() else None

    def _builds(self, place: RunContext, plan: Plan, shard: Shard, view: View) -> tuple[Build, ...]:
        """The builds that are here; otherwise new ones of the same commits, with this machine's variables, for all sides alike.

        Raises AbprofError if the run's own machine builds from other inputs now.
        """
        ready = self._ready(plan, shard)
        if ready is not None:
            return ready
        made = build_kernels(place, plan, view)
        if _same_toolchain(plan, shard) and shard.held:
            made = continued.same_builds(shard.run, made, place.cache)
        self._built |= {name: tuple(b for b in made if b.kernel == name) for name in {build.kernel for build in made}}
        return made


def _same_toolchain(plan: Plan, shard: Shard) -> bool:
    """Whether the toolchain here made the run's builds."""
    chains = shard.run.toolchains
    return all(chains[side].versions == chain for side, chain in plan.factory.toolchain.items() if side in chains)


@contextlib.contextmanager
def _device(place: RunContext, shard: Shard, view: View) -> Iterator[None]:
    """Hold the device's lease, unless the process that started this one does."""
    if shard.held:
        not_busy(place.device)
        yield
        return
    with alone(place, view, wait=True):
        yield


def _measure(place: RunContext, plan: Plan, watch: Watch, builds: tuple[Build, ...], shard: Shard, tell: Tell) -> Ended:
    machine = place.device.machine()
    head = msgspec.structs.replace(plan.run, builds=builds, machine=machine)
    same = frozenset(shard.identical)
    plan = dataclasses.replace(plan, run=head, arms=shard.arms, timers=shard.timers, identical=same)
    # A GPU's lease is unique in the world; every machine's processor is called cpu.
    device = f"cpu@{machine.host}" if machine.kind == "cpu" and not shard.held else place.device.lease
    best, chains = head.ceilings, head.toolchains
    tell(Began(shard=shard.number, device=device, machine=machine, ceilings=best, toolchains=chains, builds=builds))
    for touched in watch.built(builds, "before it was measured"):
        tell(Noticed(touched=touched))
    progress, began, seconds = _Progress(shard, head), time.monotonic(), 0.0

    def followed_up() -> Iterator[Block]:  # once the epochs have ended
        yield from follow_up(plan, (*shard.earlier, *progress.blocks), progress.next_epoch)

    # Epochs of earlier shards count towards the first look.
    done = len({block.epoch for block in shard.blocks if block.metric and block.judged})
    for items in (epochs(plan, progress.wanted, first=shard.first, done=done, budget=shard.budget), followed_up()):
        for one in items:
            item = one if isinstance(one, Kernel) else msgspec.structs.replace(one, device=device, shard=shard.number)
            if _failed(item) and (why := place.device.gone()):  # every cell would fail here: the device is to blame
                raise AbprofError(why, where=place.device.lease)
            progress.add(item)
            if isinstance(item, Kernel):
                tell(Loaded(kernel=item))
            else:
                tell(Proved(proof=item) if isinstance(item, Proof) else Measured(block=item))
            if isinstance(item, Block):
                for touched in watch.look(f"in epoch {item.epoch}"):
                    tell(Noticed(touched=touched))
        seconds = seconds or time.monotonic() - began
    return Ended(why="done", seconds=seconds, lines=0)


def _failed(item: Item) -> bool:
    """Whether a worker failed in a way that the device may have caused."""
    if isinstance(item, Block):
        return not {"crash", "timeout", "oom"}.isdisjoint(outcome.status for outcome in item.outcomes.values())
    return isinstance(item, Proof) and not item.ok


# ---------------------------------------------------------------- the program


class _Writer:
    """Writes the news of one shard after the other, and counts each one's lines."""

    def __init__(self, descriptor: int) -> None:
        self._out = descriptor
        self.begin(0)

    def begin(self, shard: int) -> None:
        """Start counting; 0 for a shard whose number is not known yet."""
        self._shard, self._lines, self._last = shard, 0, b""

    def tell(self, news: News) -> None:
        """Write one line. Raises OSError if the reader is gone."""
        line = memoryview(sealed.line(news))
        while line:
            line = line[os.write(self._out, line) :]
        self._lines += 1

    def end(self, ended: Ended) -> None:
        """Write the last line."""
        self._last = sealed.line(msgspec.structs.replace(ended, lines=self._lines, shard=self._shard))
        self.repeat_end()

    def repeat_end(self) -> None:
        """Write the last line again: a reader that missed it would wait for ever."""
        with contextlib.suppress(OSError):
            os.write(self._out, self._last)


def _further(orders: int, remind: Callable[[], None]) -> Iterator[Path]:
    """Yield the files of further shards as they come, calling `remind` now and then."""
    rest, end = b"", time.monotonic() + IDLE
    while time.monotonic() < end:
        if not select.select([orders], [], [], REPEAT_AFTER)[0]:
            remind()
            continue
        if not (more := os.read(orders, 65536)):
            return
        *whole, rest = (rest + more).split(b"\n")
        yield from (Path(os.fsdecode(line)) for line in whole)
        end = time.monotonic() + IDLE


def main(argv: list[str] | None = None) -> int:
    """Return the exit code, which is for people: the coordinator reads the news."""
    parser = argparse.ArgumentParser(prog="python -m abprof.fleet")
    parser.add_argument("shard", type=Path)
    parser.add_argument("--with", dest="parent", type=int, help="end when this process, which started it, is gone")
    parser.add_argument("--more", action="store_true", help="further shards' files come on standard input")
    options = parser.parse_args(argv)
    if options.parent:
        dies_with(options.parent)
    # News and orders have descriptors of their own: what anything prints goes to standard error, and no child reads orders.
    out, orders = os.dup(1), os.dup(0)
    os.dup2(2, 1)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    writer = _Writer(out)
    try:
        with signals(), ShardWorker() as worker:
            further = _further(orders, writer.repeat_end) if options.more else ()
            for file in itertools.chain([options.shard], further):
                writer.begin(0)
                shard = read_shard(file.read_bytes())
                writer.begin(shard.number)
                writer.end(worker.measure(shard, writer.tell))
    except (AbprofError, ValueError, OSError) as error:
        reason = error.line if isinstance(error, AbprofError) else str(error)
        print(reason, file=sys.stderr)
        writer.end(Ended(why="refused", reason=reason, lines=0))
        return Exit.CANNOT_RUN
    except KeyboardInterrupt:
        writer.end(Ended(why="interrupted", lines=0))
        return Exit.INTERRUPTED
    return Exit.OK


if __name__ == "__main__":
    sys.exit(main())
