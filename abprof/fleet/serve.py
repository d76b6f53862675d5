"""A shard, measured: the same way as a run in one process, on a device of its own, with its news told and nothing written."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from abprof.builds import Watch, in_use
from abprof.fleet.messages import Began, Ended, Loaded, Measured, News, Noticed, Proved, Said, Shard
from abprof.measure import continued
from abprof.measure.epochs import Item, epochs
from abprof.measure.followup import follow_up
from abprof.measure.plan import Continued, Plan, build_kernels, make_plan, other_cells, watched
from abprof.measure.resources import alone, not_busy, worktrees
from abprof.measure.run_context import RunContext, Settled, look_around
from abprof.records import Block, Build, Checkout, Kernel, Proof, Run
from abprof.records.errors import AbprofError
from abprof.records.options import File
from abprof.system import processes as proc
from abprof.system.console import View
from abprof.verdict import undecided

Tell = Callable[[News], None]


class Telling(View):
    """What a person would see is told, and shown where the run is."""

    def __init__(self, tell: Tell) -> None:
        super().__init__(quiet=True)
        self._tell = tell

    def say(self, line: str, style: str = "") -> None:
        del style
        self._tell(Said(line=line))

    def warn(self, line: str) -> None:
        self._tell(Said(line=line, warning=True))

    def build_line(self, job: str, line: str) -> None:
        """Kept in the build's log alone."""


class Part:
    """What is known of the shard's cells, and which of them need one more epoch: its own plan, which no verdict rests on."""

    def __init__(self, shard: Shard, head: Run) -> None:
        self._shard, self._head = shard, head
        self.blocks, self._proofs = list(shard.blocks), list(shard.proofs)
        self._measured: dict[str, set[int]] = {}  # cell -> epochs here

    @property
    def done(self) -> int:
        """Epochs of earlier shards that count towards the first look."""
        return len({block.epoch for block in self._shard.blocks if block.metric and block.judged})

    @property
    def next_epoch(self) -> int:
        """The number of the next epoch."""
        return max(self._shard.first, 1 + max((block.epoch for block in self.blocks), default=0))

    def add(self, item: Item) -> None:
        """Take note of what was measured."""
        if isinstance(item, Block):
            self.blocks.append(item)
            self._measured.setdefault(item.cell, set()).add(item.epoch)
        elif isinstance(item, Proof):
            self._proofs.append(item)

    def wanted(self) -> set[str]:
        """Cells without a verdict, and those that the run wants more of."""
        few = {cell for cell, least in self._shard.least.items() if len(self._measured.get(cell, ())) < least}
        return undecided(self._head, self.blocks, self._proofs) | few


class Post(contextlib.ExitStack):
    """Where a program measures shards of one run on one device, one after the other. What the first has looked at and checked
    out the next ones find, but for one that has to build: it gets worktrees in which no code under test has run."""

    def __init__(self) -> None:
        super().__init__()
        self._place: RunContext | None = None
        self._trees: tuple[Checkout, ...] = ()
        self._plan: Plan | None = None
        self._made: dict[str, tuple[Build, ...]] = {}  # package -> builds that were made here

    def serve(self, shard: Shard, tell: Tell) -> Ended:
        """Measure it. Raises AbprofError when it cannot be begun here; ^C and SIGTERM end it (KeyboardInterrupt)."""
        view = Telling(tell)
        if shard.cpus:
            os.sched_setaffinity(0, shard.cpus)
        Path(shard.logs).mkdir(parents=True, exist_ok=True)
        with proc.no_orphans():
            place = self._stand(shard, view)
            with _device(place, shard, view):
                plan = self._planned(place, shard, view)
                with in_use(place.cache):
                    watch = watched(place, plan)
                    builds = self._builds(place, plan, shard, view)
                    return _measured(place, plan, watch, builds, shard, tell)

    def _stand(self, shard: Shard, view: View) -> RunContext:
        """The place, with worktrees of the sides."""
        if self._place and self._plan and self._ready(self._plan, shard) is not None:
            return self._place
        self.close()
        self._plan, self._place = None, _place(shard, view)
        self._trees = self.enter_context(worktrees(self._place, f"{shard.run.id}/{shard.number}", view))
        return self._place

    def _planned(self, place: RunContext, shard: Shard, view: View) -> Plan:
        if self._plan is not None:
            return other_cells(place, self._plan, shard.run, Path(shard.logs))
        rest = Continued(shard.run, shard.run.cells, part=True, timers=shard.timers)
        self._plan = make_plan(place, self._trees, Path(shard.logs), view, rest)
        return self._plan

    def _ready(self, plan: Plan, shard: Shard) -> tuple[Build, ...] | None:
        """Its builds, where they are there: the run's if they lie here and were made by the toolchain that is here, or those
        that an earlier shard made."""
        kernels = {cell.kernel for cell in shard.run.cells}
        mine = tuple(build for build in shard.run.builds if build.kernel in kernels)
        if _same_chains(plan, shard) and all(build.failure or Path(build.path, "src").is_dir() for build in mine):
            return mine
        built = {build.kernel for build in mine}
        return tuple(b for name in built for b in self._made[name]) if built <= self._made.keys() else None

    def _builds(self, place: RunContext, plan: Plan, shard: Shard, view: View) -> tuple[Build, ...]:
        """Those; otherwise they are built anew: of the same commits, with this machine's variables, and for both sides alike.

        Raises AbprofError where one that the run's own machine makes anew is of other inputs.
        """
        ready = self._ready(plan, shard)
        if ready is not None:
            return ready
        made = build_kernels(place, plan, view)
        if _same_chains(plan, shard) and shard.held:
            made = continued.same_builds(shard.run, made, place.cache / "builds")
        self._made |= {name: tuple(b for b in made if b.kernel == name) for name in {build.kernel for build in made}}
        return made


