"""The measuring stage: epochs of fresh workers that take turns, until every cell is decided or the budget is spent."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from abprof.builds.worker_factory import Workshop
from abprof.devices import Device
from abprof.measure import turns
from abprof.measure.allocation import Allocation
from abprof.measure.arm_state import Request
from abprof.measure.budget import Budget
from abprof.measure.cell import Sitting
from abprof.measure.graphs import Graphed
from abprof.measure.one_at_a_time import OneAtATime
from abprof.measure.pool import Crew, Post, posts
from abprof.measure.prefork import Relay
from abprof.measure.profiled_pass import ProfiledPass
from abprof.measure.timeouts import Hung
from abprof.measure.timers import Timers, never
from abprof.measure.warmup import Warming
from abprof.records import Arm, Block, Build, Cell, Checkout, Kernel, Outcome, Package, Proof, Run

Item = Block | Proof | Kernel


@dataclass(frozen=True)
class Ground:
    """What the stage stands on: everything that was settled before the first turn."""

    shop: Workshop
    device: Device
    run: Run  # the head: cells, settings, workloads, builds
    checkouts: Mapping[str, Checkout]  # side id -> files
    packages: Mapping[str, Package]
    arms: Mapping[str, tuple[Arm, ...]]  # cell id -> who takes turns in it
    timeout: float
    timers: Mapping[str, str] = field(default_factory=dict)  # cell -> what read its turns in this run so far
    identical: frozenset[str] = frozenset()  # cells that load the same bytes on all sides, and are measured as controls

    def build(self, side: str, kernel: str) -> Build | None:
        """This side's build of a package, failed or not."""
        return next((b for b in self.run.builds if b.side == side and b.kernel == kernel), None)


@dataclass
class Epoch:
    """One epoch while it runs."""

    number: int
    share: float  # of the rounds that the rules give a cell
    seen: set[str]  # cells whose outputs were checked already
    crowded: set[str]  # cells whose arms do not fit into memory together
    usual: dict[str, dict[str, float]]  # cell -> arm -> ns of a warm call, from earlier epochs
    allocation: Allocation  # of rounds, from earlier epochs
    relay: Relay
    timers: Timers  # of cells for which a rule chooses
    hung: Hung
    profile: bool  # the second, so that a profiler that takes seconds to start does not hold up the first rows
    once: float = 0.0  # seconds spent on what no other epoch repeats
    more: float = 0.0  # seconds spent on rounds beyond the fewest


@dataclass(frozen=True)
class Shift:
    """One package's part of an epoch."""

    number: int  # the epoch's
    cells: list[Cell]
    posts: list[Post]


def epochs(
    ground: Ground,
    wanted: Callable[[], set[str]],
    *,
    first: int,
    done: int,
    budget: float,
    relay: Relay | None = None,
) -> Iterator[Item]:
    """Blocks as they end, and what the workers had loaded and compiled.

    `wanted` says which cells need one more epoch; `first` is
    the number of the next, and `done` how many of an earlier invocation count towards the first look. A further epoch
    begins only if it fits into `budget` seconds. A `relay` that is given is the caller's to end.
    """
    number, seen, crowded, quick = first, set[str](), set[str](), ground.run.options.quick
    usual, allocation, hung = dict[str, dict[str, float]](), Allocation(), Hung()
    timers = Timers(ground.timers, never(ground.run, kept=relay is not None))
    todo = wanted() & ground.arms.keys()  # a rerun has cells that are not measured again
    seats = sum(len(ground.arms[cell]) for cell in todo)
    plan = Budget(budget, done, *turns.epoch_cost(ground.device.kind, seats))
    with contextlib.ExitStack() as stack:
        crews = relay or stack.enter_context(Relay(ground.shop, ground.device))
        while todo:
            share = 1.0 if quick else plan.share()
            if number > first and (quick or not plan.affords(share)):
                return
            start = time.monotonic()
            profile = quick or number == first + 1
            epoch = Epoch(number, share, seen, crowded, usual, allocation, crews, timers, hung, profile)
            yield from _epoch(ground, epoch, todo)
            plan.charge(time.monotonic() - start, epoch.once, epoch.more, share)
            number += 1
            todo = wanted() & ground.arms.keys()


def _epoch(ground: Ground, epoch: Epoch, todo: set[str]) -> Iterator[Item]:
    """One epoch of all undecided cells, package by package."""
    shifts = _shifts(ground, epoch.number, todo, epoch.hung)
    ahead = [] if ground.run.options.quick else _shifts(ground, epoch.number + 1, todo, epoch.hung)
    following = [*shifts[1:], *ahead]
    for i, shift in enumerate(shifts):
        yield from _package(ground, epoch, shift, following[i] if i < len(following) else None)


def _shifts(ground: Ground, number: int, todo: set[str], hung: Hung) -> list[Shift]:
    """The packages of an epoch, and their cells, each in random order; without targets that nothing is asked of any more."""
    rng = random.Random(f"{ground.run.options.seed}/{number}")
    kernels = sorted({cell.kernel for cell in ground.run.cells if cell.id in todo})
    rng.shuffle(kernels)
    shifts = []
    for kernel in kernels:
        cells = [c for c in ground.run.cells if c.id in todo and c.kernel == kernel]
        # The first epoch goes from little work to much, so that the first rows come at once; later ones in any order.
        if number == 1:
            cells.sort(key=lambda c: c.flops or 0.0)
        else:
            rng.shuffle(cells)
        arms = [(cell.id, arm) for cell in cells for arm in ground.arms[cell.id]]
        asked = [arm.worker for id, arm in arms if arm.side == "base" or not hung.not_again(id, arm, number)]
        stand = posts(ground.checkouts, ground.packages[kernel], ground.build, list(dict.fromkeys(asked)))
        shifts.append(Shift(number, cells, stand))
    return shifts


