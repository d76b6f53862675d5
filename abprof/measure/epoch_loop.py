"""Measure epochs, each with fresh workers that take turns, until every cell is decided or the budget is spent."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from abprof.measure.cell import measure_cell
from abprof.measure.followup import slices
from abprof.measure.plan import Plan
from abprof.measure.pool import WorkerPool
from abprof.measure.setup import CellTask, Handed, Timeouts
from abprof.records import LOOKS, Arm, Block, Cell, Item
from abprof.records import messages as wire
from abprof.system.files import refuse_full_disk
from abprof.system.processes import WorkerDied, WorkerFault

_SLOW_CALL = 2e8  # ns: for slower calls `_warm_up` costs more than it saves; loading took 0.1 to 0.3 s on an H200
_BESIDE = 8  # epochs in which controls and peers take part: a worker each, and no verdict on a target needs them
_OVERTIME = 0.1  # share of the budget by which a look may be late
_AHEAD = 2  # parts whose workers may start ahead
_LOST = {"crash", "timeout", "oom"}  # outcomes that lose the output check, which the next epoch then makes


@dataclass
class _Known:
    starting: float = 0.0  # seconds until workers had started, and of `_warm_up`
    seconds: dict[str, float] = field(default_factory=dict)  # cell -> seconds of its last block, without checks
    epochs: Counter[str] = field(default_factory=Counter)  # cell -> epochs in which it was measured
    checked: set[str] = field(default_factory=set)  # cells whose outputs were checked
    crowded: set[str] = field(default_factory=set)  # cells whose arms do not fit into memory together
    calls: dict[str, dict[str, float]] = field(default_factory=dict)  # cell -> arm -> ns of a call, last epoch
    timeouts: Timeouts = field(default_factory=Timeouts)
    handed: dict[str, Handed] = field(default_factory=dict)  # by cell
    ahead: list[WorkerPool] = field(default_factory=list)  # of the next parts, which start before their turn


@dataclass(frozen=True)
class _Part:
    """A package's cells in one epoch, and the arms of each cell that take part."""

    epoch: int
    cells: list[Cell]
    arms: dict[str, list[Arm]]


def epochs(plan: Plan, wanted: Callable[[], set[str]], *, first: int, budget: float) -> Iterator[Item]:
    """Yield the block of each measured cell, and records of what the workers loaded (Proof) and compiled (Kernel).

    `wanted()` returns the ids of cells that need one more epoch. `first`: number of the next epoch. A further epoch
    measures the `affordable` cells, assuming that each takes as long as in the epoch before.
    """
    number, quick = first, plan.run.options.quick
    known, end, fixed = _Known(), time.monotonic() + budget, 0.0  # fixed: seconds of an epoch beside its cells
    todo = wanted() & plan.arms.keys()  # a rerun has cells that are not measured again
    # On a CPU there are no contexts to wait for. Workers that start ahead have not loaded code under test.
    early = plan.device.kind != "cpu" and not quick
    try:
        if plan.device.kind == "cpu" and not quick:
            plan.factory.forks.settle(most=budget / 10)
        # Workers map the judge's memory as they start. With --watch it ended with the epochs before.
        if todo and plan.factory.room:
            with suppress(WorkerDied, WorkerFault):  # the first check says why
                plan.factory.judge()
        while todo:
            start, spent, checks = time.monotonic(), dict[str, float](), dict[str, float]()
            if number > first:
                costs = {cell: (known.epochs[cell], known.seconds.get(cell, 0.0)) for cell in todo}
                todo = set() if quick else affordable(costs, fixed, end - start, budget, plan.run.options.epochs)
                if not todo:
                    return
            done = {cell: known.epochs[cell] for cell in todo}
            parts = _parts(plan, number, done)
            coming = [*parts[1:], *_following(plan, number, done)] if early else []
            for place, part in enumerate(parts):
                for item in _package(plan, known, part, coming[place : place + _AHEAD], budget):
                    if isinstance(item, Block):  # of turns, or of slices
                        spent[item.cell] = spent.get(item.cell, 0.0) + item.seconds
                        checks[item.cell] = item.check_seconds
                    yield item
            fixed = time.monotonic() - start - sum(spent.values())
            known.seconds |= {cell: seconds - checks[cell] for cell, seconds in spent.items()}
            known.epochs.update(todo)
            if number == first:  # fork servers import torch and packages once
                fixed -= known.starting
            number += 1
            todo = wanted() & plan.arms.keys()
    finally:
        for pool in known.ahead:
            pool.dismiss()
        plan.factory.end_judge()


def affordable(
    costs: Mapping[str, tuple[int, float]], fixed: float, left: float, budget: float, asked: int | None = None
) -> set[str]:
    """Return the cells to measure in the next epoch. `costs`: cell -> its epochs so far, and seconds of a further one;
    `fixed`: seconds of an epoch beside its cells; `left`: of the `budget`; `asked`: --epochs.

    Between two looks nothing is decided. So if not all cells can reach their next look, which may exceed the budget by a
    tenth, those that can are measured: first looks come first, then what costs least. If none can, or with --epochs, all
    are measured while an epoch fits.
    """
    looks = {cell: next((look - done for look in LOOKS if look > done), 1) for cell, (done, _) in costs.items()}
    room, most, found = left + _OVERTIME * budget, 0, set[str]()
    for cell in sorted(costs, key=lambda cell: (costs[cell][0] >= LOOKS[0], looks[cell] * costs[cell][1], cell)):
        cost = looks[cell] * costs[cell][1] + max(0, looks[cell] - most) * fixed
        if cost <= room:
            room, most, found = room - cost, max(most, looks[cell]), found | {cell}
    if (not found or asked) and fixed + sum(seconds for _, seconds in costs.values()) <= left:
        return set(costs)
    return found if not asked or found == costs.keys() else set()


