"""The verdict rules (docs/MEASUREMENT.md): which arms of a cell are compared, the verdict on each pair, and when a cell is
decided. A live run and `abprof report` both call `judge`.

Comparisons with targets, with peers and between variants are three families, each with its own false-discovery control.
Peers and variants do not affect the summary, the exit code or the number of epochs, except variants in a run with one
side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from abprof.records import (
    HOST,
    LOOKS,
    SUSTAINED,
    Arm,
    Block,
    Comparison,
    Metric,
    Observation,
    Options,
    Outcome,
    Proof,
    Run,
    Verdict,
    arm_id,
)
from abprof.records.messages import LONG_CALL
from abprof.verdict import stats, waivers
from abprof.verdict.cells import Array, CellCache, CellData, aggregate, epochs_left, seconds_of, start_seconds
from abprof.verdict.headline import WITHHELD, summarise, untimed, warnings

_ABOVE_BEST = 1.1  # tolerated ratio to the device's measured peak rate
_SEEN = 0.5  # share of a saving that the parent's clock must not exclude
Role = Literal["target", "peer", "variant", "control"]


class Pair(NamedTuple):
    """Two arms of one cell to compare, and the kind of comparison."""

    before: str
    after: str
    role: Role


def judge(run: Run, blocks: Sequence[Block], proofs: Sequence[Proof] = (), cache: CellCache | None = None) -> Run:
    """Return the run with results computed from `blocks` and `proofs`, in place of results that `run` has.

    `cache` keeps cells' data between calls. Raises ValueError for an impossible time, and for blocks of a cell that the
    run does not have.
    """
    if not run.options.timed:
        return msgspec.structs.replace(run, header=untimed(run))
    cells = aggregate(run, blocks, proofs, cache)
    rows: dict[Role, list[Comparison]] = {"target": [], "peer": [], "variant": [], "control": []}
    for data in cells.values():
        for role, row in _compared(run, data):
            rows[role].append(row)
    families: tuple[Role, ...] = ("target", "peer", "variant")
    targets, peers, within = (with_discoveries(_with_seconds(cells, rows[family])) for family in families)
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
    return data.once("rows", lambda: [(pair.role, compare(run, data, pair)) for pair in pairs(run, data)])


def _with_seconds(cells: Mapping[str, CellData], rows: Sequence[Comparison]) -> list[Comparison]:
    """Return the rows with the seconds until the look that is likely to decide them."""
    more = [epochs_left(cells, row) for row in rows]
    starts = start_seconds(cells) if any(more) else {}
    return [
        msgspec.structs.replace(row, needed_seconds=seconds_of(cells, {row.cell: number}, starts)) if number else row
        for row, number in zip(rows, more, strict=True)
    ]


def provisional(run: Run, blocks: Sequence[Block]) -> list[tuple[Pair, list[float]]]:
    """Return the pairs on which the end of measuring depends, each with its log ratios so far, one per epoch."""
    cells = aggregate(run, blocks).values()
    found = [(pair, data.epoch_values(pair.before, pair.after)) for data in cells for pair in pairs(run, data)]
    return [(pair, values) for pair, values in found if values and pursued(run, pair.role)]


def undecided(
    run: Run, blocks: Sequence[Block], proofs: Sequence[Proof] = (), cache: CellCache | None = None
) -> set[str]:
    """Return the ids of the cells that need another epoch. Before the first epoch: all cells that can run.

    With --epochs N, a cell gets N epochs. Else a cell is done at the first planned look at which every comparison with
    a target is decided, and is as precise as --precision requires; in a run with one side, variants take the place of
    targets. Cells of calls up to 50 ms that are `same` get more epochs (`stats.epochs_for_same`), since processes may
    differ. A change that may be chance is measured up to the last look. A failure that the machine may have caused
    gets two more epochs. After `abprof rerun`, pass only the rerun's blocks.
    """
    cells = aggregate(run, blocks, proofs, cache)
    more = {cell for cell, data in cells.items() if data.once("open", partial(_wants_more, run, data))}
    if run.options.epochs is not None:
        return more
    going = [data for data in cells.values() if not data.quick and data.attempts < stats.MOST_ATTEMPTS]
    rows = [row for data in going for role, row in _compared(run, data) if pursued(run, role)]
    changed = [row for row in with_discoveries(rows) if row.verdict in {"slower", "faster"} and not row.discovery]
    return more | {row.cell for row in changed if row.look < len(LOOKS)}


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
        return any(_needs_epoch(run, data, pair) for pair in every if pair.role in {"target", "control"})
    for arm, state in data.states.items():  # a run with one side: each arm up to the first look
        if not state.settled or (not state.failed and len(data.epoch_medians(arm)) < LOOKS[0]):
            return True
    variants = [pair for pair in every if pursued(run, pair.role) and data.epoch_values(pair.before, pair.after)]
    return any(_needs_epoch(run, data, pair) for pair in variants)


def _needs_epoch(run: Run, data: CellData, pair: Pair) -> bool:
    states = data.state(pair.before), data.state(pair.after)
    values = data.epoch_values(pair.before, pair.after)
    if pair.role == "control":
        runs = all(state.runs for state in states)
        return runs and len(values) < LOOKS[0] and data.attempts < 2 * LOOKS[0]
    if any(state.failed for state in states):
        return False
    if not all(state.settled for state in states):
        return True
    identical = any(state.status == "identical" for state in states)
    if identical and not run.one_code:
        return 0 < len(values) < LOOKS[0]  # measured as a control: up to the first look
    if len(values) >= LOOKS[-1]:
        return False
    if not values:
        return not identical
    verdict = _supported(run, data, pair)
    if verdict is None or not precise(values, run.options):
        return True
    if pair.role == "target" and _parent_agrees(run, data, pair, verdict) is None:
        return True
    if pair.role != "target" or verdict != "same" or fmean(data.epoch_medians(pair.before)) > LONG_CALL:
        return False
    return len(values) < stats.epochs_for_same(min(run.options.margin, run.options.threshold_of(data.cell.id)))


def epochs_counted(run: Run, blocks: Sequence[Block], proofs: Sequence[Proof] = ()) -> dict[str, int]:
    """Return cell id -> number of epochs that the cell's verdicts use (the fewest of all targets); 0 with --quick."""
    found = {}
    for cell, data in aggregate(run, blocks, proofs).items():
        targets = [pair for pair in pairs(run, data) if pair.role == "target"]
        counts = [len(data.epoch_values(pair.before, pair.after)) for pair in targets]
        counts = counts or [len(data.epoch_medians(arm)) for arm in data.states]
        found[cell] = 0 if data.quick else min(counts, default=0)
    return found


