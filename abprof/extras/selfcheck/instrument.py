"""From the studies' blocks to their tables. Pure: records in, records out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from itertools import pairwise

from abprof.extras.selfcheck.result import IdleWorker, TurnLength
from abprof.measure import turns
from abprof.records import ALONE, IDLE_SECOND, TURN_LENGTH, Block, Run
from abprof.verdict import stats


def turn_lengths(run: Run, blocks: Sequence[Block]) -> Iterable[TurnLength]:
    """A row for each kernel and length, in the order they were measured."""
    names = _names(run)
    for block in (block for block in blocks if block.metric == TURN_LENGTH):
        rows = [{turn.arm: turn.value for turn in row} for row in block.rounds]
        logs = [math.log(row[1] / row[0]) for row in rows if min(row.values()) > 0]
        if len(logs) < 2:
            continue
        scatter = turns.spread(logs)
        seconds = sum(turn.end - turn.start for row in block.rounds for turn in row) / 1e9
        # The standard error of a median is sqrt(pi / 2) sd / sqrt(n), and n grows with the time.
        error = math.sqrt(math.pi / 2) * scatter * math.sqrt(seconds / len(block.rounds))
        yield TurnLength(
            kernel=names[block.cell],
            call_ns=statistics.median(row[0] for row in rows),
            calls=block.calls,
            pairs=len(logs),
            scatter_pct=stats.percent(scatter),
            error_pct=stats.percent(error),
        )


def idle_worker(run: Run, blocks: Sequence[Block]) -> Iterable[IdleWorker]:
    """A row for each kernel that has both visits of both kinds."""
    names = _names(run)
    visits: dict[str, dict[str, list[float]]] = {}
    for block in (block for block in blocks if block.metric in (ALONE, IDLE_SECOND)):
        values = [turn.value for row in block.rounds for turn in row if turn.value > 0]
        if values:
            visits.setdefault(block.cell, {}).setdefault(block.metric, []).append(statistics.median(values))
    for cell, found in visits.items():
        alone, beside = found.get(ALONE, []), found.get(IDLE_SECOND, [])
        if len(alone) == len(beside) == 2:
            yield IdleWorker(
                kernel=names[cell],
                alone_ns=statistics.mean(alone),
                beside_ns=statistics.mean(beside),
                alone_pct=100 * (alone[1] / alone[0] - 1),
                beside_pct=100 * (beside[1] / beside[0] - 1),
            )


def between_turns_us(blocks: Sequence[Block]) -> float | None:
    """Median over neighbours inside the rounds of the turn lengths, which never re-allocate; None where there are none."""
    gaps = [
        (after.start - before.end) / 1000
        for block in blocks
        if block.metric == TURN_LENGTH
        for row in block.rounds
        for before, after in pairwise(row)
    ]
    return statistics.median(gaps) if gaps else None


def _names(run: Run) -> dict[str, str]:
    """Cell -> what it computes and how much of it."""
    return {cell.id: f"{cell.params.get('op')} {cell.params.get('steps')}" for cell in run.cells}