def _same_chains(plan: Plan, shard: Shard) -> bool:
    """Whether the toolchain here is the one that made the run's builds."""
    chains = shard.run.toolchains
    return all(chains[side].versions == chain for side, chain in plan.shop.toolchain.items() if side in chains)


def _place(shard: Shard, view: View) -> RunContext:
    asked = continued.as_asked(shard.run, shard.repository, shard.budget)
    own = (shard.device,) if shard.device else () if shard.run.machine.kind == "cuda" else asked.device
    asked = msgspec.structs.replace(asked, device=own, probe=(), executor="")
    settled = Settled(shard.run.sides, shard.file or File(), shard.run.id)
    return look_around(asked, view, settled)


@contextlib.contextmanager
def _device(place: RunContext, shard: Shard, view: View) -> Iterator[None]:
    """The device's lease, unless whoever started this program holds it."""
    if shard.held:
        not_busy(place.device)
        yield
        return
    with alone(place, view, wait=True):
        yield


def _failed(item: Item) -> bool:
    """Whether a worker could not do what it should, which may be the device's doing."""
    if isinstance(item, Block):
        return not {"crash", "timeout", "oom"}.isdisjoint(outcome.status for outcome in item.outcomes.values())
    return isinstance(item, Proof) and not item.ok


def _measured(
    place: RunContext, plan: Plan, watch: Watch, builds: tuple[Build, ...], shard: Shard, tell: Tell
) -> Ended:
    machine = place.device.machine()
    head = msgspec.structs.replace(plan.run, builds=builds, machine=machine)
    plan = dataclasses.replace(
        plan, run=head, arms=shard.arms, timers=shard.timers, identical=frozenset(shard.identical)
    )
    device = _name(place, shard)
    chains = head.toolchains
    tell(
        Began(
            shard=shard.number, device=device, machine=machine, ceilings=head.ceilings, toolchains=chains, builds=builds
        )
    )
    for touched in watch.built(builds, "before it was measured"):
        tell(Noticed(touched=touched))
    part, began = Part(shard, head), time.monotonic()
    in_turns = epochs(plan, part.wanted, first=shard.first, done=part.done, budget=shard.budget)
    seconds = 0.0
    for made in (in_turns, _afterwards(place, plan, part, shard)):
        for one in made:
            item = one if isinstance(one, Kernel) else msgspec.structs.replace(one, device=device, shard=shard.number)
            if _failed(item) and (why := place.device.gone()):  # all would fail here at once, and none is to blame
                raise AbprofError(why, where=place.device.lease)
            part.add(item)
            tell(_news(item))
            if isinstance(item, Block):
                for touched in watch.look(f"in epoch {item.epoch}"):
                    tell(Noticed(touched=touched))
        seconds = seconds or time.monotonic() - began
    return Ended(why="done", seconds=seconds, lines=0)


def _afterwards(place: RunContext, plan: Plan, part: Part, shard: Shard) -> Iterator[Block]:
    """What is timed after all epochs of these cells."""
    return follow_up(plan, place.options.beside, (*shard.earlier, *part.blocks), part.next_epoch)


def _name(place: RunContext, shard: Shard) -> str:
    """The lease's name. A GPU's is its own in all the world; every other machine's processor is called cpu too."""
    machine = place.device.machine()
    return f"cpu@{machine.host}" if machine.kind == "cpu" and not shard.held else place.device.lease


def _news(item: Item) -> News:
    if isinstance(item, Kernel):
        return Loaded(kernel=item)
    return Proved(proof=item) if isinstance(item, Proof) else Measured(block=item)