# ---------------------------------------------------------------- one pair


def pairs(run: Run, data: CellData) -> list[Pair]:
    """Return the pairs of a cell's arms to compare: base with each target, base with its control, each peer with every
    side, and within a side the baseline with every other variant, and each step of LADDER with the next.

    The baseline is the first step of LADDER, or `against` of SWEEP; without a baseline variants are not compared."""
    variants = {arm.id: arm.variant for arm in run.arms}
    sides = [side.id for side in run.sides]
    arms = [Arm.of(arm) for arm in data.states]
    names = [*dict.fromkeys(variants.get(a.id, a.variant) for a in arms if a.under_test)]
    found = []
    if "base" in sides:
        found += [Pair(arm_id("base", n), arm_id(side, n), "target") for side in sides if side != "base" for n in names]
        controls = [arm.id for arm in run.arms if arm.side == "control" and arm.id in data.states]
        found += [Pair(arm_id("base", variants[control]), control, "control") for control in controls]
    found += [Pair(arm.id, arm_id(side, n), "peer") for arm in arms if arm.peer for side in sides for n in names]
    for load in (load for load in run.workloads if load.name == data.cell.workload):
        plain = load.ladder[0] if load.ladder else load.sweep.against if load.sweep else ""
        steps = dict.fromkeys([*((plain, name) for name in names if name != plain), *pairwise(load.ladder)])
        both = [(a, b) for a, b in steps if a in names and b in names]
        found += [Pair(arm_id(side, a), arm_id(side, b), "variant") for side in sides for a, b in both]
    return found


