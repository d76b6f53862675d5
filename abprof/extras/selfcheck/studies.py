"""What selfcheck measures after its ordinary run, in blocks of metrics that no verdict reads.

Studies: how a turn's length and an idle second worker change what is read. Other protocols: one process a side, base first:
`seed` as the original branch-profile scripts (100 warm-up calls, the mean of 100, warm caches), `do_bench` as triton.testing
(warm-up of 25 ms, calls for 100 ms, L2 cleared, the median). A block whose measurement fails has no rounds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from abprof.measure import Plan, turns
from abprof.measure.pool import WorkerPool
from abprof.records import (
    ALONE,
    DO_BENCH_METRIC,
    IDLE_SECOND,
    LONGEST_CALL,
    SEED_METRIC,
    TURN_LENGTH,
    Arm,
    Block,
    Cell,
    Outcome,
    Turn,
)
from abprof.records import messages as wire
from abprof.system.processes import WorkerDied, WorkerFault

LENGTHS = (1, 3, 10, 30, 100)  # calls a turn
LONGEST = 100e6  # ns of a turn
SECONDS = 0.5  # of rounds, for each length and each visit
PAIR = ("base", "target")
_Rounds = tuple[tuple[Turn, ...], ...]


def studies(plan: Plan, epoch: int) -> Iterator[Block]:
    """All blocks: pairs of turns of each length, then base's turns alone and beside an idle worker, in four visits."""
    cells = [cell for cell in plan.run.cells if cell.id in plan.arms and _chosen(plan, cell)]
    if not cells:
        return
    with _crew(plan, cells, PAIR, epoch) as pool:
        for cell in cells:
            yield from _turn_lengths(plan, pool, cell, epoch)
    # In mirrored order, so that a drift of the machine falls on both alike.
    for metric in (ALONE, IDLE_SECOND, IDLE_SECOND, ALONE):
        with _crew(plan, cells, PAIR[:1] if metric == ALONE else PAIR, epoch) as pool:
            for cell in cells:
                yield _visit(plan, pool, cell, epoch, metric)


def _chosen(plan: Plan, cell: Cell) -> bool:
    """One unchanged cell of each kernel. Of a workload that could not say what it is, or a side without a build: none."""
    if not cell.kernel or not cell.params or cell.params["inject"] != 0 or cell.params["copy"] != 0:
        return False
    builds = [plan.build(side, cell.kernel) for side in PAIR]
    return all(made is not None and made.failure is None for made in builds)


def _crew(plan: Plan, cells: Sequence[Cell], sides: Sequence[str], epoch: int) -> WorkerPool:
    return WorkerPool(plan.factory, plan.specs(cells[0].kernel, sides), epoch)


def _turn_lengths(plan: Plan, pool: WorkerPool, cell: Cell, epoch: int) -> Iterator[Block]:
    calls = 1
    try:
        call_ns = max(_open(plan, pool, cell, side) for side in PAIR)
        for calls in (n for n in LENGTHS if n == 1 or n * call_ns <= LONGEST):
            began, rounds = time.time(), _rounds(plan, pool, PAIR, calls)
            yield _block(plan, cell, epoch, TURN_LENGTH, PAIR, calls, began, rounds)
        pool.close()
    except (WorkerDied, WorkerFault) as failed:
        yield _block(plan, cell, epoch, TURN_LENGTH, PAIR, calls, time.time(), (), failed.reason)


def _visit(plan: Plan, pool: WorkerPool, cell: Cell, epoch: int, metric: str) -> Block:
    """Base's turns, while the others of the pool have the cell open and do nothing."""
    calls, began, base, failed = 1, time.time(), PAIR[:1], ""
    rounds: _Rounds = ()
    try:
        calls = turns.calls_of_a_turn(plan.device.kind, _open(plan, pool, cell, "base"))
        if metric == IDLE_SECOND:
            _open(plan, pool, cell, "target")
        rounds = _rounds(plan, pool, base, calls)
        pool.close()
    except (WorkerDied, WorkerFault) as error:
        rounds, failed = (), error.reason
    return _block(plan, cell, epoch, metric, base, calls, began, rounds, failed)


def _open(plan: Plan, pool: WorkerPool, cell: Cell, side: str) -> float:
    """A warm call, ns."""
    request = wire.Open(cell.workload, dict(cell.params), side, seed=plan.run.options.seed)
    opened: wire.Opened = pool.worker(side).call(request, plan.timeout)
    return opened.call_ns


def _rounds(plan: Plan, pool: WorkerPool, arms: Sequence[str], calls: int) -> _Rounds:
    """Rounds for SECONDS, no fewer than an epoch's fewest; even, for they come in mirrored pairs."""
    origin, timer = time.monotonic_ns(), turns.TIMER[plan.device.kind]
    rounds: list[tuple[Turn, ...]] = []
    for order in turns.orders(len(arms), turns.MOST, plan.run.options.seed):
        row = []
        for arm in order:
            turned: wire.Turned = pool.worker(arms[arm]).call(wire.Turn(arms[arm], calls, timer), plan.timeout)
            row.append(Turn(arm, turned.start - origin, turned.end - origin, turned.value, turned.wall))
        rounds.append(tuple(row))
        spent = (time.monotonic_ns() - origin) / 1e9
        if spent >= SECONDS and len(rounds) >= turns.FEWEST and len(rounds) % 2 == 0:
            break
    return tuple(rounds)


def _block(
    plan: Plan, cell: Cell, epoch: int, metric: str, arms: Sequence[str], calls: int, began: float, rounds: _Rounds,
    failed: str = "", rule: str = "a study of the instrument (abprof selfcheck)", timer: str = "",
) -> Block:  # fmt: skip
    outcome = Outcome(status="crash", reason=failed) if failed else Outcome(status="ok")
    return Block(
        epoch=epoch,
        cell=cell.id,
        metric=metric,
        timer=timer or turns.TIMER[plan.device.kind],
        calls=calls,
        rule=rule,
        arms=tuple(arms),
        began=began,
        seconds=time.time() - began,
        rounds=rounds,
        outcomes=dict.fromkeys(arms, outcome),
    )


# ---------------------------------------------------------------- the usual ways of timing: one process a side, base first, then target


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
                        turned = _sequential_turn(plan, pool, protocol, cell, arm)
                        if turned is not None:
                            found[cell.id, arm.id] = turned
        for cell in cells:
            arms = tuple(arm.id for arm in plan.arms[cell.id] if (cell.id, arm.id) in found)
            if arms:
                read = [found[cell.id, arm] for arm in arms]
                origin = min(turn.start for turn in read)
                row = tuple(Turn(i, t.start - origin, t.end - origin, t.value, t.wall) for i, t in enumerate(read))
                made = _block(
                    *(plan, cell, epoch, protocol.metric, arms, protocol.calls, time.time(), (row,)),
                    rule=protocol.rule,
                    timer=protocol.timer,
                )
                yield msgspec.structs.replace(made, seconds=sum(t.end - t.start for t in read) / 1e9)


def _sequential_turn(plan: Plan, pool: WorkerPool, protocol: Sequential, cell: Cell, arm: Arm) -> wire.Turned | None:
    """The timed calls of one arm, or None: what fails here has failed in the run proper, and is typed there."""
    timer = protocol.timer or turns.TIMER[plan.device.kind]
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
