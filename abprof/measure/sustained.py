"""The other question: how fast a kernel runs without a pause, at the device's power limit.

When two sides take turns call by call, neighbours share the clock and the power that is left, so a change that costs
power slows both. Here each side runs for a second on end, in fresh processes, each side and then back, begun by another from
epoch to epoch; the first third of each slice is not timed, for the clock to settle. Half-second slices of the same code were
0.5 % apart between epochs on an H200 (docs/DESIGN.md, Measurement, 5), so slices answer apart from the turns, and overrule only
their sign.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from abprof.measure import turns
from abprof.measure.epochs import Ground
from abprof.measure.pool import Crew, posts
from abprof.records import LONGEST_CALL, SUSTAINED, Arm, Block, Cell, MachineState, Outcome, Turn
from abprof.records import messages as wire
from abprof.system.processes import WorkerDied, WorkerFault
from abprof.verdict import stats

SLICE = 1e9  # ns of calls without a pause
_FEWEST = 3  # calls of a slice: one of them is not timed
RULE = "slices of 1 s without a pause, the first third not timed; each side, then back; fresh processes"


def chosen(ground: Ground) -> Sequence[str]:
    """Cells to measure without a pause (--sustained): all that compare two arms or more."""
    settings = ground.run.options
    if not settings.sustained or settings.quick:
        return ()
    return [cell for cell, arms in ground.arms.items() if sum(not arm.peer for arm in arms) > 1]


def sustained(ground: Ground, wanted: Sequence[str], before: Sequence[Block], first: int) -> Iterator[Block]:
    """A block for each of these cells in each epoch up to the first look; `first` is the number of the first epoch.

    Those that have some of their epochs `before` (a run that is gone on with) keep them. An arm that did not run in turns has no
    slices.
    """
    missing, did_not = due(ground, wanted, before), failed(before)
    sides = [side.id for side in ground.run.sides]
    for epoch in range(first, first + stats.LOOKS[0]):
        cells = [cell for cell in ground.run.cells if missing.get(cell.id, 0) > epoch - first]
        for kernel in dict.fromkeys(cell.kernel for cell in cells):
            stand = posts(ground.checkouts, ground.packages[kernel], ground.build, sides)
            present = {post.id for post in stand}
            with Crew(ground.shop, stand, epoch) as crew:
                for cell in (cell for cell in cells if cell.kernel == kernel):
                    arms = [arm for arm in ground.arms[cell.id] if arm.side in present and not arm.peer]
                    arms = [arm for arm in arms if (cell.id, arm.id) not in did_not]
                    if len(arms) > 1:
                        yield _block(ground, crew, cell, arms, epoch)


def due(ground: Ground, wanted: Sequence[str], before: Sequence[Block]) -> dict[str, int]:
    """Cell -> epochs with slices that it lacks. Cells whose arms do not fit into memory together get none, nor those of which
    fewer than two arms ran in turns; slices that failed are not tried again."""
    crowded = {block.cell for block in before if block.alone}
    had = Counter(block.cell for block in before if block.metric == SUSTAINED)
    did_not = failed(before)
    there = (c for c in ground.run.cells if c.id in wanted and c.id in ground.arms and c.id not in crowded)
    able = (c for c in there if sum(not arm.peer and (c.id, arm.id) not in did_not for arm in ground.arms[c.id]) > 1)
    left = {cell.id: stats.LOOKS[0] - had[cell.id] for cell in able if cell.kernel and not cell.skip}
    return {cell: count for cell, count in left.items() if count > 0}


def failed(before: Sequence[Block]) -> set[tuple[str, str]]:
    """(cell, arm) that did not run in turns."""
    turned = (block for block in before if block.judged)
    return {(b.cell, arm) for b in turned for arm, how in b.outcomes.items() if how.status not in ("ok", "identical")}


def _block(ground: Ground, crew: Crew, cell: Cell, arms: Sequence[Arm], epoch: int) -> Block:
    began, clock = time.time(), time.monotonic()
    ground.device.watch(crew.own)
    ground.device.state(), ground.device.bad_times()  # forget what came before
    calls, rounds = 0, tuple[tuple[Turn, ...], ...]()
    outcomes = {arm.id: Outcome(status="ok") for arm in arms}
    try:
        calls, rounds = _slices(ground, crew, cell, arms, epoch)
    except (WorkerDied, WorkerFault) as failed:
        outcomes = {arm.id: Outcome(status="crash", reason=failed.reason) for arm in arms}
    bad = [why for *_, why in ground.device.bad_times()]
    bad += [proved.reason for proved in crew.prove().values() if not proved.ok]
    crew.close()
    return Block(
        epoch=epoch,
        cell=cell.id,
        metric=SUSTAINED,
        timer=turns.TIMER[ground.device.kind],
        calls=calls,
        rule=RULE,
        arms=tuple(arm.id for arm in arms),
        began=began,
        seconds=time.monotonic() - clock,
        rounds=rounds,
        rejected=tuple(range(len(rounds))) if bad else (),
        rejected_why="; ".join(dict.fromkeys(bad)) if rounds else "",
        outcomes=outcomes,
        state=ground.device.state() if rounds else MachineState(),
        start_order=crew.start_order,
    )


def _slices(
    ground: Ground, crew: Crew, cell: Cell, arms: Sequence[Arm], epoch: int
) -> tuple[int, tuple[tuple[Turn, ...], ...]]:
    """Calls of a slice, the same for all arms, and two rounds: one from the first arm to the last, one back. The first is
    another in the next epoch."""
    call_ns = 0.0
    for arm in turns.ranked(arms, epoch - 1):
        request = wire.Open(cell.workload, dict(cell.params), arm.id, arm.variant, seed=ground.run.options.seed)
        opened: wire.Opened = crew.worker(arm.side).call(request, ground.timeout)
        if opened.status != "ok":
            raise WorkerFault(opened.status, opened.reason)
        call_ns = max(call_ns, opened.call_ns)
    if call_ns <= 0:
        raise WorkerFault("crash", "the timer read zero or less")
    calls = max(_FEWEST, math.ceil(SLICE / call_ns))
    origin, order, taken = time.monotonic_ns(), turns.ranked(list(enumerate(arms)), epoch - 1), []
    for index, arm in (*order, *reversed(order)):
        asked = wire.Turn(arm.id, calls, "sustained", cold=False)
        read: wire.Turned = crew.worker(arm.side).call(asked, ground.timeout)
        if not 0 < read.value <= LONGEST_CALL:
            raise WorkerFault("crash", "the timer read what no call takes")
        taken.append(Turn(index, read.start - origin, read.end - origin, read.value, read.wall))
    return calls, (tuple(taken[: len(arms)]), tuple(taken[len(arms) :]))