def pursued(run: Run, role: Role) -> bool:
    """Whether a cell is measured until pairs of this role are decided: targets, or variants in a run with one side."""
    return role == "target" or (role == "variant" and len(run.sides) == 1)


def precise(values: Sequence[float], options: Options) -> bool:
    """Whether the interval of these epoch values is as narrow as --precision requires; True without --precision."""
    interval = stats.repeated_interval(values)
    return options.precision is None or (interval is not None and stats.half_width_pct(interval) <= options.precision)


def decide(values: Sequence[float], threshold: float, margin: float, rounding: float = 0.0) -> Verdict | None:
    """Return the verdict at the last planned look that `values` (log ratios, one per epoch) reach; None if undecided.

    `threshold` and `margin` are in per cent; a margin above the threshold counts as the threshold. `rounding`: how far
    rounding of times can change a log ratio.
    """
    strict, wide = (stats.repeated_interval(values, alpha, rounding) for alpha in (0.05, 0.10))
    return _by_intervals(strict, wide, threshold, margin) if strict and wide else None


def _by_intervals(strict: stats.Interval, wide: stats.Interval, threshold: float, margin: float) -> Verdict | None:
    low, high = stats.band(threshold)
    if strict.low > high:
        return "slower"
    if strict.high < low:
        return "faster"
    if wide.inside(*stats.band(min(margin, threshold))):
        return "same"
    return "slight" if (strict.low > 0 or strict.high < 0) and strict.inside(low, high) else None


def _forecast(run: Run, data: CellData, pair: Pair) -> int | None:
    values, rounding = data.epoch_values(pair.before, pair.after), data.rounding(pair.before, pair.after)
    threshold, margin = run.options.threshold_of(data.cell.id), run.options.margin
    for look in LOOKS if len(values) > 1 else ():
        strict, wide = (stats.expected_interval(values, look, alpha, rounding) for alpha in (0.05, 0.10))
        if look > len(values) and _by_intervals(strict, wide, threshold, margin):
            return look
    return None


def _supported(run: Run, data: CellData, pair: Pair) -> Verdict | None:
    """Return the verdict of `decide`, but None instead of `same` if only rescaling to one clock makes times the same.

    Code that makes the GPU lower its clock is slower. So the change of times as measured, or of times without pauses,
    must lie within the threshold, too.
    """
    before, after, threshold = pair.before, pair.after, run.options.threshold_of(data.cell.id)
    values = data.epoch_values(before, after)
    verdict = decide(values, threshold, run.options.margin, data.rounding(before, after))
    if verdict != "same" or not data.at_one_clock:
        return verdict
    others = stats.repeated_interval(data.epoch_values(before, after, "read"), 0.10), _other(data, pair, 0.10)
    return verdict if any(one and one.inside(*stats.band(threshold)) for one in others) else None


def _other(data: CellData, pair: Pair, alpha: float = 0.05) -> stats.Interval | None:
    """Return Student's interval of the change in the regime that gives no verdict; None with fewer than two epochs."""
    values = data.epoch_values(pair.before, pair.after, "other")
    return stats.student_interval(values, alpha) if len(values) > 1 else None


