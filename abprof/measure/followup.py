"""Follow-up measurements after all epochs: without pauses, at the power limit (--sustained).

When two sides take turns call by call, neighbours share the clock and the power that is left, so a change that costs power
slows both. Sustained slices run each side for a second without a pause, in fresh processes, each side and then back; the
first third of a slice is not timed, for the clock to settle. Half-second slices of the same code were 0.5 % apart between
epochs on an H200, so slices are judged apart from the turns, and overrule only their sign.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from abprof.measure import turns
from abprof.measure.plan import Plan
from abprof.measure.pool import WorkerPool
from abprof.records import LONGEST_CALL, SUSTAINED, Arm, Block, Cell, MachineState, Outcome, Turn
from abprof.records import messages as wire
from abprof.system.processes import WorkerDied, WorkerFault
from abprof.verdict import stats

_SLICE = 1e9  # ns of calls without a pause
_FEWEST_CALLS = 3  # of a slice: one of them is not timed
_RULE = "slices of 1 s without a pause, the first third not timed; each side, then back; fresh processes"
_Rounds = tuple[tuple[Turn, ...], ...]


def owed(plan: Plan, before: Sequence[Block]) -> set[str]:
    """Cells of which `before` lacks some of these blocks."""
    return set(_due(plan, before))


def follow_up(plan: Plan, before: Sequence[Block], first: int) -> Iterator[Block]:
    """With --sustained a block of slices for each cell in each epoch up to the first look, without those that `before` has.

    `first`: the number of the first epoch.
    An arm that did not run in turns has no slices.
    """
    due, failed = _due(plan, before), _failed(before)
    for epoch in range(first, first + stats.LOOKS[0]):
        cells = [cell for cell in plan.cells if due.get(cell.id, 0) > epoch - first]
        for kernel in dict.fromkeys(cell.kernel for cell in cells):
            specs = plan.specs(kernel, [side.id for side in plan.run.sides])
            present = {spec.id for spec in specs}
            with WorkerPool(plan.factory, specs, epoch) as pool:
                for cell in (cell for cell in cells if cell.kernel == kernel):
                    arms = [arm for arm in plan.arms[cell.id] if arm.side in present and not arm.peer]
                    arms = [arm for arm in arms if (cell.id, arm.id) not in failed]
                    if len(arms) > 1:
                        yield _block(plan, pool, cell, arms, epoch)


def _due(plan: Plan, before: Sequence[Block]) -> dict[str, int]:
    """Cell -> epochs with slices that it lacks (--sustained). Slices that failed are not tried again.

    None for cells whose arms do not fit into memory together, or with fewer than two arms that ran in turns.
    """
    if not plan.run.options.sustained or plan.run.options.quick:
        return {}
    crowded = {block.cell for block in before if block.alone}
    had = Counter(block.cell for block in before if block.metric == SUSTAINED)
    failed = _failed(before)
    due = {}
    for cell in plan.cells:
        arms = [arm for arm in plan.arms.get(cell.id, ()) if not arm.peer and (cell.id, arm.id) not in failed]
        if len(arms) > 1 and cell.id not in crowded and cell.kernel and not cell.skip:
            due[cell.id] = stats.LOOKS[0] - had[cell.id]
    return {cell: count for cell, count in due.items() if count > 0}


def _failed(before: Sequence[Block]) -> set[tuple[str, str]]:
    """(cell, arm) that did not run in turns."""
    turned = (block for block in before if block.judged)
    return {(b.cell, arm) for b in turned for arm, how in b.outcomes.items() if how.status not in ("ok", "identical")}


def _block(plan: Plan, pool: WorkerPool, cell: Cell, arms: Sequence[Arm], epoch: int) -> Block:
    began, clock, device = time.time(), time.monotonic(), plan.device
    device.watch(pool.own)
    device.state(), device.bad_times()  # forget earlier ones
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
    """Calls of a slice, the same for all arms, and two rounds: through the arms and back. Who begins changes by epoch.

    Raises WorkerFault, WorkerDied.
    """
    call_ns, params, seed = 0.0, dict(cell.params), plan.run.options.seed
    for arm in turns.ranked(arms, epoch - 1):
        request = wire.Open(cell.workload, params, arm.id, arm.variant, seed=seed)
        opened: wire.Opened = pool.worker(arm.side).call(request, plan.timeout)
        if opened.status != "ok":
            raise WorkerFault(opened.status, opened.reason)
        call_ns = max(call_ns, opened.call_ns)
    if call_ns <= 0:
        raise WorkerFault("crash", "the timer read zero or less")
    calls = max(_FEWEST_CALLS, math.ceil(_SLICE / call_ns))
    origin, order, taken = time.monotonic_ns(), turns.ranked(list(enumerate(arms)), epoch - 1), []
    for index, arm in (*order, *reversed(order)):
        turn = wire.Turn(arm.id, calls, "sustained", cold=False)
        read: wire.Turned = pool.worker(arm.side).call(turn, plan.timeout)
        if not 0 < read.value <= LONGEST_CALL:
            raise WorkerFault("crash", "the timer read what no call takes")
        taken.append(Turn(index, read.start - origin, read.end - origin, read.value, read.wall))
    return calls, (tuple(taken[: len(arms)]), tuple(taken[len(arms) :]))
