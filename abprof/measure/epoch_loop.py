"""Epochs of fresh workers that take turns, until every cell is decided or the budget is spent."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from abprof.measure import turns
from abprof.measure.cell import CellResult, CellTask, measure_cell, profile_cell
from abprof.measure.pacing import Allocation, Budget, Timeouts
from abprof.measure.plan import Plan
from abprof.measure.pool import Prefork, WorkerPool, WorkerSpec
from abprof.measure.timers import Timers, never
from abprof.records import Arm, Block, Cell, Kernel, Proof
from abprof.records import messages as wire

Item = Block | Proof | Kernel
_SLOW_CALL = 2e8  # ns: loading took an arm 0.1 to 0.3 s on an H200, and calls made at once wait for one another


@dataclass
class _Known:
    """What earlier epochs of this invocation teach."""

    timers: Timers
    checked: set[str] = field(default_factory=set)  # cells whose outputs were checked
    crowded: set[str] = field(default_factory=set)  # cells whose arms do not fit into memory together
    calls: dict[str, dict[str, float]] = field(default_factory=dict)  # cell -> arm -> ns of a warm call
    allocation: Allocation = field(default_factory=Allocation)
    timeouts: Timeouts = field(default_factory=Timeouts)


@dataclass
class _Epoch:
    number: int
    share: float  # of the rounds beyond the fewest
    profile: bool  # whether this epoch runs the profiled passes
    once: float = 0.0  # seconds that no other epoch repeats
    more: float = 0.0  # seconds of rounds beyond the fewest


@dataclass(frozen=True)
class _Part:
    """One package's part of an epoch."""

    number: int  # the epoch's
    cells: list[Cell]
    specs: list[WorkerSpec]


def epochs(
    plan: Plan,
    wanted: Callable[[], set[str]],
    *,
    first: int,
    done: int,
    budget: float,
    prefork: Prefork | None = None,
) -> Iterator[Item]:
    """Yield blocks as they end, and what the workers had loaded and compiled.

    `wanted()` names the cells that need one more epoch. `first` is the number of the next epoch, and `done` how many of
    an earlier invocation count towards the first look. A further epoch begins only if it fits into `budget` seconds.
    A given `prefork` stays open: its workers outlive their epoch.
    """
    number, quick = first, plan.run.options.quick
    known = _Known(Timers(plan.timers, never(plan.run, kept=prefork is not None)))
    todo = wanted() & plan.arms.keys()  # a rerun has cells that are not measured again
    fixed, more = turns.epoch_cost(plan.device.kind, sum(len(plan.arms[cell]) for cell in todo))
    left = Budget(budget, done, fixed, more)
    with contextlib.ExitStack() as stack:
        pools = prefork or stack.enter_context(Prefork(plan.factory, plan.device))
        while todo:
            share = 1.0 if quick else left.share()
            if number > first and (quick or not left.affords(share)):
                return
            start = time.monotonic()
            # Profilers take seconds to start: the second epoch runs them, so that the first rows are not held up.
            epoch = _Epoch(number, share, profile=quick or number == first + 1)
            parts = _parts(plan, known, number, todo)
            ahead = [] if quick else _parts(plan, known, number + 1, todo)
            for part, later in zip(parts, [*parts[1:], *ahead[:1], None], strict=False):
                yield from _package(plan, known, epoch, part, later, pools)
            left.charge(time.monotonic() - start, epoch.once, epoch.more, share)
            number += 1
            todo = wanted() & plan.arms.keys()


def _parts(plan: Plan, known: _Known, number: int, todo: set[str]) -> list[_Part]:
    """The packages of an epoch and their cells, each in random order, without arms that hung too often."""
    rng = random.Random(f"{plan.run.options.seed}/{number}")
    kernels = sorted({cell.kernel for cell in plan.run.cells if cell.id in todo})
    rng.shuffle(kernels)
    parts = []
    for kernel in kernels:
        cells = [cell for cell in plan.run.cells if cell.id in todo and cell.kernel == kernel]
        if number == 1:  # from little work to much, so that the first rows come at once
            cells.sort(key=lambda cell: cell.flops or 0.0)
        else:
            rng.shuffle(cells)
        arms = [(cell.id, arm) for cell in cells for arm in plan.arms[cell.id]]
        workers = [arm.worker for id, arm in arms if arm.side == "base" or not known.timeouts.skip(id, arm, number)]
        parts.append(_Part(number, cells, plan.specs(kernel, list(dict.fromkeys(workers)))))
    return parts


def _package(
    plan: Plan, known: _Known, epoch: _Epoch, part: _Part, later: _Part | None, pools: Prefork
) -> Iterator[Item]:
    cells, present, cuda = part.cells, {spec.id for spec in part.specs}, plan.device.kind == "cuda"
    began = time.monotonic()
    with pools.pool(part.specs, epoch.number) as pool:
        yield from pool.proofs()
        started = (time.monotonic() - began) / len(cells)
        host_timed = any(plan.workload(cell).judge == "wall" for cell in cells)
        if later is not None and not (host_timed and cuda):
            pools.ahead(later.specs, later.number)
        arms = {cell.id: tuple(arm for arm in plan.arms[cell.id] if arm.worker in present) for cell in cells}
        warm_up = _WarmUp(pool, plan, known, epoch.number, cells, arms)
        late = list[tuple[CellTask, CellResult]]()
        for cell in sorted(cells, key=lambda cell: not _late(plan, known, epoch, cell)):
            if cuda:
                warm_up.before(cell)
            task = _task(plan, known, epoch, cell, arms[cell.id])
            result = _measured(plan, known, pool, task)
            yield _labelled(plan, result.block)
            known.allocation.learn(result.block, started)
            known.calls.setdefault(cell.id, result.calls)
            if all(o.check is not None or o.status not in _LOST for o in result.block.outcomes.values()):
                known.checked.add(cell.id)
            epoch.once += result.once
            epoch.more += result.more
            if task.late and result.timed:
                late.append((task, result))
        for task, result in late:
            block = profile_cell(pool, plan.device, dataclasses.replace(task, arms=result.timed), result.block.timer)
            epoch.once += block.seconds
            yield _labelled(plan, block)
        yield from pool.proofs()
        yield from pool.kernels()


