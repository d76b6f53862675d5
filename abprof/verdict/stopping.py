"""The stopping rule: which cells get another epoch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from abprof.records import Block, Comparison, Proof, Run
from abprof.verdict import stats
from abprof.verdict.cells import CellCache, CellData, aggregate, same_code
from abprof.verdict.comparison import Pair, compare, decide, pairs, precise, pursued, with_discoveries

MOST_ATTEMPTS = 2 * stats.LOOKS[-1]  # epochs after which a cell that keeps failing or losing all rounds is given up


def undecided(
    run: Run, blocks: Sequence[Block], proofs: Sequence[Proof] = (), cache: CellCache | None = None
) -> set[str]:
    """Ids of the cells to measure in the next epoch; before the first, all that can run.

    A cell stops at the first planned look at which every comparison with a target (in a run of one branch: between its
    variants) is decided, and is as precise as --precision requires; with --epochs after that many. A changed cell that
    false-discovery control would call chance goes on. One failure that may be the machine's allows two more attempts.
    Controls and peers never keep a cell going, except that a cell with a control reaches the first look. To plan a rerun
    pass only its own blocks.
    """
    cells = aggregate(run, blocks, proofs, cache)
    more = {cell for cell, data in cells.items() if data.once("open", partial(_wants_more, run, data))}
    rows = [row for data in cells.values() for row in data.once("tested", partial(_tested, run, data))]
    return more | {row.cell for row in with_discoveries(rows) if _suspect(row)}


def _tested(run: Run, data: CellData) -> tuple[Comparison, ...]:
    """The rows that may keep a cell going by false-discovery control over all cells."""
    if run.options.epochs is not None or data.quick or data.attempts >= MOST_ATTEMPTS:
        return ()
    return tuple(compare(run, data, pair) for pair in pairs(run, data) if pursued(run, pair))


def _suspect(row: Comparison) -> bool:
    """Whether a change is certain by its own interval but not among all the tested cells."""
    return row.verdict in {"slower", "faster"} and not row.discovery and row.look < len(stats.LOOKS)


def _wants_more(run: Run, data: CellData) -> bool:
    runs = any(state.runs for state in data.states.values())
    if not data.attempts:
        return not data.cell.skip and runs
    if run.options.quick or data.attempts >= MOST_ATTEMPTS:
        return False
    if run.options.epochs is not None:
        return data.attempts < run.options.epochs and runs
    every = pairs(run, data)
    targets = [pair for pair in every if pair.role == "target"]
    if not targets:
        variants = [pair for pair in every if pursued(run, pair) and data.epoch_values(pair.before, pair.after)]
        return any(_alone_open(run, data, arm) for arm in data.states) or any(_open(run, data, p) for p in variants)
    return any(_open(run, data, pair) for pair in targets) or any(
        _control_open(data, pair) for pair in every if pair.role == "control"
    )


def _open(run: Run, data: CellData, pair: Pair) -> bool:
    """Whether a comparison between sides, or of the only side's variants, needs another epoch."""
    states = data.state(pair.before), data.state(pair.after)
    if any(state.proof_broken or (state.settled and not state.runs) for state in states):
        return False
    if not all(state.settled for state in states):
        return True
    values = data.epoch_values(pair.before, pair.after)
    identical = any(state.status == "identical" for state in states)
    if identical and not same_code(run):
        return 0 < len(values) < stats.LOOKS[0]  # measured as a control: up to the first look
    if len(values) >= stats.LOOKS[-1]:
        return False
    if not values:
        return not identical
    done = decide(values, run.options.threshold_of(data.cell.id), run.options.margin)
    return done is None or not precise(values, run.options)


def _control_open(data: CellData, pair: Pair) -> bool:
    few = len(data.epoch_values(pair.before, pair.after)) < stats.LOOKS[0]
    runs = data.state(pair.before).runs and data.state(pair.after).runs
    return few and runs and data.attempts < 2 * stats.LOOKS[0]


def _alone_open(run: Run, data: CellData, arm: str) -> bool:
    """A profile of one branch: up to the first look, or until the arm's own time is known to --precision."""
    state = data.state(arm)
    if state.proof_broken or not state.runs:
        return not state.settled
    medians = data.epoch_medians(arm)
    if len(medians) < stats.LOOKS[0]:
        return True
    own = stats.own_time(medians)
    if run.options.precision is None or own.low is None or own.high is None or len(medians) >= stats.LOOKS[-1]:
        return False
    return 50 * (own.high - own.low) / own.value > run.options.precision


def epochs_counted(
    run: Run, blocks: Sequence[Block], proofs: Sequence[Proof] = (), cache: CellCache | None = None
) -> dict[str, int]:
    """Cell -> epochs that its verdict can rest on: of its comparison with the fewest; quick epochs do not count."""
    cells = aggregate(run, blocks, proofs, cache)
    return {cell: data.once("epochs", partial(_epochs_counted, run, data)) for cell, data in cells.items()}


def _epochs_counted(run: Run, data: CellData) -> int:
    counts = [len(data.epoch_values(pair.before, pair.after)) for pair in pairs(run, data) if pair.role == "target"]
    counts = counts or [len(data.epoch_medians(arm)) for arm in data.states]
    return 0 if data.quick else min(counts, default=0)