def compare(run: Run, data: CellData, pair: Pair) -> Comparison:
    """Return the comparison of a pair: verdict, reasons and numbers. Intervals exist from the first look on."""
    before, after, role = pair
    values, percent = data.epoch_values(before, after), stats.percent
    threshold, rounding = run.options.threshold_of(data.cell.id), data.rounding(before, after)
    interval, wide = (stats.repeated_interval(values, alpha, rounding) for alpha in (0.05, 0.10))
    other = _other(data, pair)
    slices = interval if data.metric == SUSTAINED else other
    used = values[: interval.epochs] if interval else values
    identical = role == "target" and "identical" in {data.state(before).status, data.state(after).status}
    settled = _without_times(data, pair)
    if settled is None and identical and (not values or not run.one_code):
        settled = "same", ("identical_code",)
    verdict, reasons = settled or _by_times(run, data, pair, values)
    if settled is None and identical:
        reasons = ("identical_code", *reasons)
    if settled is None and data.at_one_clock:
        reasons = (*reasons, "one_clock")
    if settled is None and values and data.both and not other and data.metric != SUSTAINED and role != "control":
        reasons = (*reasons, "burst_alone")
    tail = data.tail(before, after, threshold) if settled is None and verdict in {"same", "slight"} else None
    if tail is not None:
        reasons = (*reasons, "tail")
    low, high = stats.band(threshold)
    certifiable, withheld = verdict == "unclear" and settled is None, WITHHELD & set(reasons)
    needed = _forecast(run, data, pair) if certifiable and not (withheld or data.quick) else None
    could = stats.detectable(values, high + rounding) if settled is None and verdict != "slower" else None
    could = could if could is None else could + _hideable(run, data, before)
    tested = settled is None and role != "control" and not withheld
    clocks, cycles = (data.epoch_values(before, after, of) for of in ("clock", "cycles"))
    read = data.epoch_values(before, after, "read") if data.at_one_clock else []
    return Comparison(
        cell=data.cell.id,
        from_=before,
        to=after,
        metric=data.metric,
        verdict=verdict,
        reasons=reasons,
        pct=percent(sum(used) / len(used)) if used else None,
        low_pct=percent(interval.low) if interval else None,
        high_pct=percent(interval.high) if interval else None,
        epochs=len(used),
        look=LOOKS.index(interval.epochs) + 1 if interval else 0,
        p=stats.p_beyond(values, low - rounding, high + rounding) if tested else None,
        needed_epochs=needed,
        detectable_pct=percent(could) if could is not None else None,
        tail_pct=tail,
        host_pct=data.host_change(before, after, threshold) if settled is None else None,
        certifiable_pct=max(abs(percent(wide.low)), abs(percent(wide.high))) if certifiable and wide else None,
        clock_pct=percent(fmean(clocks)) if clocks else None,
        read_pct=percent(fmean(read)) if read else None,
        cycles_pct=percent(fmean(cycles)) if cycles else None,
        sustained_pct=percent(slices.theta) if slices else None,
        sustained_low_pct=percent(slices.low) if slices else None,
        sustained_high_pct=percent(slices.high) if slices else None,
        burst_pct=percent(other.theta) if other and slices is not other else None,
    )


def with_discoveries(rows: Sequence[Comparison]) -> tuple[Comparison, ...]:
    """Return one family's rows, with `discovery` set on changed rows that survive false-discovery control at 5 %."""
    found = zip(rows, stats.discoveries([row.p for row in rows]), strict=True)
    return tuple(
        msgspec.structs.replace(row, discovery=yes and row.verdict in {"slower", "faster"}) for row, yes in found
    )


def _without_times(data: CellData, pair: Pair) -> tuple[Verdict, tuple[str, ...]] | None:
    """Return verdict and reasons if an arm failed (docs/DESIGN.md, "Outcomes are values"); None if both arms run."""
    before, after, role = data.state(pair.before), data.state(pair.after), pair.role
    first = {"peer": "peer_", "variant": "first_"}.get(role, "base_")
    second = {"control": "control_", "variant": "second_"}.get(role, "")  # reasons about a target have no prefix
    if before.proof_broken or after.proof_broken:
        found = ((before, f"{first}proof"), (after, f"{second}proof"))
        return "broken", tuple(reason for state, reason in found if state.proof_broken)
    if before.runs and after.runs:
        return None
    if {before.status, after.status} <= {"unsupported", "missing"}:  # also a new variant without this case
        return "unclear", (before.status if before.status == after.status else "unsupported",)
    if not before.runs and not after.runs:
        return "broken", ("both",)
    if not before.runs:
        return "unclear", (f"{first}{before.status}",)
    return ("unclear" if role in {"control", "variant"} else "broken"), (f"{second}{after.status}",)


