"""The verdict stage: records in, verdicts out. `judge` is what a live run and `abprof report` both call.

The rules of a verdict stand in abprof/verdict/comparison.py, its numbers in abprof/verdict/stats.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from abprof.evidence.causes import explained
from abprof.records import Advice, Block, Comparison, Header, Observation, Proof, Record, Run
from abprof.verdict import stats, waivers
from abprof.verdict.aggregation import Gather, gather, same_code
from abprof.verdict.cell_data import Evidence
from abprof.verdict.comparison import Pair, Role, compare, decide, pairs, precise, pursued, with_discoveries
from abprof.verdict.headline import summarise, untimed
from abprof.verdict.observations import observe
from abprof.verdict.warnings import advise

MOST_ATTEMPTS = 2 * stats.LOOKS[-1]  # a cell whose epochs keep failing or losing all rounds is given up


class Judgement(Record, frozen=True, kw_only=True):
    """What the verdict stage adds to a run. Peers' comparisons are in `comparisons` too: their `from` says so."""

    header: Header
    observations: tuple[Observation, ...]
    comparisons: tuple[Comparison, ...]
    within: tuple[Comparison, ...]  # variants of one side with each other
    controls: tuple[Comparison, ...]
    warnings: tuple[Advice, ...]


class Provisional(Record, frozen=True, kw_only=True):
    """A first number for the live display: no interval yet, so no verdict."""

    cell: str
    before: str
    after: str
    pct: float
    epochs: int


def judge(run_head: Run, blocks: Sequence[Block], proofs: Sequence[Proof] = (), gathered: Gather = gather) -> Judgement:
    """Judge everything measured so far. Pure: the same records always give the same judgement.

    `run_head` is a run without results (its lists of results are not read). `gathered`: who reads the blocks. Raises
    ValueError on impossible input: a kept round with a time that is not positive and finite, or rounds of a cell that the
    run does not have.
    """
    if not run_head.settings.timed:
        return Judgement(header=untimed(run_head), observations=(), comparisons=(), within=(), controls=(), warnings=())
    evidence = gathered(run_head, blocks, proofs)
    rows: dict[Role, list[Comparison]] = {"target": [], "peer": [], "variant": [], "control": []}
    observations: list[Observation] = []
    for item in evidence.values():  # all of one cell before the next: its rounds are read for it
        for role, row in _compared(run_head, item):
            rows[role].append(row)
        observations += item.once("observed", partial(observe, item))
    targets, peers, within = (with_discoveries(rows[family]) for family in ("target", "peer", "variant"))
    targets = waivers.applied(run_head, explained(run_head, evidence, targets))
    controls = tuple(rows["control"])
    header = summarise(run_head, evidence, targets, controls, within)
    return Judgement(
        header=header,
        observations=tuple(observations),
        comparisons=(*targets, *peers),
        within=within,
        controls=controls,
        warnings=advise(run_head, evidence, targets, controls),
    )


def undecided(
    run_head: Run, blocks: Sequence[Block], proofs: Sequence[Proof] = (), gathered: Gather = gather
) -> set[str]:
    """Ids of the cells to measure in the next epoch; all that can run, before the first.

    A cell stops at the first planned look at which every comparison with a target (in a run of one branch: between its
    variants) is decided, and precise enough with `--precision`; with `--epochs` it has as many. A changed cell that
    false-discovery control would call chance goes on, so that more epochs confirm it. One failure that may be the
    machine's asks for two more attempts. Controls and peers never keep a cell going, except that a cell with a control
    reaches the first look. Give only the blocks of a rerun to plan that rerun: fresh epochs are then asked for as in a
    new run.
    """
    evidence = gathered(run_head, blocks, proofs)
    plans = {cell: _planned(run_head, item) for cell, item in evidence.items()}
    more = {cell for cell, (open_, _) in plans.items() if open_}
    rows = [row for _, tested in plans.values() for row in tested]
    return more | {row.cell for row in with_discoveries(rows) if _suspect(row)}


