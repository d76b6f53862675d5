"""The usual ways of timing two branches, for selfcheck to compare with: one process a side, base first, then target.

`seed` reproduces the original branch-profile scripts (100 warm-up calls, 100 timed calls, warm caches, the
mean), `do_bench` is what triton.testing offers for a GPU (warm-up of 25 ms, calls for 100 ms, L2 cleared, the median).
What they say about unchanged code is why abprof has another protocol; no verdict is made from them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from abprof.measure.plan import Plan
from abprof.measure.pool import WorkerPool
from abprof.measure.turns import TIMER
from abprof.records import DO_BENCH_METRIC, LONGEST_CALL, SEED_METRIC, Arm, Block, Cell, Outcome, Turn
from abprof.records import messages as wire
from abprof.system.processes import WorkerDied, WorkerFault


@dataclass(frozen=True)
class Sequential:
    """A protocol of one process a side."""

    metric: str
    rule: str
    calls: int  # of one turn
    warm_up: int  # calls of a turn before it
    timer: str = ""  # "": the device's own
    kinds: tuple[str, ...] = ("cpu", "cuda", "simulated")


PROTOCOLS = {
    "seed": Sequential(
        metric=SEED_METRIC,
        rule="100 warm-up calls, then the mean of 100, warm caches, base first, one process a side",
        calls=100,
        warm_up=100,
    ),
    "do_bench": Sequential(
        metric=DO_BENCH_METRIC,
        rule="triton.testing.do_bench, the median, base first, one process a side",
        calls=1,
        warm_up=0,
        timer="do_bench",
        kinds=("cuda",),
    ),
}


def one_after_the_other(plan: Plan, name: str, epoch: int) -> Iterator[Block]:
    """One block per cell, with a single round of one turn per side. Sides run one after the other, whole."""
    protocol = PROTOCOLS[name]
    todo = [cell for cell in plan.cells if cell.id in plan.arms and cell.kernel and not cell.skip]
    for kernel in dict.fromkeys(cell.kernel for cell in todo):
        cells = [cell for cell in todo if cell.kernel == kernel]
        found: dict[tuple[str, str], wire.Turned] = {}
        for side in plan.checkouts:
            stand = plan.specs(kernel, [side])
            with WorkerPool(plan.factory, stand, epoch) as pool:
                for cell in cells if stand else []:
                    for arm in (a for a in plan.arms[cell.id] if a.side == side and not a.peer):
                        turned = _turn(plan, pool, protocol, cell, arm)
                        if turned is not None:
                            found[cell.id, arm.id] = turned
        for cell in cells:
            arms = tuple(arm.id for arm in plan.arms[cell.id] if (cell.id, arm.id) in found)
            if arms:
                timer = protocol.timer or TIMER[plan.device.kind]
                yield _block(protocol, timer, epoch, cell, arms, [found[cell.id, arm] for arm in arms])


def _turn(plan: Plan, pool: WorkerPool, protocol: Sequential, cell: Cell, arm: Arm) -> wire.Turned | None:
    """The timed calls of one arm, or None: what fails here has failed in the run proper, and is typed there."""
    timer = protocol.timer or TIMER[plan.device.kind]
    try:
        worker = pool.worker(arm.side)
        worker.call(
            wire.Open(cell.workload, dict(cell.params), arm.id, arm.variant, seed=plan.run.options.seed),
            plan.timeout,
        )
        if protocol.warm_up:
            worker.call(wire.Turn(arm.id, protocol.warm_up, timer, cold=False), plan.timeout)
        turned: wire.Turned = worker.call(wire.Turn(arm.id, protocol.calls, timer, cold=False), plan.timeout)
        worker.call(wire.Close(), plan.timeout)
    except (WorkerDied, WorkerFault):
        return None
    return turned if 0 < turned.value <= LONGEST_CALL else None


def _block(
    protocol: Sequential, timer: str, epoch: int, cell: Cell, arms: tuple[str, ...], turns: Sequence[wire.Turned]
) -> Block:
    origin = min(turn.start for turn in turns)
    row = tuple(Turn(i, t.start - origin, t.end - origin, t.value, t.wall) for i, t in enumerate(turns))
    return Block(
        epoch=epoch,
        cell=cell.id,
        metric=protocol.metric,
        timer=timer,
        calls=protocol.calls,
        rule=protocol.rule,
        arms=arms,
        began=time.time(),
        seconds=sum(t.end - t.start for t in turns) / 1e9,
        rounds=(row,),
        outcomes={arm: Outcome(status="ok") for arm in arms},
    )
