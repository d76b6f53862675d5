"""Measure, after all epochs, each cell's profiled pass (launches, times of phases) and with --sustained its slices.

The profiled pass has processes of its own: profilers take seconds to start, and after torch's profiler CUPTI reports
wrong times in the same process.

A slice is one second of calls of one side without pauses; its first third is not timed, so that the clock can settle.
Sides that take turns call by call share the clock and the power, so a change that costs power slows both; in slices it
slows only its own side. Slices of the same code vary between epochs (0.5 % for half a second on an H200), so slices
give no verdict: a verdict that they contradict becomes `unclear`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from abprof.measure import turns
from abprof.measure.cell import CellSetup, CellTask
from abprof.measure.plan import Plan, timed
from abprof.measure.pool import WorkerPool
from abprof.records import JUDGED_METRIC, LONGEST_CALL, LOOKS, SUSTAINED, Arm, Block, Cell, MachineState, Outcome, Turn
from abprof.records import messages as wire
from abprof.system.processes import WorkerDied, WorkerFault

NEVER_LAUNCHED = "a call launches nothing on the device: what was timed is not the kernel's work"
_PROFILED = "the profiled pass, in processes of its own"
_SLICE = 1e9  # ns of calls without a pause
_FEWEST_CALLS = 3  # least number of calls of a slice; the first is not timed
_RULE = "slices of 1 s without a pause, the first third not timed; each side, then back; fresh processes"
_Rounds = tuple[tuple[Turn, ...], ...]


def follow_up(plan: Plan, before: Sequence[Block], first: int, until: float = math.inf) -> Iterator[Block]:
    """Measure the profiled pass of each cell, then with --sustained slices in as many epochs as the first look needs.

    Leaves out what the run's blocks `before` already have, and arms that failed. `first`: number of the next epoch.
    After `until` (time.monotonic()) no further profiled pass begins.
    """
    profiled, usual = plan.to_profile(before), dict[str, dict[str, float]]()  # with its time a long call is made once
    for block in before:
        usual.setdefault(block.cell, {}).update(
            (block.arms[turn.arm], turn.value) for row in block.rounds for turn in row
        )
    for pool, cell in _cells(plan, profiled, sorted({arm.side for arms in profiled.values() for arm in arms}), first):
        if time.monotonic() > until:
            break
        yield plan.labelled(_profiled(plan, pool, cell, profiled[cell.id], first, usual[cell.id]))
    due, turned = plan.slices_due(before), timed(before)
    for epoch in range(first, first + LOOKS[0]):
        todo = {cell for cell, count in due.items() if count > epoch - first}
        for pool, cell in _cells(plan, todo, [side.id for side in plan.run.sides], epoch):
            present = set(pool.start_order)
            arms = [a for a in plan.arms[cell.id] if a.side in present and not a.peer and turned.get((cell.id, a.id))]
            if len(arms) > 1:
                yield _block(plan, pool, cell, arms, epoch)


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
    began, clock, load = time.time(), time.monotonic(), plan.workload(cell)
    present = set(pool.start_order)
    takers = tuple(arm for arm in arms if arm.side in present)
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
    outcomes = {s.arm.id: msgspec.structs.replace(s.outcome, host_ns=None, peak_mem_bytes=None) for s in setup.states}
    return Block(
        epoch=epoch,
        cell=cell.id,
        metric=JUDGED_METRIC[load.judge],
        timer=turns.timer_of(plan.device.kind, load.judge),
        calls=0,
        rule=_PROFILED,
        arms=tuple(arm.id for arm in takers),
        began=began,
        seconds=time.monotonic() - clock,
        rounds=(),
        outcomes=outcomes,
        start_order=pool.start_order,
        quick=plan.run.options.quick,
    )


def _profile_request(arm: str, call_ns: float, *, phases: bool) -> wire.Phases:
    calls = max(1, min(10, math.ceil(1e8 / max(call_ns, 1.0))))
    if phases:
        return wire.Phases(arm, calls, min(2, calls - 1))
    return wire.Phases(arm, 2, 1) if calls > 1 else wire.Phases(arm, 1, 0)


# ---------------------------------------------------------------- slices without a pause


def _block(plan: Plan, pool: WorkerPool, cell: Cell, arms: Sequence[Arm], epoch: int) -> Block:
    began, clock, device = time.time(), time.monotonic(), plan.device
    device.watch(pool.factory.own.copy)
    device.state(), device.bad_times()  # forget those before the slices
    calls, rounds = 0, _Rounds()
    outcomes = {arm.id: Outcome(status="ok") for arm in arms}
    try:
        calls, rounds = _slices(plan, pool, cell, arms, epoch)
    except (WorkerDied, WorkerFault) as failed:
        outcomes = {arm.id: Outcome(status="crash", reason=failed.reason) for arm in arms}
    bad = [why for *_, why in device.bad_times()]
    bad += [proved.reason for proved in pool.prove().values() if not proved.ok]
    pool.close()
    return Block(
        epoch=epoch,
        cell=cell.id,
        metric=SUSTAINED,
        timer=turns.TIMER[device.kind],
        calls=calls,
        rule=_RULE,
        arms=tuple(arm.id for arm in arms),
        began=began,
        seconds=time.monotonic() - clock,
        rounds=rounds,
        rejected=tuple(range(len(rounds))) if bad else (),
        rejected_why="; ".join(dict.fromkeys(bad)) if rounds else "",
        outcomes=outcomes,
        state=device.state() if rounds else MachineState(),
        start_order=pool.start_order,
    )


def _slices(plan: Plan, pool: WorkerPool, cell: Cell, arms: Sequence[Arm], epoch: int) -> tuple[int, _Rounds]:
    """Measure a slice (a second of calls without pauses) of every arm, then a second slice in reverse order of arms.

    Return the number of calls in a slice, equal for all arms, and both rounds of turns. The first arm changes with the
    epoch. Raises WorkerFault if a time is impossible or a call fails, WorkerDied if a worker ends.
    """
    call_ns, params, seed = 0.0, dict(cell.params), plan.run.options.seed
    for arm in turns.ranked(arms, epoch - 1):
        request = wire.Open(cell.workload, params, arm.id, arm.variant, seed=seed)
        opened: wire.Opened = pool.worker(arm.side).call(request, plan.factory.timeout)
        call_ns = max(call_ns, opened.call_ns)
    if call_ns <= 0:
        raise WorkerFault("crash", "the timer read zero or less")
    calls = max(_FEWEST_CALLS, math.ceil(_SLICE / call_ns))
    origin, order, taken = time.monotonic_ns(), turns.ranked(list(enumerate(arms)), epoch - 1), []
    for index, arm in (*order, *reversed(order)):
        turn = wire.Turn(arm.id, calls, "sustained", cold=False)
        read: wire.Turned = pool.worker(arm.side).call(turn, plan.factory.timeout)
        if not 0 < read.value <= LONGEST_CALL:
            raise WorkerFault("crash", "the timer read what no call takes")
        taken.append(Turn(index, read.start - origin, read.end - origin, read.value, read.wall))
    return calls, (tuple(taken[: len(arms)]), tuple(taken[len(arms) :]))