def _following(plan: Plan, number: int, todo: Mapping[str, int]) -> list[_Part]:
    """Return the parts of the epochs that come after epoch `number` for certain: those up to a look. `todo`: as `_parts`."""
    found = list[_Part]()
    for ahead in range(1, 1 + _AHEAD):
        todo = {cell: done + 1 for cell, done in todo.items() if done + 1 not in {*LOOKS, plan.run.options.epochs}}
        found += _parts(plan, number + ahead, todo)
    return found


def _parts(plan: Plan, number: int, todo: Mapping[str, int]) -> list[_Part]:
    """Return the cells of `todo` by package, in random order; in epoch 1, cells with little work come first.

    `todo`: cell -> its epochs so far. After `_BESIDE` of them, controls and peers are left out, unless --epochs is given.
    """
    rng = random.Random(f"{plan.run.options.seed}/{number}")
    kernels = sorted({cell.kernel for cell in plan.run.cells if cell.id in todo})
    rng.shuffle(kernels)
    beside = {cell for cell, done in todo.items() if done < _BESIDE or plan.run.options.epochs is not None}
    parts = []
    for kernel in kernels:
        cells = [cell for cell in plan.run.cells if cell.id in todo and cell.kernel == kernel]
        if number == 1:  # so that the user soon sees results
            cells.sort(key=lambda cell: cell.flops or 0.0)
        else:
            rng.shuffle(cells)
        arms = {cell.id: [arm for arm in plan.arms[cell.id] if cell.id in beside or arm.under_test] for cell in cells}
        parts.append(_Part(number, cells, arms))
    return parts


def _pool(plan: Plan, known: _Known, part: _Part) -> WorkerPool:
    """Return the workers of the part, without those whose arms all hung in two epochs."""
    every = [(id, arm) for id, arms in part.arms.items() for arm in arms]
    ids = [arm.worker for id, arm in every if arm.side == "base" or not known.timeouts.skip(id, arm, part.epoch)]
    return plan.pool(part.cells[0].kernel, list(dict.fromkeys(ids)), part.epoch)


def _package(plan: Plan, known: _Known, part: _Part, coming: Sequence[_Part], budget: float) -> Iterator[Item]:
    """Measure a package's cells in one epoch, with --regime sustained also slices. The driver makes contexts one by one, so
    workers of the parts that are `coming` start whenever no turn is measured: of the next part before the turns, while
    this part's workers import and compile (not in the first epoch, whose result shall soon stand), of one more behind
    the turns. `budget`: as `epochs`."""
    epoch, began = part.epoch, time.monotonic()
    pool = _pool(plan, known, part)
    present = set(pool.start_order)  # of those that started ahead, one may have hung since
    while known.ahead and not known.ahead[0].serves(pool):
        known.ahead.pop(0).dismiss()
    pool = known.ahead[0] if known.ahead else pool
    with pool:
        known.ahead[:1] = []  # not earlier: until then `epochs` ends its workers at a ^C
        known.starting += time.monotonic() - began
        _start_ahead(plan, known, coming[:1] if known.calls else [])
        for later in coming if pool.factory.forks.plenty else ():
            _pool(plan, known, later).preload()
        yield from pool.proofs()
        loaded = set[tuple[str, str, str]]()
        for cell in part.cells:
            load = plan.workload(cell)
            task = CellTask(
                cell=cell,
                arms=tuple(arm for arm in part.arms[cell.id] if arm.worker in present),
                epoch=epoch,
                options=plan.run.options,
                judge=load.judge,
                check=cell.id not in known.checked,
                by_base=load.checked == "sides",
                usual=known.calls.get(cell.id, {}),
                timeouts=known.timeouts,
                handed=known.handed.setdefault(cell.id, Handed()),
                # Large changes need no more than the first look; afterwards the budget has room for all looks.
                room=budget / LOOKS[-1] / len(plan.cells) if known.epochs[cell.id] >= LOOKS[0] else 0.0,
            )
            if plan.device.kind == "cuda":
                warming = time.monotonic()
                _warm_up(pool, task, loaded)
                known.starting += time.monotonic() - warming
            for other in known.ahead:
                other.wait()
            block, crowded = measure_cell(pool, plan.device, task, alone=cell.id in known.crowded)
            if crowded:  # from now on one arm is in memory at a time
                known.crowded.add(cell.id)
                block, _ = measure_cell(pool, plan.device, task, alone=True)
            for outcome in block.outcomes.values():
                if outcome.status == "crash":
                    refuse_full_disk(outcome.reason, pool.factory.cache, pool.factory.logs)
            known.calls.setdefault(cell.id, {}).update(block.call_ns)
            if all(o.check is not None or o.status not in _LOST for o in block.outcomes.values()):
                known.checked.add(cell.id)
            ran = [arm for arm in task.arms if block.outcomes[arm.id].status == "ok" and not block.alone]
            if ran and (task.options.regime, task.options.quick) == ("sustained", False) and block.by_spans:
                yield slices(plan, pool, cell, ran, epoch)
            yield plan.labelled(block)
        _start_ahead(plan, known, coming[: len(known.ahead) + 1])
        yield from pool.proofs()
        yield from pool.kernels()


def _start_ahead(plan: Plan, known: _Known, coming: Sequence[_Part]) -> None:
    for part in coming[len(known.ahead) :]:
        known.ahead.append(_pool(plan, known, part).begin())


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
        if not task.timeouts.skip(cell.id, arm, task.epoch)
    }
    for side in pool.warm(opens):
        task.timeouts.note(cell.id, own[side], task.epoch)
