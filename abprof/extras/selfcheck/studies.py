"""What selfcheck measures beside an ordinary run: how a turn's length and an idle second worker move what is read.

Blocks of metrics that no verdict reads, of one unchanged cell of each kernel. Where something fails the block has no
rounds, and its arms say why.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from abprof.measure import Plan, turns
from abprof.measure.pool import WorkerPool
from abprof.records import ALONE, IDLE_SECOND, TURN_LENGTH, Block, Cell, Outcome, Turn
from abprof.records import messages as wire
from abprof.system.processes import WorkerDied, WorkerFault

LENGTHS = (1, 3, 10, 30, 100)  # calls a turn
LONGEST = 100e6  # ns of a turn
SECONDS = 0.5  # of rounds, for each length and each visit
PAIR = ("base", "target")


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
    calls, began, base = 1, time.time(), PAIR[:1]
    try:
        calls = turns.calls_of_a_turn(plan.device.kind, _open(plan, pool, cell, "base"))
        if metric == IDLE_SECOND:
            _open(plan, pool, cell, "target")
        rounds = _rounds(plan, pool, base, calls)
        pool.close()
    except (WorkerDied, WorkerFault) as failed:
        return _block(plan, cell, epoch, metric, base, calls, began, (), failed.reason)
    return _block(plan, cell, epoch, metric, base, calls, began, rounds)


def _open(plan: Plan, pool: WorkerPool, cell: Cell, side: str) -> float:
    """A warm call, ns."""
    request = wire.Open(cell.workload, dict(cell.params), side, seed=plan.run.options.seed)
    opened: wire.Opened = pool.worker(side).call(request, plan.timeout)
    return opened.call_ns


def _rounds(plan: Plan, pool: WorkerPool, arms: Sequence[str], calls: int) -> tuple[tuple[Turn, ...], ...]:
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
    plan: Plan,
    cell: Cell,
    epoch: int,
    metric: str,
    arms: tuple[str, ...],
    calls: int,
    began: float,
    rounds: tuple[tuple[Turn, ...], ...],
    failed: str = "",
) -> Block:
    outcome = Outcome(status="crash", reason=failed) if failed else Outcome(status="ok")
    return Block(
        epoch=epoch,
        cell=cell.id,
        metric=metric,
        timer=turns.TIMER[plan.device.kind],
        calls=calls,
        rule="a study of the instrument (abprof selfcheck)",
        arms=arms,
        began=began,
        seconds=time.time() - began,
        rounds=rounds,
        outcomes=dict.fromkeys(arms, outcome),
    )
