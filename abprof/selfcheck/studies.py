"""What selfcheck measures beside an ordinary run: how a turn's length and an idle second worker move what is read.

Blocks of metrics that no verdict reads, of one unchanged cell of each kernel. What fails here has failed in the run
proper, and is typed there: then the study has no block of that cell.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from abprof import turns, wire
from abprof.crew import Crew, posts
from abprof.measure import Ground
from abprof.model import ALONE, IDLE_SECOND, TURN_LENGTH, Block, Cell, Outcome, Turn
from abprof.proc import WorkerDied, WorkerFault

LENGTHS = (1, 3, 10, 30, 100)  # calls a turn
LONGEST = 100e6  # ns of a turn
SECONDS = 0.5  # of turns, for each length and each visit


def studies(ground: Ground, epoch: int) -> Iterator[Block]:
    """All blocks: pairs of turns of each length, then base's turns alone and beside an idle worker, in four visits."""
    # A workload that could not say what it is has a cell without parameters.
    known = [cell for cell in ground.run.cells if cell.id in ground.arms and cell.kernel and cell.params]
    cells = [cell for cell in known if cell.params["inject"] == 0 and cell.params["copy"] == 0]
    if not cells:
        return
    with _crew(ground, cells, ["base", "target"], epoch) as crew:
        for cell in cells:
            yield from _turn_lengths(ground, crew, cell, epoch)
    # In mirrored order, so that a drift of the machine falls on both alike.
    for metric in (ALONE, IDLE_SECOND, IDLE_SECOND, ALONE):
        with _crew(ground, cells, ["base"] if metric == ALONE else ["base", "target"], epoch) as crew:
            for cell in cells:
                yield from _visit(ground, crew, cell, epoch, metric)


def _crew(ground: Ground, cells: Sequence[Cell], sides: list[str], epoch: int) -> Crew:
    package = ground.packages[cells[0].kernel]
    return Crew(ground.shop, posts(ground.checkouts, package, ground.build, sides), epoch)


def _turn_lengths(ground: Ground, crew: Crew, cell: Cell, epoch: int) -> Iterator[Block]:
    try:
        call_ns = max(_open(ground, crew, cell, side) for side in ("base", "target"))
        for calls in (n for n in LENGTHS if n == 1 or n * call_ns <= LONGEST):
            rounds = _rounds(2 * calls * call_ns)
            orders = turns.orders(2, rounds, ground.run.settings.seed)
            yield _block(ground, crew, cell, epoch, TURN_LENGTH, ("base", "target"), calls, orders)
        crew.close()
    except (WorkerDied, WorkerFault):
        return


def _visit(ground: Ground, crew: Crew, cell: Cell, epoch: int, metric: str) -> Iterator[Block]:
    """Base's turns, while the others of the crew have the cell open and do nothing."""
    try:
        call_ns = _open(ground, crew, cell, "base")
        if metric == IDLE_SECOND:
            _open(ground, crew, cell, "target")
        calls = turns.calls_of_a_turn(ground.device.kind, call_ns)
        yield _block(ground, crew, cell, epoch, metric, ("base",), calls, [[0]] * _rounds(calls * call_ns))
        crew.close()
    except (WorkerDied, WorkerFault):
        return


def _rounds(ns: float) -> int:
    """Rounds of `ns` for SECONDS; even, for they come in mirrored pairs."""
    wanted = round(SECONDS * 1e9 / max(ns, 1.0))
    return min(400, max(turns.FEWEST, wanted + wanted % 2))


def _open(ground: Ground, crew: Crew, cell: Cell, side: str) -> float:
    """A warm call, ns."""
    request = wire.Open(cell.workload, dict(cell.params), side, seed=ground.run.settings.seed)
    opened: wire.Opened = crew.worker(side).call(request, ground.timeout)
    return opened.call_ns


def _block(
    ground: Ground,
    crew: Crew,
    cell: Cell,
    epoch: int,
    metric: str,
    arms: tuple[str, ...],
    calls: int,
    orders: Sequence[Sequence[int]],
) -> Block:
    began, origin = time.time(), time.monotonic_ns()
    timer = turns.TIMER[ground.device.kind]
    rows = []
    for order in orders:
        row = []
        for arm in order:
            turned: wire.Turned = crew.worker(arms[arm]).call(wire.Turn(arms[arm], calls, timer), ground.timeout)
            row.append(Turn(arm, turned.start - origin, turned.end - origin, turned.value, turned.wall))
        rows.append(tuple(row))
    return Block(
        epoch=epoch,
        cell=cell.id,
        metric=metric,
        timer=timer,
        calls=calls,
        rule="a study of the instrument (abprof selfcheck)",
        arms=arms,
        began=began,
        seconds=(time.monotonic_ns() - origin) / 1e9,
        rounds=tuple(rows),
        outcomes={arm: Outcome(status="ok") for arm in arms},
    )
