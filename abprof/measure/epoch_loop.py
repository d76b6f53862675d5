"""Measure epochs, each with fresh workers that take turns, until every cell is decided or the budget is spent."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from abprof.measure import turns
from abprof.measure.cell import CellResult, CellTask, Timeouts, measure_cell
from abprof.measure.followup import slices
from abprof.measure.plan import Plan
from abprof.measure.pool import WorkerPool
from abprof.records import LOOKS, Block, Cell, Item, Kernel, Proof
from abprof.records import messages as wire

_SLOW_CALL = 2e8  # ns: for slower calls `_warm_up` costs more than it saves; loading took 0.1 to 0.3 s on an H200
_RESERVE = 0.9  # part of the time left that planned epochs fill: the next epoch may take longer than the last
_AIM = 12  # epochs that a budget should hold
# With a quarter of the rounds an epoch's median is twice as noisy; the interval of twelve epochs is a third as wide.
_LEAST_SHARE = 0.25
_LOST = {"crash", "timeout", "oom"}  # outcomes that lose the output check, which the next epoch then makes


@dataclass
class Budget:
    """Seconds left for measuring, and seconds that an epoch takes.

    If time is short, epochs measure fewer rounds, so that more epochs fit in: with the same scatter, the interval of twelve
    epochs is a third as wide as that of four. An epoch's value is then noisier, but false alarms are no more frequent: for
    values with unequal variances, Student's t exceeds its critical values less often, not more, below a level of 0.083
    (Bakirov & Szekely 2005).
    """

    left: float
    done: int  # epochs that count towards the looks
    fixed: float  # seconds of an epoch with the fewest rounds: estimated, then as the last epoch took
    more: float  # seconds that all further rounds of an epoch add
    epochs: int | None = None  # --epochs: as many are measured

    def share(self) -> float:
        """Return which part (0 to 1) of its optional rounds, beyond the fewest, an epoch should measure.

        The aim is that the epochs up to the look at _AIM fit into the time left. If they do not fit even with a quarter of
        the optional rounds, the aim is the last earlier look whose epochs do.
        """
        time, needed = _RESERVE * self.left, [look - self.done for look in LOOKS if look > self.done]
        needed = [max(1, self.epochs - self.done)] if self.epochs else needed
        aims = [epochs for epochs in needed if self.done + epochs <= _AIM] or needed[:1] or [1]
        each = self.fixed + _LEAST_SHARE * self.more
        epochs = next((epochs for epochs in reversed(aims) if epochs * each <= time), aims[0])
        return min(1.0, max(0.0, (time / epochs - self.fixed) / self.more)) if self.more else 1.0

    def affords(self, share: float) -> bool:
        """Whether another epoch fits into the time left. `share`: part of the optional rounds that it measures."""
        return self.fixed + share * self.more <= self.left

    def charge(self, seconds: float, once: float, more: float, share: float) -> None:
        """Subtract an epoch's `seconds`, and estimate the next epoch from them. Of `seconds`, `once` do not recur, and
        `more` were for optional rounds, of which the epoch measured the part `share`."""
        self.left -= seconds
        self.done += 1
        self.fixed = max(0.0, seconds - once - more)
        if share and more:
            self.more = more / share


@dataclass
class _Known:
    starting: float = 0.0  # seconds until workers had started
    checked: set[str] = field(default_factory=set)  # cells whose outputs were checked
    crowded: set[str] = field(default_factory=set)  # cells whose arms do not fit into memory together
    calls: dict[str, dict[str, float]] = field(default_factory=dict)  # cell -> arm -> ns of a warm call
    timeouts: Timeouts = field(default_factory=Timeouts)


def epochs(
    plan: Plan,
    wanted: Callable[[], set[str]],
    *,
    first: int,
    done: int,
    budget: float,
) -> Iterator[Item]:
    """Yield the block of each measured cell, and records of what the workers loaded (Proof) and compiled (Kernel).

    `wanted()` returns the ids of cells that need one more epoch. `first`: number of the next epoch; `done`: number of
    earlier epochs. A further epoch begins only if it fits into `budget` seconds.
    """
    number, quick = first, plan.run.options.quick
    known = _Known()
    todo = wanted() & plan.arms.keys()  # a rerun has cells that are not measured again
    fixed, more = turns.epoch_cost(plan.device.kind, sum(len(plan.arms[cell]) for cell in todo))
    left = Budget(budget, done, fixed, more, plan.run.options.epochs)
    while todo:
        share = 1.0 if quick else left.share()
        if number > first and (quick or not left.affords(share)):
            return
        start, once, beyond = time.monotonic(), 0.0, 0.0
        for cells in _by_package(plan, number, todo):
            for item in _package(plan, known, number, cells, share):
                if isinstance(item, CellResult):
                    once, beyond = once + item.block.check_seconds, beyond + item.more
                    yield plan.labelled(item.block)
                else:
                    yield item
        if number == first:  # fork servers import torch and packages once
            once += known.starting
        left.charge(time.monotonic() - start, once, beyond, share)
        number += 1
        todo = wanted() & plan.arms.keys()


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
    plan: Plan, known: _Known, epoch: int, cells: list[Cell], share: float
) -> Iterator[CellResult | Block | Proof | Kernel]:
    """Measure a package's cells in one epoch, with --regime sustained also slices. Leaves out arms that hung in two epochs."""
    every = [(cell.id, arm) for cell in cells for arm in plan.arms[cell.id]]
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
                arms=tuple(arm for arm in plan.arms[cell.id] if arm.worker in present),
                epoch=epoch,
                options=plan.run.options,
                judge=load.judge,
                check=cell.id not in known.checked,
                by_base=load.checked == "sides",
                share=share,
                usual=known.calls.get(cell.id, {}),
                timeouts=known.timeouts,
            )
            if plan.device.kind == "cuda":
                _warm_up(pool, task, loaded)
            result = measure_cell(pool, plan.device, task, alone=cell.id in known.crowded)
            if result.crowded:  # from now on one arm is in memory at a time
                known.crowded.add(cell.id)
                result = measure_cell(pool, plan.device, task, alone=True)
            known.calls.setdefault(cell.id, result.calls)
            if all(o.check is not None or o.status not in _LOST for o in result.block.outcomes.values()):
                known.checked.add(cell.id)
            ran = [arm for arm in task.arms if result.block.outcomes[arm.id].status == "ok" and not result.block.alone]
            if ran and task.options.regime == "sustained" and not task.options.quick:
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
