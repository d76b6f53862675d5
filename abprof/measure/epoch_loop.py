"""Measure epochs, each with fresh workers that take turns, until every cell is decided or the budget is spent."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from abprof.measure.cell import CellResult, CellTask, Timeouts, measure_cell
from abprof.measure.followup import slices
from abprof.measure.plan import Plan
from abprof.measure.pool import WorkerPool
from abprof.records import LOOKS, Block, Cell, Item, Kernel, Proof
from abprof.records import messages as wire
from abprof.system.files import refuse_full_disk

_SLOW_CALL = 2e8  # ns: for slower calls `_warm_up` costs more than it saves; loading took 0.1 to 0.3 s on an H200
_BESIDE = 8  # epochs in which controls and peers take part: a worker each, and no verdict on a target needs them
_OVERTIME = 0.1  # share of the budget by which a look may be late
_LOST = {"crash", "timeout", "oom"}  # outcomes that lose the output check, which the next epoch then makes


@dataclass
class _Known:
    starting: float = 0.0  # seconds until workers had started
    seconds: dict[str, float] = field(default_factory=dict)  # cell -> seconds of its last block, without checks
    checked: set[str] = field(default_factory=set)  # cells whose outputs were checked
    crowded: set[str] = field(default_factory=set)  # cells whose arms do not fit into memory together
    calls: dict[str, dict[str, float]] = field(default_factory=dict)  # cell -> arm -> ns of a warm call
    timeouts: Timeouts = field(default_factory=Timeouts)


def epochs(
    plan: Plan,
    wanted: Callable[[], set[str]],
    *,
    first: int,
    budget: float,
) -> Iterator[Item]:
    """Yield the block of each measured cell, and records of what the workers loaded (Proof) and compiled (Kernel).

    `wanted()` returns the ids of cells that need one more epoch. `first`: number of the next epoch. A further epoch
    begins only if it is `affordable`, assuming that each cell takes as long as in the epoch before.
    """
    number, quick = first, plan.run.options.quick
    known, end, fixed = _Known(), time.monotonic() + budget, 0.0  # fixed: seconds of an epoch beside its cells
    todo = wanted() & plan.arms.keys()  # a rerun has cells that are not measured again
    while todo:
        start, spent, checks = time.monotonic(), dict[str, float](), dict[str, float]()
        cost = fixed + sum(known.seconds.get(cell, 0.0) for cell in todo)
        if number > first and (quick or not affordable(number - first, cost, end - start, budget)):
            return
        for cells in _by_package(plan, number, todo):
            for item in _package(plan, known, number, cells, beside=number < first + _BESIDE):
                block = item.block if isinstance(item, CellResult) else item
                if isinstance(block, Block):  # of turns, or of slices
                    spent[block.cell] = spent.get(block.cell, 0.0) + block.seconds
                    checks[block.cell] = block.check_seconds
                yield plan.labelled(item.block) if isinstance(item, CellResult) else item
        fixed = time.monotonic() - start - sum(spent.values())
        known.seconds |= {cell: seconds - checks[cell] for cell, seconds in spent.items()}
        if number == first:  # fork servers import torch and packages once
            fixed -= known.starting
        number += 1
        todo = wanted() & plan.arms.keys()


def affordable(done: int, cost: float, left: float, budget: float) -> bool:
    """Whether an epoch of `cost` seconds may begin after `done` epochs, with `left` of `budget` seconds left: if it fits, or
    if the epochs up to the next look exceed the budget by a tenth at most. Between two looks nothing is decided."""
    to_look = next((look - done for look in LOOKS if look > done), 1)
    return cost <= left or to_look * cost <= left + _OVERTIME * budget


def _by_package(plan: Plan, number: int, todo: set[str]) -> list[list[Cell]]:
    """Return the cells of `todo` by package, in random order; in epoch 1, cells with little work come first."""
    rng = random.Random(f"{plan.run.options.seed}/{number}")
    kernels = sorted({cell.kernel for cell in plan.run.cells if cell.id in todo})
    rng.shuffle(kernels)
    parts = [[cell for cell in plan.run.cells if cell.id in todo and cell.kernel == kernel] for kernel in kernels]
    for cells in parts:
        if number == 1:  # so that the user soon sees results
            cells.sort(key=lambda cell: cell.flops or 0.0)
        else:
            rng.shuffle(cells)
    return parts


def _package(
    plan: Plan, known: _Known, epoch: int, cells: list[Cell], *, beside: bool
) -> Iterator[CellResult | Block | Proof | Kernel]:
    """Measure a package's cells in one epoch, with --regime sustained also slices. Leaves out arms that hung in two
    epochs and, unless `beside` or --epochs is given, controls and peers."""
    beside = beside or plan.run.options.epochs is not None
    arms = {cell.id: [arm for arm in plan.arms[cell.id] if beside or arm.under_test] for cell in cells}
    every = [(cell.id, arm) for cell in cells for arm in arms[cell.id]]
    workers = [arm.worker for id, arm in every if arm.side == "base" or not known.timeouts.skip(id, arm, epoch)]
    began = time.monotonic()
    with plan.pool(cells[0].kernel, list(dict.fromkeys(workers)), epoch) as pool:
        known.starting += time.monotonic() - began
        present = set(pool.start_order)
        yield from pool.proofs()
        loaded = set[tuple[str, str, str]]()
        for cell in cells:
            load = plan.workload(cell)
            task = CellTask(
                cell=cell,
                arms=tuple(arm for arm in arms[cell.id] if arm.worker in present),
                epoch=epoch,
                options=plan.run.options,
                judge=load.judge,
                check=cell.id not in known.checked,
                by_base=load.checked == "sides",
                usual=known.calls.get(cell.id, {}),
                timeouts=known.timeouts,
            )
            if plan.device.kind == "cuda":
                _warm_up(pool, task, loaded)
            result = measure_cell(pool, plan.device, task, alone=cell.id in known.crowded)
            if result.crowded:  # from now on one arm is in memory at a time
                known.crowded.add(cell.id)
                result = measure_cell(pool, plan.device, task, alone=True)
            for outcome in result.block.outcomes.values():
                if outcome.status == "crash":
                    refuse_full_disk(outcome.reason, pool.factory.cache, pool.factory.logs)
            known.calls.setdefault(cell.id, result.calls)
            if all(o.check is not None or o.status not in _LOST for o in result.block.outcomes.values()):
                known.checked.add(cell.id)
            block, options = result.block, task.options
            ran = [arm for arm in task.arms if block.outcomes[arm.id].status == "ok" and not block.alone]
            if ran and options.regime == "sustained" and not options.quick and block.by_spans:
                yield slices(plan, pool, cell, ran, epoch)
            yield result
        yield from pool.proofs()
        yield from pool.kernels()


def _warm_up(pool: WorkerPool, task: CellTask, loaded: set[tuple[str, str, str]]) -> None:
    """Make the cell's first calls, which import and compile, on all workers at once before any timing.

    Does nothing if calls are slow, or if cells with the same workload and text values are `loaded` already.
    """
    cell = task.cell
    named = {(cell.workload, axis, value) for axis, value in cell.params.items() if isinstance(value, str)}
    code = named or {(cell.workload, "", "")}
    if code <= loaded or max(task.usual.values(), default=0.0) >= _SLOW_CALL:
        return
    loaded |= code
    own = {arm.side: arm for arm in task.arms if not arm.peer}
    opens = {
        side: wire.Open(cell.workload, dict(cell.params), arm.id, arm.variant, seed=task.options.seed)
        for side, arm in own.items()
        if not task.timeouts.any(cell.id, arm)
    }
    for side in pool.warm(opens):
        task.timeouts.note(cell.id, own[side], task.epoch)