def provisional(run_head: Run, blocks: Sequence[Block], proofs: Sequence[Proof] = ()) -> tuple[Provisional, ...]:
    """Every comparison that cells are measured for and that has a number already, from the first epoch on."""
    found = []
    for cell, item in gather(run_head, blocks, proofs).items():
        for pair in pairs(run_head, item):
            values = item.epoch_values(pair.before, pair.after) if pursued(run_head, pair) else []
            if values:
                pct = stats.percent(sum(values) / len(values))
                found.append(Provisional(cell=cell, before=pair.before, after=pair.after, pct=pct, epochs=len(values)))
    return tuple(found)


# ---------------------------------------------------------------- one cell


def _compared(run: Run, item: Evidence) -> tuple[tuple[Role, Comparison], ...]:
    """Every comparison of a cell, before what all cells say together."""

    def made() -> tuple[tuple[Role, Comparison], ...]:
        return tuple((pair.role, compare(run, item, pair)) for pair in pairs(run, item))

    return item.once(("compared", run.status == "interrupted"), made)


def _planned(run: Run, item: Evidence) -> tuple[bool, tuple[Comparison, ...]]:
    """Whether a cell needs another epoch by itself, and the rows by which it may among all the cells tested."""

    def plan() -> tuple[bool, tuple[Comparison, ...]]:
        together = run.settings.epochs is None and not item.quick and item.attempts < MOST_ATTEMPTS
        tested = [pair for pair in pairs(run, item) if pursued(run, pair)] if together else []
        return _wants_more(run, item), tuple(compare(run, item, pair) for pair in tested)

    return item.once(("planned", run.status == "interrupted"), plan)


# ---------------------------------------------------------------- which cells go on


def _suspect(row: Comparison) -> bool:
    """Whether a change is certain by its own interval and not yet among all the cells tested."""
    return row.verdict in {"slower", "faster"} and not row.discovery and row.look < len(stats.LOOKS)


def _wants_more(run: Run, item: Evidence) -> bool:
    if not item.attempts:
        return not item.cell.skip and any(state.runs for state in item.states.values())
    if run.settings.quick or item.attempts >= MOST_ATTEMPTS:
        return False
    if run.settings.epochs is not None:
        return item.attempts < run.settings.epochs and any(state.runs for state in item.states.values())
    every = pairs(run, item)
    targets = [pair for pair in every if pair.role == "target"]
    if not targets:
        variants = [pair for pair in every if pursued(run, pair) and item.epoch_values(pair.before, pair.after)]
        alone = any(_alone_open(run, item, arm) for arm in item.states)
        return alone or any(_open(run, item, pair) for pair in variants)
    controls = [pair for pair in every if pair.role == "control"]
    return any(_open(run, item, pair) for pair in targets) or any(_control_open(item, pair) for pair in controls)


def _open(run: Run, item: Evidence, pair: Pair) -> bool:
    """Whether a comparison between sides, or of the only side's variants, needs another epoch."""
    states = item.state(pair.before), item.state(pair.after)
    if any(state.proof_broken or (state.settled and not state.runs) for state in states):
        return False
    if not all(state.settled for state in states):
        return True
    values = item.epoch_values(pair.before, pair.after)
    if "identical" in {state.status for state in states} and not same_code(run):
        return 0 < len(values) < stats.LOOKS[0]  # measured as a control: to the first look, whatever it says
    if len(values) >= stats.LOOKS[-1]:
        return False
    if not values:
        return "identical" not in {state.status for state in states}
    done = decide(values, run.settings.threshold_of(item.cell.id), run.settings.margin)
    return done is None or not precise(values, run.settings)


def _control_open(item: Evidence, pair: Pair) -> bool:
    states = item.state(pair.before), item.state(pair.after)
    few = len(item.epoch_values(pair.before, pair.after)) < stats.LOOKS[0]
    return few and all(state.runs for state in states) and item.attempts < 2 * stats.LOOKS[0]


def _alone_open(run: Run, item: Evidence, arm: str) -> bool:
    """A profile of one branch: to the first look, or until the arm's own time is known to `--precision`."""
    state = item.state(arm)
    if state.proof_broken or not state.runs:
        return not state.settled
    medians = item.epoch_medians(arm)
    if len(medians) < stats.LOOKS[0]:
        return True
    own = stats.own_time(medians)
    if run.settings.precision is None or own.low is None or own.high is None or len(medians) >= stats.LOOKS[-1]:
        return False
    return 50 * (own.high - own.low) / own.value > run.settings.precision
