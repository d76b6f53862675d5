"""`judge`: records in, verdicts out. A live run and `abprof report` call the same function.

The rules of a verdict are in `comparison`, its numbers in `stats`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from abprof.records import (
    HOST,
    SUSTAINED,
    Block,
    Comparison,
    Metric,
    Observation,
    Outcome,
    Proof,
    Run,
)
from abprof.verdict import stats, waivers
from abprof.verdict.cells import CellCache, CellData, aggregate, same_code
from abprof.verdict.comparison import Pair, Role, compare, decide, pairs, precise, pursued, with_discoveries
from abprof.verdict.headline import summarise, untimed
from abprof.verdict.warnings import warnings


def judge(run: Run, blocks: Sequence[Block], proofs: Sequence[Proof] = (), cache: CellCache | None = None) -> Run:
    """The run with the results of everything measured so far, without causes. Pure: equal records give equal results.

    Results that the run has are not read. `cache` reuses cells from call to call. Raises ValueError on impossible input: a
    kept round with an impossible time, or rounds of a cell that the run does not have.
    """
    if not run.options.timed:
        return msgspec.structs.replace(run, header=untimed(run))
    cells = aggregate(run, blocks, proofs, cache)
    rows: dict[Role, list[Comparison]] = {"target": [], "peer": [], "variant": [], "control": []}
    for data in cells.values():
        for role, row in _compared(run, data):
            rows[role].append(row)
    targets, peers, within = (with_discoveries(rows[family]) for family in ("target", "peer", "variant"))
    targets = waivers.applied(run, targets)
    return msgspec.structs.replace(
        run,
        header=summarise(run, cells, targets, rows["control"], within),
        observations=tuple(
            data.once(arm, partial(_observation, data, arm))
            for data in cells.values()
            for arm in data.states
            if data.state(arm).seen
        ),
        comparisons=(*targets, *peers),
        within=within,
        controls=tuple(rows["control"]),
        warnings=tuple(warnings(run, cells, targets, rows["control"])),
    )


def _compared(run: Run, data: CellData) -> list[tuple[Role, Comparison]]:
    """Every pair of a cell, judged once as long as the cell has nothing new."""
    return data.once("rows", lambda: [(pair.role, compare(run, data, pair)) for pair in pairs(run, data)])


def provisional(run: Run, blocks: Sequence[Block]) -> list[tuple[Pair, list[float]]]:
    """The pairs that cells are measured for, with their epoch values so far (log ratios), from the first epoch on."""
    cells = aggregate(run, blocks).values()
    found = [(pair, data.epoch_values(pair.before, pair.after)) for data in cells for pair in pairs(run, data)]
    return [(pair, values) for pair, values in found if values and pursued(run, pair.role)]


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
    if run.options.epochs is not None:
        return more
    going = [data for data in cells.values() if not data.quick and data.attempts < stats.MOST_ATTEMPTS]
    rows = [row for data in going for role, row in _compared(run, data) if pursued(run, role)]
    changed = [row for row in with_discoveries(rows) if row.verdict in {"slower", "faster"} and not row.discovery]
    return more | {row.cell for row in changed if row.look < len(stats.LOOKS)}


def _wants_more(run: Run, data: CellData) -> bool:
    runs = any(state.runs for state in data.states.values())
    if not data.attempts:
        return not data.cell.skip and runs
    if run.options.quick or data.attempts >= stats.MOST_ATTEMPTS:
        return False
    if run.options.epochs is not None:
        return data.attempts < run.options.epochs and runs
    every = pairs(run, data)
    if any(pair.role == "target" for pair in every):
        return any(_open(run, data, pair) for pair in every if pair.role in {"target", "control"})
    for arm, state in data.states.items():  # a profile of one branch: each arm up to the first look
        if not state.settled or (not state.failed and len(data.epoch_medians(arm)) < stats.LOOKS[0]):
            return True
    variants = [pair for pair in every if pursued(run, pair.role) and data.epoch_values(pair.before, pair.after)]
    return any(_open(run, data, pair) for pair in variants)


def _open(run: Run, data: CellData, pair: Pair) -> bool:
    """Whether a comparison between sides, with a control, or of the only side's variants needs another epoch."""
    states = data.state(pair.before), data.state(pair.after)
    values = data.epoch_values(pair.before, pair.after)
    if pair.role == "control":
        runs = all(state.runs for state in states)
        return runs and len(values) < stats.LOOKS[0] and data.attempts < 2 * stats.LOOKS[0]
    if any(state.failed for state in states):
        return False
    if not all(state.settled for state in states):
        return True
    identical = any(state.status == "identical" for state in states)
    if identical and not same_code(run):
        return 0 < len(values) < stats.LOOKS[0]  # measured as a control: up to the first look
    if len(values) >= stats.LOOKS[-1]:
        return False
    if not values:
        return not identical
    done = decide(values, run.options.threshold_of(data.cell.id), run.options.margin)
    return done is None or not precise(values, run.options)


