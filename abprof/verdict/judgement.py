"""`judge`: records in, verdicts out. A live run and `abprof report` call the same function.

The rules of a verdict are in `comparison`, its numbers in `stats`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from abprof.records import (
    HOST,
    REPORTED,
    SUSTAINED,
    Advice,
    Block,
    Comparison,
    Header,
    Metric,
    Observation,
    Proof,
    Record,
    Run,
)
from abprof.verdict import stats, waivers
from abprof.verdict.cells import END, START, CellCache, CellData, aggregate, same_code, table
from abprof.verdict.comparison import Pair, Role, compare, decide, pairs, precise, pursued, with_discoveries
from abprof.verdict.headline import summarise, untimed
from abprof.verdict.warnings import warnings


class Judgement(Record, frozen=True, kw_only=True):
    """The results of a run: the fields of Run with the same names, except causes."""

    header: Header
    observations: tuple[Observation, ...] = ()
    comparisons: tuple[Comparison, ...] = ()  # base with targets, then peers with sides
    within: tuple[Comparison, ...] = ()  # variants of one side with each other
    controls: tuple[Comparison, ...] = ()
    warnings: tuple[Advice, ...] = ()


@dataclass(frozen=True)
class Provisional:
    """A first number for the live display, without an interval or a verdict."""

    cell: str
    before: str
    after: str
    pct: float
    epochs: int


def judge(run: Run, blocks: Sequence[Block], proofs: Sequence[Proof] = (), cache: CellCache | None = None) -> Judgement:
    """Judge everything measured so far. Pure: the same records always give the same judgement.

    `run` is the head of a run; its lists of results are not read. `cache` reuses cells from call to call. Raises ValueError on
    impossible input: a kept round with an impossible time, or rounds of a cell that the run does not have.
    """
    if not run.options.timed:
        return Judgement(header=untimed(run))
    cells = aggregate(run, blocks, proofs, cache)
    rows: dict[Role, list[Comparison]] = {"target": [], "peer": [], "variant": [], "control": []}
    observations: list[Observation] = []
    for data in cells.values():
        for role, row in data.once("rows", partial(_compared, run, data)):
            rows[role].append(row)
        observations += data.once("observed", partial(_observed, data))
    targets, peers, within = (with_discoveries(rows[family]) for family in ("target", "peer", "variant"))
    targets = waivers.applied(run, targets)
    controls = tuple(rows["control"])
    return Judgement(
        header=summarise(run, cells, targets, controls, within),
        observations=tuple(observations),
        comparisons=(*targets, *peers),
        within=within,
        controls=controls,
        warnings=tuple(warnings(run, cells, targets, controls)),
    )


def _compared(run: Run, data: CellData) -> list[tuple[Role, Comparison]]:
    return [(pair.role, compare(run, data, pair)) for pair in pairs(run, data)]


def provisional(run: Run, blocks: Sequence[Block], proofs: Sequence[Proof] = ()) -> tuple[Provisional, ...]:
    """Every comparison that cells are measured for and that has a number already, from the first epoch on."""
    found = []
    for cell, data in aggregate(run, blocks, proofs).items():
        for pair in (pair for pair in pairs(run, data) if pursued(run, pair)):
            values = data.epoch_values(pair.before, pair.after)
            if values:
                pct = stats.percent(sum(values) / len(values))
                found.append(Provisional(cell, pair.before, pair.after, pct, len(values)))
    return tuple(found)


# ---------------------------------------------------------------- when to stop

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
    changed = [row for row in with_discoveries(rows) if row.verdict in {"slower", "faster"} and not row.discovery]
    return more | {row.cell for row in changed if row.look < len(stats.LOOKS)}


def _tested(run: Run, data: CellData) -> tuple[Comparison, ...]:
    """The rows that may keep a cell going by false-discovery control over all cells."""
    if run.options.epochs is not None or data.quick or data.attempts >= MOST_ATTEMPTS:
        return ()
    return tuple(compare(run, data, pair) for pair in pairs(run, data) if pursued(run, pair))


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


# ---------------------------------------------------------------- observations

_PAUSE = 120.0  # seconds between two blocks that mean a later invocation (rerun, --resume)


def _observed(data: CellData) -> tuple[Observation, ...]:
    return tuple(_observation(data, arm) for arm in data.states if data.state(arm).seen)


def busy_share(blocks: Sequence[Block]) -> float | None:
    """Time inside turns over time from the first block to the last, worker starts included (0 to 1); None if unknown."""
    if any(block.metric == REPORTED for block in blocks):
        return None  # the process reports durations, not moments
    tables = [table(block.rounds)[0] for block in blocks]
    wall = 0.0  # seconds per device, without pauses before later invocations
    for device in {block.device for block in blocks}:
        ordered = sorted((b for b in blocks if b.rounds and b.device == device), key=lambda block: block.began)
        wall += sum(block.seconds for block in ordered)
        gaps = (after.began - before.began - before.seconds for before, after in pairwise(ordered))
        wall += sum(gap for gap in gaps if 0 < gap < _PAUSE)
    return sum(float((each[:, END] - each[:, START]).sum()) for each in tables) / 1e9 / wall if wall else None


def _observation(data: CellData, arm: str) -> Observation:
    state, shown = data.state(arm), data.shows_times(arm)
    outcomes = [block.outcomes[arm] for block in data.blocks if arm in block.outcomes]
    censuses = [outcome.census for outcome in outcomes if outcome.census is not None]
    return Observation(
        cell=data.cell.id,
        arm=arm,
        status=state.status,
        reason=state.reason,
        at=state.at,
        metrics=_metrics(data, arm) if shown else {},
        phases=_phases([outcome.phases for outcome in outcomes if outcome.phases]) if shown else None,
        check=state.check,
        facts={name: value for outcome in outcomes for name, value in outcome.facts.items()},
        epochs=len(data.epoch_medians(arm)),
        log=state.log,
        # Of several passes (a rerun's) the last that succeeded.
        census=next((one for one in reversed(censuses) if not one.missing), censuses[-1] if censuses else None),
        device=data.device,
    )


def _metrics(data: CellData, arm: str) -> dict[str, Metric]:
    """Times in ns, memory in bytes; rates from the judged time and the work that the cell declares."""
    found: dict[str, Metric] = {}
    cell, medians = data.cell, data.epoch_medians(arm)
    if medians:
        found[data.metric] = _time(medians, "; ".join(data.protocols(arm)))
        walls = data.epoch_medians(arm, "wall")
        if data.metric != "wall" and walls and min(walls) > 0:
            found["wall"] = _time(walls, "the host's clock, from an idle device to an idle device")
        if cell.flops:
            found["tflops"] = _rate(cell.flops / 1000, "TFLOP/s", medians, cell.convention)
        if cell.bytes:
            found["bandwidth"] = _rate(cell.bytes, "GB/s", medians, cell.convention)
    outcomes = [block.outcomes[arm] for block in data.blocks if arm in block.outcomes]
    hosts = [outcome.host_ns for outcome in outcomes if outcome.host_ns is not None]
    if hosts:
        found[HOST] = _time(hosts, "the host's clock, to enqueue a warm call on an idle device")
    slices = data.epoch_medians(arm, "sustained")
    if slices:
        found[SUSTAINED] = _time(slices, "calls without a pause, the first third of a second not timed")
    for block in data.sequential:
        for turn in (turn for row in block.rounds for turn in row if block.arms[turn.arm] == arm):
            found[block.metric] = Metric(value=turn.value, unit="ns", better="lower", protocol=block.rule)
    peaks = [outcome.peak_mem_bytes for outcome in outcomes if outcome.peak_mem_bytes is not None]
    if peaks:
        protocol = "largest of the epochs"
        found["peak_mem_bytes"] = Metric(value=float(max(peaks)), unit="bytes", better="lower", protocol=protocol)
    return found


def _time(medians: Sequence[float], protocol: str) -> Metric:
    time = stats.own_time(medians)
    return Metric(value=time.value, unit="ns", low=time.low, high=time.high, better="lower", protocol=protocol)


def _rate(work: float, unit: str, medians: Sequence[float], convention: str) -> Metric:
    """`work` per ns. FLOP / ns / 1000 is TFLOP/s; bytes / ns is GB/s."""
    time = stats.own_time(medians)
    return Metric(
        value=work / time.value,
        unit=unit,
        low=work / time.high if time.high else None,
        high=work / time.low if time.low else None,
        better="higher",
        protocol=convention,
    )


def _phases(recorded: Sequence[dict[str, float | None]]) -> dict[str, float | None] | None:
    """Mean over the passes of each phase, median ns per call, and `residual` = total minus the other phases.

    All from the profiled pass, so that the residual compares like with like. A run profiles its second epoch, with
    --quick its only one. None if no epoch recorded phases.
    """
    if not recorded:
        return None
    means: dict[str, float | None] = {}
    for name in dict.fromkeys(name for each in recorded for name in each):
        known = [value for each in recorded if (value := each.get(name)) is not None]
        means[name] = sum(known) / len(known) if known else None
    total = means.get("total")
    if total is not None:
        means["residual"] = total - sum(v for name, v in means.items() if name not in {"total", "residual"} and v)
    return means