def _by_times(run: Run, data: CellData, pair: Pair, values: list[float]) -> tuple[Verdict, tuple[str, ...]]:
    """Return verdict and reasons of a pair whose arms both run. `values`: the pair's log ratios, one per epoch."""
    options, threshold = run.options, run.options.threshold_of(data.cell.id)
    interrupted = run.status == "interrupted"
    if not values:
        return "unclear", ("interrupted" if interrupted else "not_measured",)
    if data.quick or (options.quick and len(values) < LOOKS[0]):
        low, high = stats.band(threshold)
        small = low <= sum(values) / len(values) <= high
        return "unclear", ("quick_nothing_large" if small else "quick_worth_confirming",)
    verdict = _supported(run, data, pair)
    if verdict is None:
        if decide(values, threshold, options.margin, data.rounding(pair.before, pair.after)) == "same":
            return "unclear", ("clock",)
        if len(values) >= LOOKS[-1] or (options.epochs is not None and data.attempts >= options.epochs):
            return "unclear", ("epochs",)
        ended = "budget" if pursued(run, pair.role) else "not_pursued"
        return "unclear", ("interrupted" if interrupted else ended,)
    if _clock_disagrees(data, pair, values, min(options.margin, threshold)):
        return "unclear", ("clock",)
    slices = _other(data, pair) if data.metric != SUSTAINED else None
    if slices and _outside(verdict, slices, fmean(values), threshold, min(options.margin, threshold)):
        return "unclear", ("power",)
    if pair.role != "control" and verdict == "faster" and _impossible(run, data, pair):
        return "broken", ("impossible",)
    if pair.role != "control" and not _parent_agrees(run, data, pair, verdict):
        return "unclear", ("timer",)
    return verdict, () if precise(values, options) else ("precision",)


def _impossible(run: Run, data: CellData, pair: Pair) -> bool:
    """Whether `after` does the cell's work faster than plain torch's best matrix product in this run, and `before` does
    not: where both do, the workload counts more work than there is. False on a CPU, whose best product in torch depends
    on the threads that torch has, and on the load."""
    machine = run.machines.get(data.device)
    known, medians = (
        machine.ceilings if machine else run.ceilings,
        [*map(data.epoch_medians, (pair.before, pair.after))],
    )
    if run.machine.kind == "cpu" or not known or not known.tflops or not data.cell.flops or not all(medians):
        return False
    before, after = (data.cell.flops / stats.own_time(each)[0] / 1e3 for each in medians)
    return after > _ABOVE_BEST * known.tflops >= before


def _outside(verdict: Verdict, slices: stats.Interval, theta: float, threshold: float, margin: float) -> bool:
    """Whether the interval of `slices` lies wholly outside the changes that the verdict states. `theta`: the change by
    turns, which has the sign that `slight` states."""
    low, high = stats.band(threshold)
    stated = {"slower": (high, math.inf), "faster": (-math.inf, low), "same": stats.band(margin)}
    least, most = stated.get(verdict, (0.0, high) if theta > 0 else (low, 0.0))
    return slices.high < least or slices.low > most


def _clock_disagrees(data: CellData, pair: Pair, values: Sequence[float], margin: float) -> bool:
    """Whether times at one clock and times as measured contradict each other: the sides' clocks differ by more than a
    quarter of the margin (per cent), and the two intervals neither overlap nor show the same direction."""
    other = data.epoch_values(pair.before, pair.after, "read" if data.at_one_clock else "cycles")
    judged, second = stats.repeated_interval(values), stats.repeated_interval(other)
    if judged is None or second is None or len(other) < len(values):
        return False
    low, high = stats.band(margin / 4)
    if low <= fmean(data.epoch_values(pair.before, pair.after, "clock")) <= high:
        return False
    one_sign = (judged.low > 0 and second.low > 0) or (judged.high < 0 and second.high < 0)
    return (judged.high < second.low or second.high < judged.low) and not one_sign