def epochs_counted(run: Run, blocks: Sequence[Block], proofs: Sequence[Proof] = ()) -> dict[str, int]:
    """Cell -> epochs that its verdict can rest on: of its comparison with the fewest; quick epochs do not count."""
    found = {}
    for cell, data in aggregate(run, blocks, proofs).items():
        targets = [pair for pair in pairs(run, data) if pair.role == "target"]
        counts = [len(data.epoch_values(pair.before, pair.after)) for pair in targets]
        counts = counts or [len(data.epoch_medians(arm)) for arm in data.states]
        found[cell] = 0 if data.quick else min(counts, default=0)
    return found


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
        metrics=_metrics(data, arm, outcomes) if shown else {},
        phases=_phases([outcome.phases for outcome in outcomes if outcome.phases]) if shown else None,
        check=state.check,
        facts={name: value for outcome in outcomes for name, value in outcome.facts.items()},
        epochs=len(data.epoch_medians(arm)),
        log=state.log,
        # Of several passes (a rerun's) the last that succeeded.
        census=next((one for one in reversed(censuses) if not one.missing), censuses[-1] if censuses else None),
        device=data.device,
    )


def _metrics(data: CellData, arm: str, outcomes: Sequence[Outcome]) -> dict[str, Metric]:
    """Times in ns, memory in bytes; rates from the judged time and the work that the cell declares."""
    found: dict[str, Metric] = {}

    def add_time(name: str, medians: Sequence[float], protocol: str) -> None:
        if medians and min(medians) > 0:
            value, low, high = stats.own_time(medians)
            found[name] = Metric(value=value, unit="ns", low=low, high=high, better="lower", protocol=protocol)

    cell, own = data.cell, dict.fromkeys(each.protocol for each in data.judged if arm in each.arms)
    add_time(data.metric, data.epoch_medians(arm), "; ".join(own))
    if data.metric != "wall":
        add_time("wall", data.epoch_medians(arm, "wall"), "the host's clock, from an idle device to an idle device")
    # FLOP / ns / 1000 is TFLOP/s; bytes / ns is GB/s.
    for name, unit, work in (("tflops", "TFLOP/s", (cell.flops or 0) / 1000), ("bandwidth", "GB/s", cell.bytes)):
        time = found.get(data.metric)
        if work and time:
            low, high = (work / bound if bound else None for bound in (time.high, time.low))
            value, convention = work / time.value, cell.convention
            found[name] = Metric(value=value, unit=unit, low=low, high=high, better="higher", protocol=convention)
    hosts = [outcome.host_ns for outcome in outcomes if outcome.host_ns is not None]
    add_time(HOST, hosts, "the host's clock, to enqueue a warm call on an idle device")
    slices = data.epoch_medians(arm, "sustained")
    add_time(SUSTAINED, slices, "calls without a pause, the first third of a second not timed")
    peaks = [float(outcome.peak_mem_bytes) for outcome in outcomes if outcome.peak_mem_bytes is not None]
    if peaks:
        found["peak_mem_bytes"] = Metric(
            value=max(peaks), unit="bytes", better="lower", protocol="largest of the epochs"
        )
    return found


def _phases(recorded: Sequence[dict[str, float | None]]) -> dict[str, float | None] | None:
    """Mean over the profiled passes of each phase, median ns per call, and `residual` = total minus the other phases. None
    if no epoch recorded phases."""
    means: dict[str, float | None] = {}
    for name in dict.fromkeys(name for each in recorded for name in each):
        known = [value for each in recorded if (value := each.get(name)) is not None]
        means[name] = sum(known) / len(known) if known else None
    total = means.get("total")
    if total is not None:
        means["residual"] = total - sum(v for name, v in means.items() if name not in {"total", "residual"} and v)
    return means or None
