"""`--protocol seed`: time as the original branch-profile scripts did, for their numbers, beside abprof's own.

One process a side, base first, then target; 100 warm-up calls, 100 timed calls, caches warm, arithmetic mean. What this
way of timing says about unchanged code is why abprof has another; no verdict is made from it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from abprof import wire
from abprof.crew import Crew, posts
from abprof.measure import Ground
from abprof.model import SEED_METRIC, Arm, Block, Cell, Outcome, Turn
from abprof.proc import WorkerDied, WorkerFault
from abprof.turns import TIMER

CALLS = 100
RULE = "100 warm-up calls, then the mean of 100, warm caches, base first, one process a side"


def seed_pass(ground: Ground, epoch: int) -> Iterator[Block]:
    """One block per cell, with a single round of one turn per side. Sides run one after the other, whole."""
    todo = [cell for cell in ground.run.cells if cell.id in ground.arms and cell.kernel and not cell.skip]
    for kernel in dict.fromkeys(cell.kernel for cell in todo):
        cells = [cell for cell in todo if cell.kernel == kernel]
        found: dict[tuple[str, str], wire.Turned] = {}
        for side in ground.checkouts:
            stand = posts(ground.checkouts, ground.packages[kernel], ground.build, [side])
            with Crew(ground.shop, stand, epoch) as crew:
                for cell in cells if stand else []:
                    for arm in (a for a in ground.arms[cell.id] if a.side == side and not a.peer):
                        turned = _turn(ground, crew, cell, arm)
                        if turned is not None:
                            found[cell.id, arm.id] = turned
        for cell in cells:
            arms = tuple(arm.id for arm in ground.arms[cell.id] if (cell.id, arm.id) in found)
            if arms:
                yield _block(ground, epoch, cell, arms, found)


def _turn(ground: Ground, crew: Crew, cell: Cell, arm: Arm) -> wire.Turned | None:
    """The timed calls of one arm, or None: what fails here has failed in the run proper, and is typed there."""
    timer = TIMER[ground.device.kind]
    try:
        worker = crew.worker(arm.side)
        worker.call(
            wire.Open(cell.workload, dict(cell.params), arm.id, arm.variant, seed=ground.run.settings.seed),
            ground.timeout,
        )
        worker.call(wire.Turn(arm.id, CALLS, timer, cold=False), ground.timeout)
        turned: wire.Turned = worker.call(wire.Turn(arm.id, CALLS, timer, cold=False), ground.timeout)
        worker.call(wire.Close(), ground.timeout)
    except (WorkerDied, WorkerFault):
        return None
    return turned if turned.value > 0 else None


def _block(
    ground: Ground, epoch: int, cell: Cell, arms: tuple[str, ...], found: dict[tuple[str, str], wire.Turned]
) -> Block:
    turns = [found[cell.id, arm] for arm in arms]
    origin = min(turn.start for turn in turns)
    row = tuple(Turn(i, t.start - origin, t.end - origin, t.value, t.wall) for i, t in enumerate(turns))
    return Block(
        epoch=epoch,
        cell=cell.id,
        metric=SEED_METRIC,
        timer=TIMER[ground.device.kind],
        calls=CALLS,
        rule=RULE,
        arms=arms,
        began=time.time(),
        seconds=sum(t.end - t.start for t in turns) / 1e9,
        rounds=(row,),
        outcomes={arm: Outcome(status="ok") for arm in arms},
    )
