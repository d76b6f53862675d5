"""What a probe looks at, and its workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from abprof.measure.pool import WorkerPool
from abprof.records import Arm, Cell
from abprof.records import messages as wire
from abprof.system.processes import WorkerFault

if TYPE_CHECKING:
    from abprof.measure import Plan
    from abprof.measure.pool import WorkerSpec
    from abprof.system.processes import Worker


@dataclass(frozen=True)
class Subject:
    """What a probe looks at: a cell in one variant, and its arm on each side."""

    cell: Cell
    variant: str
    arms: tuple[Arm, ...]


def each_arm(
    plan: Plan, subjects: Sequence[Subject], epoch: int
) -> Iterator[tuple[WorkerPool, WorkerSpec, Subject, Arm]]:
    """Each arm of the subjects whose side has the package, with the workers of that package."""
    from abprof.measure.pool import WorkerPool

    sides = [side.id for side in plan.run.sides]
    for kernel in dict.fromkeys(subject.cell.kernel for subject in subjects):
        specs = plan.specs(kernel, sides)
        own = {spec.id: spec for spec in specs}
        with WorkerPool(plan.factory, specs, epoch) as pool:
            for subject in (subject for subject in subjects if subject.cell.kernel == kernel):
                for arm in (arm for arm in subject.arms if arm.side in own):
                    yield pool, own[arm.side], subject, arm


def opened(plan: Plan, pool: WorkerPool, subject: Subject, arm: Arm) -> tuple[Worker, wire.Opened]:
    """A worker that has set up this arm. Raises WorkerDied, WorkerFault."""

    worker, cell = pool.worker(arm.side), subject.cell
    request = wire.Open(cell.workload, dict(cell.params), arm.id, arm.variant, seed=plan.run.options.seed)
    reply: wire.Opened = worker.call(request, plan.timeout)
    if reply.status != "ok":
        raise WorkerFault(reply.status, reply.reason)
    return worker, reply
