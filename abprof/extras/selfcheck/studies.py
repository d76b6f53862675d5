"""What selfcheck measures beside an ordinary run: how a turn's length and an idle second worker move what is read.

Blocks of metrics that no verdict reads, of one unchanged cell of each kernel. Where something fails the block has no
rounds, and its arms say why.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from abprof.measure import turns
from abprof.measure.epochs import Ground
from abprof.measure.pool import Crew, posts
from abprof.records import ALONE, IDLE_SECOND, TURN_LENGTH, Block, Cell, Outcome, Turn
from abprof.records import messages as wire
from abprof.system.processes import WorkerDied, WorkerFault

LENGTHS = (1, 3, 10, 30, 100)  # calls a turn
LONGEST = 100e6  # ns of a turn
SECONDS = 0.5  # of rounds, for each length and each visit
PAIR = ("base", "target")


def studies(ground: Ground, epoch: int) -> Iterator[Block]:
    """All blocks: pairs of turns of each length, then base's turns alone and beside an idle worker, in four visits."""
    cells = [cell for cell in ground.run.cells if cell.id in ground.arms and _chosen(ground, cell)]
    if not cells:
        return
    with _crew(ground, cells, PAIR, epoch) as crew:
        for cell in cells:
            yield from _turn_lengths(ground, crew, cell, epoch)
    # In mirrored order, so that a drift of the machine falls on both alike.
    for metric in (ALONE, IDLE_SECOND, IDLE_SECOND, ALONE):
        with _crew(ground, cells, PAIR[:1] if metric == ALONE else PAIR, epoch) as crew:
            for cell in cells:
                yield _visit(ground, crew, cell, epoch, metric)


def _chosen(ground: Ground, cell: Cell) -> bool:
    """One unchanged cell of each kernel. Of a workload that could not say what it is, or a side without a build: none."""
    if not cell.kernel or not cell.params or cell.params["inject"] != 0 or cell.params["copy"] != 0:
        return False
    builds = [ground.build(side, cell.kernel) for side in PAIR]
    return all(made is not None and made.failure is None for made in builds)


def _crew(ground: Ground, cells: Sequence[Cell], sides: Sequence[str], epoch: int) -> Crew:
    package = ground.packages[cells[0].kernel]
    return Crew(ground.shop, posts(ground.checkouts, package, ground.build, sides), epoch)


def _turn_lengths(ground: Ground, crew: Crew, cell: Cell, epoch: int) -> Iterator[Block]:
    calls = 1
    try:
        call_ns = max(_open(ground, crew, cell, side) for side in PAIR)
        for calls in (n for n in LENGTHS if n == 1 or n * call_ns <= LONGEST):
            began, rounds = time.time(), _rounds(ground, crew, PAIR, calls)
            yield _block(ground, cell, epoch, TURN_LENGTH, PAIR, calls, began, rounds)
        crew.close()
    except (WorkerDied, WorkerFault) as failed:
        yield _block(ground, cell, epoch, TURN_LENGTH, PAIR, calls, time.time(), (), failed.reason)


def _visit(ground: Ground, crew: Crew, cell: Cell, epoch: int, metric: str) -> Block:
    """Base's turns, while the others of the crew have the cell open and do nothing."""
    calls, began, base = 1, time.time(), PAIR[:1]
    try:
        calls = turns.calls_of_a_turn(ground.device.kind, _open(ground, crew, cell, "base"))
        if metric == IDLE_SECOND:
            _open(ground, crew, cell, "target")
        rounds = _rounds(ground, crew, base, calls)
        crew.close()
    except (WorkerDied, WorkerFault) as failed:
        return _block(ground, cell, epoch, metric, base, calls, began, (), failed.reason)
    return _block(ground, cell, epoch, metric, base, calls, began, rounds)


def _open(ground: Ground, crew: Crew, cell: Cell, side: str) -> float:
    """A warm call, ns."""
    request = wire.Open(cell.workload, dict(cell.params), side, seed=ground.run.options.seed)
    opened: wire.Opened = crew.worker(side).call(request, ground.timeout)
    return opened.call_ns


def _rounds(ground: Ground, crew: Crew, arms: Sequence[str], calls: int) -> tuple[tuple[Turn, ...], ...]:
    """Rounds for SECONDS, no fewer than an epoch's fewest; even, for they come in mirrored pairs."""
    origin, timer = time.monotonic_ns(), turns.TIMER[ground.device.kind]
    rounds: list[tuple[Turn, ...]] = []
    for order in turns.orders(len(arms), turns.MOST, ground.run.options.seed):
        row = []
        for arm in order:
            turned: wire.Turned = crew.worker(arms[arm]).call(wire.Turn(arms[arm], calls, timer), ground.timeout)
            row.append(Turn(arm, turned.start - origin, turned.end - origin, turned.value, turned.wall))
        rounds.append(tuple(row))
        spent = (time.monotonic_ns() - origin) / 1e9
        if spent >= SECONDS and len(rounds) >= turns.FEWEST and len(rounds) % 2 == 0:
            break
    return tuple(rounds)


def _block(
    ground: Ground,
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
        timer=turns.TIMER[ground.device.kind],
        calls=calls,
        rule="a study of the instrument (abprof selfcheck)",
        arms=arms,
        began=began,
        seconds=time.time() - began,
        rounds=rounds,
        outcomes=dict.fromkeys(arms, outcome),
    )
