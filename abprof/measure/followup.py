"""Measure, after all epochs, slices without pauses of cells at the power limit, then each cell's profiled pass.

A slice is a tenth of a second of calls of one arm without pauses; its first third is not timed, so that the clock can
settle. Arms that take turns call by call share the clock and the power, so a change that costs power slows all; in
slices it slows only its own arm. Slices of the same code vary between fresh processes, short ones no more than long
ones (docs/MEASUREMENT.md), so the time goes into epochs.

The profiled pass (launches, times of phases) has processes of its own: profilers take seconds to start, and after
torch's profiler CUPTI reports wrong times in the same process.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from abprof.measure import turns
from abprof.measure.plan import Plan
from abprof.measure.pool import WorkerPool
from abprof.measure.setup import CellSetup, CellTask
from abprof.records import LONGEST_CALL, SUSTAINED, Arm, Block, Cell, Turn
from abprof.records import messages as wire
from abprof.system.processes import WorkerDied, WorkerFault

NEVER_LAUNCHED = "a call launches nothing on the device: what was timed is not the kernel's work"
_MOST_SECONDS = 5.0  # for the slices of a cell, with the start of its workers
_EPOCH, _SHORTEST = 6e8, 5e7  # ns of all slices in an epoch; ns of a slice
_FEWEST_CALLS = 3  # least number of calls of a slice; the first is not timed
_Rounds = tuple[tuple[Turn, ...], ...]


def follow_up(
    plan: Plan, before: Sequence[Block], first: int, end: float = math.inf, until: float = math.inf
) -> Iterator[Block]:
    """Measure slices of the cells at the power limit, then the profiled pass of each cell.

    Leaves out what the run's blocks `before` already have, and arms that failed. `first`: number of the next epoch.
    After `end` (time.monotonic()) no further slices begin, after `until` no further profiled pass.
    """
    yield from _sustained(plan, before, first, end)
    profiled, usual = plan.to_profile(before), dict[str, dict[str, float]]()  # with its time a long call is made once
    for block in before:
        usual.setdefault(block.cell, {}).update(block.call_ns)
    for pool, cell in _cells(plan, profiled, sorted({arm.side for arms in profiled.values() for arm in arms}), first):
        if time.monotonic() > until:
            break
        yield plan.labelled(_profiled(plan, pool, cell, profiled[cell.id], first, usual[cell.id]))


def _sustained(plan: Plan, before: Sequence[Block], first: int, end: float) -> Iterator[Block]:
    """Measure epochs of slices. A further one begins if it is likely to end by `end` and within five seconds a cell."""
    due, began = plan.slices_due(before), time.monotonic()
    end = min(end, began + _MOST_SECONDS * len(due))
    for epoch in range(first, first + max((count for _, count in due.values()), default=0)):
        now = time.monotonic()
        if now + max(_EPOCH / 1e9 * len(due), (now - began) / max(1, epoch - first)) > end:
            return
        todo = {cell: arms for cell, (arms, count) in due.items() if count > epoch - first}
        workers = dict.fromkeys(arm.worker for arms in todo.values() for arm in arms)
        for pool, cell in _cells(plan, todo, list(workers), epoch):
            if arms := [arm for arm in todo[cell.id] if arm.worker in pool.start_order]:
                yield slices(plan, pool, cell, arms, epoch)


def _cells(plan: Plan, ids: Iterable[str], sides: Sequence[str], epoch: int) -> Iterator[tuple[WorkerPool, Cell]]:
    """Yield each of the cells `ids` with its package's workers. The workers end after the package's last cell."""
    cells = [cell for cell in plan.cells if cell.id in ids]
    for kernel in dict.fromkeys(cell.kernel for cell in cells):
        with plan.pool(kernel, sides, epoch) as pool:
            for cell in cells:
                if cell.kernel == kernel:
                    yield pool, cell


# ---------------------------------------------------------------- the profiled pass


def _profiled(plan: Plan, pool: WorkerPool, cell: Cell, arms: list[Arm], epoch: int, usual: dict[str, float]) -> Block:
    """Profile a cell: return a block with launches and phase times, without rounds. `usual`: arm -> ns of a call."""
    load, takers = plan.workload(cell), tuple(arm for arm in arms if arm.side in pool.start_order)
    task = CellTask(cell, takers, epoch, plan.run.options, load.judge, usual=usual)
    setup = CellSetup(pool, plan.device, task, alone=True)
    for state in setup.states:
        setup.open(state)
        if state.opened is not None:
            request = _profile_request(state.arm.id, state.opened.call_ns, phases=bool(load.phases))
            phased: wire.Phased | None = setup.ask(state, request)
            if phased is not None:
                recorded, census = load.phases and (phased.phases or phased.total), phased.census
                times = {**phased.phases, "total": phased.total} if recorded else None
                state.outcome = msgspec.structs.replace(state.outcome, phases=times, census=census)
                if census.on_device and not census.missing and not census.launches:
                    setup.wrong(state, NEVER_LAUNCHED)
        pool.close()
        state.outcome = msgspec.structs.replace(state.outcome, host_ns=None, peak_mem_bytes=None)
    return setup.block(timer=turns.timer_of(plan.device.kind, load.judge), calls=0)


def _profile_request(arm: str, call_ns: float, *, phases: bool) -> wire.Phases:
    calls = max(1, min(10, math.ceil(1e8 / max(call_ns, 1.0))))
    if phases:
        return wire.Phases(arm, calls, min(2, calls - 1))
    return wire.Phases(arm, 2, 1) if calls > 1 else wire.Phases(arm, 1, 0)


# ---------------------------------------------------------------- slices without a pause


def slices(plan: Plan, pool: WorkerPool, cell: Cell, arms: Sequence[Arm], epoch: int) -> Block:
    """Measure slices of the arms in the workers of `pool`. A failure fails all arms."""
    device, judge = plan.device, plan.workload(cell).judge
    setup = CellSetup(pool, device, CellTask(cell, tuple(arms), epoch, plan.run.options, judge))
    device.watch(pool.factory.own.copy)
    device.state(), device.bad_times()  # forget those before the slices
    calls, rounds = 0, _Rounds()
    try:
        calls, rounds = _slices(plan, pool, cell, arms, epoch)
    except (WorkerDied, WorkerFault) as failed:
        for state in setup.states:
            setup.fail(state, "crash", failed.reason)
    bad = [why for *_, why in device.bad_times()]
    bad += [proved.reason for proved in pool.prove().values() if not proved.ok]
    pool.close()
    return setup.block(
        metric=SUSTAINED,
        timer=f"{turns.TIMER[device.kind]} without pauses",
        calls=calls,
        rounds=rounds,
        rejected=tuple(range(len(rounds))) if bad else (),
        rejected_why="; ".join(dict.fromkeys(bad)) if rounds else "",
    )


def slice_calls(call_ns: float, arms: int) -> int:
    """Return the number of calls in a slice. An epoch has an untimed slice and two of each arm."""
    length = max(_SHORTEST, _EPOCH / (1 + 2 * arms))
    return max(_FEWEST_CALLS, math.ceil(length / call_ns))


def _slices(plan: Plan, pool: WorkerPool, cell: Cell, arms: Sequence[Arm], epoch: int) -> tuple[int, _Rounds]:
    """Measure a slice of every arm, then a second slice in reverse order of arms. An untimed slice warms the device up.

    Return the number of calls in a slice, equal for all arms, and both rounds of turns. The first arm changes with the
    epoch. Raises WorkerFault if a time is impossible or a call fails, WorkerDied if a worker ends.
    """
    call_ns, params, seed = 0.0, dict(cell.params), plan.run.options.seed
    for arm in turns.ranked(arms, epoch - 1):
        request = wire.Open(cell.workload, params, arm.id, arm.variant, arm.peer, seed=seed)
        opened: wire.Opened = pool.worker(arm.worker).call(request, plan.factory.timeout)
        call_ns = max(call_ns, opened.call_ns)
    if call_ns <= 0:
        raise WorkerFault("crash", "the timer read zero or less")
    calls = slice_calls(call_ns, len(arms))
    origin, order, taken = time.monotonic_ns(), turns.ranked(list(enumerate(arms)), epoch - 1), []
    for index, arm in (order[0], *order, *reversed(order)):
        turn, asked = wire.Turn(arm.id, calls, "sustained", cold=False), time.perf_counter_ns()
        read: wire.Turned = pool.worker(arm.worker).call(turn, plan.factory.timeout)
        waited = time.perf_counter_ns() - asked if plan.device.kind != "simulated" else 0
        if not 0 < read.value <= LONGEST_CALL:
            raise WorkerFault("crash", "the timer read what no call takes")
        taken.append(Turn(index, read.start - origin, read.end - origin, read.value, read.wall, waited=waited))
    return calls, (tuple(taken[1 : len(arms) + 1]), tuple(taken[len(arms) + 1 :]))