def _parent_agrees(run: Run, data: CellData, pair: Pair, verdict: Verdict) -> bool | None:
    """Return whether the parent process's clock supports the verdict (True) or contradicts it (False), with 95 %
    confidence. If it does neither, or was not read: True, but None with --check outside, since code under test may then
    be hostile. Unread on a simulated device: True.

    The rules are those of docs/MEASUREMENT.md, "Timer". Code under test can patch the timer in the worker, but not the
    parent's clock, which measures whole turns. Load makes turns longer and never shorter, so the quickest turns of an
    epoch count; code could skip the work of a single turn, so the median turns count, too.
    """
    # Share of the first arm's time that the second arm saves, per epoch.
    savings = np.array(
        [
            [
                float(np.median(first - second)),
                float(waited.min() - less.min()),
                float(np.median(waited - less)),
                float(np.median(first) - np.quantile(less, 0.25)),
            ]
            / np.median(first)
            for first, waited, second, less in data.epochs("waits", pair.before, pair.after)
        ]
    ).T
    unknown, most = run.options.check == "inside" or None, run.options.threshold_of(data.cell.id) / 100
    strict = data.metric == "wall" or run.options.untrusted
    if verdict == "slower" or (run.machine.kind == "simulated" and not savings.size):
        return True
    if not savings.size:
        return unknown
    timer, quickest, usual, whole = savings

    def interval(values: Array) -> stats.Interval:
        return stats.repeated_interval(values.tolist()) or stats.Interval(0.0, -math.inf, math.inf, 0)

    hidden = [interval(timer - clock) for clock in (quickest, usual)]
    if strict and any(one.low > most for one in hidden):
        return False
    if verdict == "faster":
        if any(interval(clock - _SEEN * timer).high < 0 for clock in (quickest, usual)):
            return False
        return interval(whole if strict else quickest).low > 0 or unknown
    return not strict or hidden[0].high < most or unknown


def _hideable(run: Run, data: CellData, arm: str) -> float:
    """Return the slow-down (log ratio) that hostile code could hide in abprof's own work between the calls of a turn, by
    doing that work in no time: what the arm's quickest turns take by the parent's clock beyond its quickest calls. 0 without
    --untrusted."""
    shares = [float(waited.min() / calls.min()) for calls, waited in data.epochs("waits", arm)]
    return math.log(max(1.0, float(np.mean(shares)))) if run.options.untrusted and shares else 0.0


# ---------------------------------------------------------------- one arm


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
        # With several passes (a rerun adds one) the last successful pass.
        census=next((one for one in reversed(censuses) if not one.missing), censuses[-1] if censuses else None),
        device=data.device,
    )


def _metrics(data: CellData, arm: str, outcomes: Sequence[Outcome]) -> dict[str, Metric]:
    found: dict[str, Metric] = {}

    def add_time(name: str, medians: Sequence[float], protocol: str) -> None:
        if medians and min(medians) > 0:
            value, low, high = stats.own_time(medians)
            found[name] = Metric(value=value, unit="ns", low=low, high=high, better="lower", protocol=protocol)

    cell, own = data.cell, dict.fromkeys(each.protocol for each in data.judged if arm in each.arms)
    add_time(data.metric, data.epoch_medians(arm), "; ".join(own))
    for block in data.other[:1]:
        add_time(block.metric, data.epoch_medians(arm, "other"), block.timer)
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
    peaks = [float(outcome.peak_mem_bytes) for outcome in outcomes if outcome.peak_mem_bytes is not None]
    if peaks:
        found["peak_mem_bytes"] = Metric(
            value=max(peaks), unit="bytes", better="lower", protocol="largest of the epochs"
        )
    return found


def _phases(recorded: Sequence[dict[str, float | None]]) -> dict[str, float | None] | None:
    """Return the mean time of each phase of a call (ns), and as `residual` the rest of the total; None if empty."""
    means: dict[str, float | None] = {}
    for name in dict.fromkeys(name for each in recorded for name in each):
        known = [value for each in recorded if (value := each.get(name)) is not None]
        means[name] = sum(known) / len(known) if known else None
    total = means.get("total")
    if total is not None:
        means["residual"] = total - sum(v for name, v in means.items() if name not in {"total", "residual"} and v)
    return means or None