def _measured(plan: Plan, known: _Known, pool: WorkerPool, task: CellTask) -> CellResult:
    """All arms in memory, or one at a time if they do not fit together, which is found out once per cell."""
    if task.cell.id not in known.crowded:
        result = measure_cell(pool, plan.device, task)
        if not result.crowded:
            return result
        known.crowded.add(task.cell.id)
    return measure_cell(pool, plan.device, task, alone=True)


def _task(plan: Plan, known: _Known, epoch: _Epoch, cell: Cell, arms: tuple[Arm, ...]) -> CellTask:
    run, load = plan.run, plan.workload(cell)
    # After torch's profiler has run, CUPTI counts the processor's ticks (2.1 a nanosecond where it was seen), not time.
    profile = epoch.profile and load.judge != "kernels"
    late = _late(plan, known, epoch, cell)
    return CellTask(
        cell=cell,
        arms=arms,
        epoch=epoch.number,
        options=run.options,
        judge=load.judge,
        timeout=plan.timeout,
        check=cell.id not in known.checked,
        outside=run.options.check == "outside",
        by_base=load.checked == "sides",
        profile=profile and not late,
        phases=profile and bool(load.phases),
        late=late,
        share=epoch.share,
        rounds=known.allocation.rounds(cell.id),
        usual=known.calls.get(cell.id, {}),
        timeouts=known.timeouts,
        timers=known.timers if _by_rule(plan, cell) else None,
    )


def _by_rule(plan: Plan, cell: Cell) -> bool:
    """Whether the cell's timer is chosen by its readings."""
    return plan.workload(cell).judge == "gpu" and plan.run.options.timer == "auto"


def _late(plan: Plan, known: _Known, epoch: _Epoch, cell: Cell) -> bool:
    """Whether the profiled pass must wait until CUPTI has timed all cells of these processes."""
    return epoch.profile and _by_rule(plan, cell) and known.timers.late(cell)


_LOST = {"crash", "timeout", "oom"}  # a check that was lost with its worker is made in the next epoch


def _labelled(plan: Plan, block: Block) -> Block:
    """Mark a cell of identical code: its numbers judge the instrument, not the code."""
    if block.cell not in plan.identical:
        return block
    own = {arm.id for arm in plan.arms[block.cell] if not arm.peer}
    outcomes = {
        id: msgspec.structs.replace(outcome, status="identical") if id in own and outcome.status == "ok" else outcome
        for id, outcome in block.outcomes.items()
    }
    return msgspec.structs.replace(block, outcomes=outcomes)


@dataclass
class _WarmUp:
    """First calls import, load and compile. On a GPU all workers make them at once, on a cheap cell, before timing."""

    pool: WorkerPool
    plan: Plan
    known: _Known
    number: int  # the epoch's
    cells: Sequence[Cell]
    arms: Mapping[str, Sequence[Arm]]  # cell -> arms whose worker is there
    loaded: set[tuple[str, str, str]] = field(default_factory=set)

    def before(self, cell: Cell) -> None:
        """Load what this cell needs and no earlier cell did.

        If even the cheapest call of that code is slow, the untimed call that each arm makes anyway costs less.
        """
        if not _code(cell) <= self.loaded:
            cheapest = self.cheapest(cell)
            if max(self.known.calls.get(cheapest.id, {}).values(), default=0.0) < _SLOW_CALL:
                self.warm(cheapest)
            self.loaded |= _code(cell)

    def cheapest(self, like: Cell) -> Cell:
        """The cheapest cell that loads the same code in all its workers, if possible one that never failed."""

        def cost(cell: Cell) -> tuple[bool, float, float]:
            own = self._own(cell)
            calls = self.known.calls.get(cell.id, dict.fromkeys((arm.id for arm in own), 0.0))
            failed = any(arm.id not in calls or self.known.timeouts.any(cell.id, arm) for arm in own)
            return failed, max(calls.values(), default=0.0), cell.flops or 0.0

        code, sides = _code(like), {arm.side for arm in self._own(like)}
        return min(
            (each for each in self.cells if _code(each) == code and sides <= {a.side for a in self._own(each)}),
            key=cost,
        )

    def warm(self, cell: Cell) -> None:
        """Each worker opens this cell once, except what hung before; what hangs now is skipped in this epoch."""
        seed, params = self.plan.run.options.seed, dict(cell.params)
        arms = {arm.side: arm for arm in self._own(cell)}
        opens = {
            side: wire.Open(cell.workload, params, arm.id, arm.variant, seed=seed)
            for side, arm in arms.items()
            if not self.known.timeouts.any(cell.id, arm)
        }
        for side in self.pool.warm(opens):
            self.known.timeouts.note(cell.id, arms[side], self.number)

    def _own(self, cell: Cell) -> list[Arm]:
        return [arm for arm in self.arms[cell.id] if not arm.peer]


def _code(cell: Cell) -> set[tuple[str, str, str]]:
    """The workload with its values of named axes (direction, mask, type): each loads other code."""
    named = {(cell.workload, axis, value) for axis, value in cell.params.items() if isinstance(value, str)}
    return named or {(cell.workload, "", "")}