def _package(ground: Ground, epoch: Epoch, shift: Shift, later: Shift | None) -> Iterator[Item]:
    cells, present = shift.cells, {post.id for post in shift.posts}
    began = time.monotonic()
    with epoch.relay.crew(shift.posts, epoch.number) as crew:
        yield from crew.proofs()
        started = (time.monotonic() - began) / len(cells)
        judges = {load.judge for load in ground.run.workloads if load.name in {cell.workload for cell in cells}}
        if later is not None and ("wall" not in judges or ground.device.kind != "cuda"):  # else the host is measured
            epoch.relay.ahead(later.posts, later.number)
        arms = {cell.id: tuple(arm for arm in ground.arms[cell.id] if arm.worker in present) for cell in cells}
        warming = Warming(crew, cells, arms, epoch.usual, epoch.hung, epoch.number, ground.run.options.seed)
        late = list[ProfiledPass]()
        for cell in sorted(cells, key=lambda cell: not _late(ground, epoch, cell)):
            if ground.device.kind == "cuda":
                warming.before(cell)
            request = _request(ground, epoch, cell, arms[cell.id])
            sitting, block = _sit(ground, crew, epoch, request)
            if _checked(block):
                epoch.seen.add(cell.id)
            epoch.usual.setdefault(cell.id, sitting.calls())
            epoch.once += sitting.once
            epoch.more += sitting.more
            epoch.allocation.learn(block, started)
            yield _identical(block, request.arms) if cell.id in ground.identical else block
            if request.late:
                late.append(ProfiledPass(sitting, block.timer))
        for each in (one for one in late if one.seats):
            block = each.run()
            epoch.once += block.seconds
            yield _identical(block, each.request.arms) if block.cell in ground.identical else block
        yield from crew.proofs()
        yield from crew.kernels()


def _sit(ground: Ground, crew: Crew, epoch: Epoch, request: Request) -> tuple[Sitting, Block]:
    """All arms in memory, or one at a time where they do not fit together. That is found out once a cell."""
    if request.cell.id not in epoch.crowded:
        kind = Graphed if request.judge == "graph" else Sitting
        sitting = kind(crew, ground.device, request)
        block = sitting.run()
        if not sitting.crowded:
            return sitting, block
        epoch.crowded.add(request.cell.id)
    alone = OneAtATime(crew, ground.device, request)
    return alone, alone.run()


def _request(ground: Ground, epoch: Epoch, cell: Cell, arms: tuple[Arm, ...]) -> Request:
    check = cell.id not in epoch.seen
    load = next(w for w in ground.run.workloads if w.name == cell.workload)
    # torch's profiler has CUPTI count the processor's ticks from then on (2.1 a nanosecond where it was seen), not time.
    profile = epoch.profile and load.judge != "kernels"
    late = _late(ground, epoch, cell)
    return Request(
        cell,
        arms,
        epoch.number,
        ground.run.options,
        check,
        profile and not late,
        profile and bool(load.phases),
        load.judge,
        ground.timeout,
        epoch.share,
        epoch.allocation.rounds(cell.id),
        ground.run.options.check == "outside",
        epoch.usual.get(cell.id, {}),
        load.checked == "sides",
        epoch.hung,
        epoch.timers if _by_rule(ground, cell) else None,
        late,
    )


def _by_rule(ground: Ground, cell: Cell) -> bool:
    """Whether what reads it is chosen by its readings."""
    load = next(w for w in ground.run.workloads if w.name == cell.workload)
    return load.judge == "gpu" and ground.run.options.timer == "auto"


def _late(ground: Ground, epoch: Epoch, cell: Cell) -> bool:
    """Whether its profiled pass must wait: its turns come first, then those of cells that are profiled before theirs."""
    return epoch.profile and _by_rule(ground, cell) and epoch.timers.late(cell)


def _checked(block: Block) -> bool:
    """Whether no arm's check was lost with its worker: then the next epoch checks again."""
    lost = {"crash", "timeout", "oom"}
    return all(outcome.check is not None or outcome.status not in lost for outcome in block.outcomes.values())


def _identical(block: Block, arms: tuple[Arm, ...]) -> Block:
    """The block of a cell whose code is known to be the same: its numbers judge the instrument, not the code."""
    own = {arm.id for arm in arms if not arm.peer}
    known = {
        id: msgspec.structs.replace(outcome, status="identical") if id in own and outcome.status == "ok" else outcome
        for id, outcome in block.outcomes.items()
    }
    return msgspec.structs.replace(block, outcomes=known)


def unmeasured(cell: Cell, arms: tuple[Arm, ...], outcomes: Mapping[str, Outcome]) -> Block:
    """A block without rounds: what is known of a cell that is not measured (identical code, a workload that broke)."""
    return Block(
        epoch=0,
        cell=cell.id,
        metric="",
        timer="",
        calls=0,
        rule="not measured",
        arms=tuple(arm.id for arm in arms),
        began=time.time(),
        seconds=0.0,
        rounds=(),
        outcomes=dict(outcomes),
    )
