"""Comparisons: which arms of a cell are compared, and the verdict on each pair.

Rules, in log ratios of time, with the repeated intervals of abprof/verdict/stats.py (95 % for a change, 90 % for equivalence,
which is two one-sided tests at 5 %):
    slower     the whole 95 % interval is above log(1 + threshold)
    faster     the whole 95 % interval is below log(1 - threshold)
    same       the 90 % interval lies inside the margin (the margin is never wider than the cell's threshold)
    slight     the 95 % interval excludes zero and lies inside the threshold
    otherwise more epochs; at the end `unclear`, with the smallest margin that could have been certified.
The first that holds is the verdict. On a GPU whose turns read its clock, the change of times at one clock and that of times
as read are two estimates of it, of which the one that scatters less is judged (abprof/verdict/columns.py). Where their intervals do
not meet, do not have one sign, and the clock was another on one side by more than a quarter of the margin, the clock may be
what changed, and the verdict is `unclear (clock)`. Where slices without a pause were measured too, and their interval
certainly has the other sign, it is `unclear (power)`. What the parent's own clock contradicts is `unclear (timer)`
(abprof/verdict/timer_check.py).
Every interval covers at every planned look together, so stopping at the first look that decides costs nothing.

Peers with every side, and variants of one side with each other, are judged by the same rules, margin and threshold. They
are families of their own: false-discovery control runs over the targets' rows, over the peers' and over the variants', each
for itself, and neither of the latter two has a say in the header, the exit code or (but for variants of one branch alone) in
how many epochs a cell gets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Literal

import msgspec

from abprof.records import Comparison, Run, Settings, Verdict
from abprof.verdict import stats
from abprof.verdict.aggregation import arm_id, same_code
from abprof.verdict.cell_data import ArmState, Evidence
from abprof.verdict.timer_check import contradicted

CHANGED: frozenset[Verdict] = frozenset({"slower", "faster", "slight"})
Role = Literal["target", "peer", "variant", "control"]


@dataclass(frozen=True)
class Pair:
    """Two arms of one cell that are compared, and what for."""

    before: str
    after: str
    role: Role


# ---------------------------------------------------------------- which arms are compared


def pairs(run: Run, item: Evidence) -> list[Pair]:
    """The comparisons of a cell: base with each target (same variant), each peer with every side, base with its control,
    and the variants of a side with each other."""
    variants = {arm.id: arm.variant for arm in run.arms}
    sides = [side.id for side in run.sides]
    peers = [arm for arm in item.states if arm.startswith("peer:")]
    controls = [arm.id for arm in run.arms if arm.side == "control" and arm.id in item.states]
    names = dict.fromkeys(variants.get(arm, arm.partition(":")[2]) for arm in item.states if _own(arm))
    found = []
    if "base" in sides:
        for target in sides:
            if target != "base":
                found += [Pair(arm_id("base", name), arm_id(target, name), "target") for name in names]
        found += [Pair(arm_id("base", variants[control]), control, "control") for control in controls]
    for peer in peers:
        found += [Pair(peer, arm_id(side, name), "peer") for side in sides for name in names]
    steps = _steps(run, item, tuple(names))
    return found + [Pair(arm_id(side, a), arm_id(side, b), "variant") for side in sides for a, b in steps]


def _steps(run: Run, item: Evidence, names: Sequence[str]) -> list[tuple[str, str]]:
    """The plain variant with every other one, and each step of the ladder with the next. Plain is the ladder's first step,
    or what the sweep counts from; a workload that names neither has variants side by side, and no pairs."""
    load = next((load for load in run.workloads if load.name == item.cell.workload), None)
    if load is None:
        return []
    plain = load.ladder[0] if load.ladder else load.sweep.against if load.sweep else ""
    with_plain = [(plain, name) for name in names if name != plain]
    made = dict.fromkeys([*with_plain, *pairwise(load.ladder)])
    return [(a, b) for a, b in made if a in names and b in names]


def _own(arm: str) -> bool:
    return not arm.startswith(("peer:", "control"))


# ---------------------------------------------------------------- one comparison


def compare(run: Run, item: Evidence, pair: Pair) -> Comparison:
    """The verdict on one pair, with its numbers where both arms may show theirs."""
    before, after = item.state(pair.before), item.state(pair.after)
    values = item.epoch_values(pair.before, pair.after)
    row = _numbers(run, item, pair, values)
    reasons: tuple[str, ...]
    failed = _not_ok(before, after, pair.role)
    if failed is not None:
        verdict, reasons = failed
        return _with(row, verdict, reasons, p=None)
    identical = "identical" in {before.status, after.status} and pair.role == "target"
    if identical and (not values or not same_code(run)):
        return _with(row, "same", ("identical_code",), p=None)
    verdict, reasons = _by_interval(run, item, pair, values)
    if verdict != "unclear" and _disputed_by_the_clock(run, item, pair, values):
        verdict, reasons = "unclear", ("clock",)
    if verdict in CHANGED and _reversed_at_the_limit(row):
        verdict, reasons = "unclear", ("power",)
    if pair.role == "target" and contradicted(item, pair.before, pair.after, verdict, _threshold(run, item)):
        verdict, reasons = "unclear", ("timer",)
    if item.at_one_clock:
        reasons = (*reasons, "one_clock")
    if identical:
        reasons = ("identical_code", *reasons)
    certifiable = None
    wide = stats.repeated_interval(values, 0.10)
    if verdict == "unclear" and wide is not None:
        certifiable = stats.certifiable_pct(wide)
    tested = pair.role != "control" and not {"clock", "power", "timer"} & set(reasons)
    return _with(row, verdict, reasons, p=row.p if tested else None, certifiable=certifiable)


def _not_ok(before: ArmState, after: ArmState, role: Role) -> tuple[Verdict, tuple[str, ...]] | None:
    """The verdict when an arm is not ok (docs/DESIGN.md, "Outcomes are values"); None when both are."""
    first = {"peer": "peer_", "variant": "first_"}.get(role, "base_")
    # A target's status is said plainly: broken (crash).
    second = {"control": "control_", "variant": "second_"}.get(role, "")
    if before.proof_broken or after.proof_broken:
        found = ((before, f"{first}proof"), (after, f"{second}proof"))
        return "broken", tuple(code for state, code in found if state.proof_broken)
    if before.runs and after.runs:
        return None
    if {before.status, after.status} <= {"unsupported", "missing"}:  # a new variant that this case is not for, too
        return "unclear", (before.status if before.status == after.status else "unsupported",)
    if not before.runs and not after.runs:
        return "broken", ("both",)
    if not before.runs:
        return "unclear", (f"{first}{before.status}",)
    return ("unclear" if role in {"control", "variant"} else "broken"), (f"{second}{after.status}",)


def _disputed_by_the_clock(run: Run, item: Evidence, pair: Pair, values: Sequence[float]) -> bool:
    """Whether times at one clock and times as read certainly say different things, and the clock did differ."""
    arms = pair.before, pair.after
    other = item.epoch_read(*arms) if item.at_one_clock else item.epoch_cycles(*arms)
    judged, second = stats.repeated_interval(values), stats.repeated_interval(other)
    if judged is None or second is None or len(other) < len(values):
        return False
    low, high = stats.band(min(run.settings.margin, _threshold(run, item)) / 4)
    if low <= fmean(item.epoch_clocks(*arms)) <= high:
        return False
    one_sign = (judged.low > 0 and second.low > 0) or (judged.high < 0 and second.high < 0)
    return (judged.high < second.low or second.high < judged.low) and not one_sign


def _reversed_at_the_limit(row: Comparison) -> bool:
    """Whether the change without a pause, at the power limit, is certainly of the other sign."""
    if row.pct is None or row.sustained_low_pct is None or row.sustained_high_pct is None:
        return False
    return row.sustained_high_pct < 0 if row.pct > 0 else row.sustained_low_pct > 0


def decide(values: Sequence[float], threshold: float, margin: float) -> Verdict | None:
    """The verdict that these epochs support at their last planned look, or None when they support none yet.

    `values` are epoch values (log ratios), threshold and margin per cent. With a margin wider than the threshold a
    change could be both `slower` and `same`: the narrower of the two is the margin.
    """
    strict, wide = stats.repeated_interval(values, 0.05), stats.repeated_interval(values, 0.10)
    if strict is None or wide is None:
        return None
    low, high = stats.band(threshold)
    if strict.low > high:
        return "slower"
    if strict.high < low:
        return "faster"
    if wide.inside(*stats.band(min(margin, threshold))):
        return "same"
    if strict.beyond(0.0, 0.0) and strict.inside(low, high):
        return "slight"
    return None


def _by_interval(run: Run, item: Evidence, pair: Pair, values: list[float]) -> tuple[Verdict, tuple[str, ...]]:
    threshold = _threshold(run, item)
    if not values:
        return "unclear", ("interrupted" if run.status == "interrupted" else "not_measured",)
    if item.quick or (run.settings.quick and len(values) < stats.LOOKS[0]):
        low, high = stats.band(threshold)
        theta = sum(values) / len(values)
        return "unclear", ("quick_nothing_large" if low <= theta <= high else "quick_worth_confirming",)
    verdict = decide(values, threshold, run.settings.margin)
    if verdict is not None:
        return verdict, () if precise(values, run.settings) else ("precision",)
    asked = run.settings.epochs
    if len(values) >= stats.LOOKS[-1] or (asked is not None and item.attempts >= asked):
        return "unclear", ("epochs",)
    if run.status == "interrupted":
        return "unclear", ("interrupted",)
    return "unclear", ("budget" if pursued(run, pair) else "not_pursued",)


def _threshold(run: Run, item: Evidence) -> float:
    return run.settings.threshold_of(item.cell.id)


def pursued(run: Run, pair: Pair) -> bool:
    """Whether a cell is measured until this pair is decided: a side against a side, and in a run of one branch its
    variants. Peers never ask for epochs, and a control for those of the first look alone."""
    return pair.role == "target" or (pair.role == "variant" and len(run.sides) == 1)


def precise(values: Sequence[float], settings: Settings) -> bool:
    interval = stats.repeated_interval(values)
    return settings.precision is None or (interval is not None and stats.half_width_pct(interval) <= settings.precision)


def _numbers(run: Run, item: Evidence, pair: Pair, values: list[float]) -> Comparison:
    """The row without its verdict. Before the first look there is a number and no interval."""
    interval = stats.repeated_interval(values)
    used = values[: interval.epochs] if interval else values
    look = stats.LOOKS.index(interval.epochs) + 1 if interval else 0
    clocks, cycles = item.epoch_clocks(pair.before, pair.after), item.epoch_cycles(pair.before, pair.after)
    read = item.epoch_read(pair.before, pair.after) if item.at_one_clock else []
    replays = stats.repeated_interval(item.epoch_graphs(pair.before, pair.after))
    slices = stats.repeated_interval(item.epoch_sustained(pair.before, pair.after))
    return Comparison(
        cell=item.cell.id,
        from_=pair.before,
        to=pair.after,
        metric=item.metric,
        verdict="unclear",
        pct=stats.percent(sum(used) / len(used)) if used else None,
        low_pct=stats.percent(interval.low) if interval else None,
        high_pct=stats.percent(interval.high) if interval else None,
        epochs=len(used),
        look=look,
        p=stats.p_beyond(values, *stats.band(_threshold(run, item))),
        clock_pct=stats.percent(fmean(clocks)) if clocks else None,
        read_pct=stats.percent(fmean(read)) if read else None,
        cycles_pct=stats.percent(fmean(cycles)) if cycles else None,
        sustained_pct=stats.percent(slices.theta) if slices else None,
        sustained_low_pct=stats.percent(slices.low) if slices else None,
        sustained_high_pct=stats.percent(slices.high) if slices else None,
        graph_pct=stats.percent(replays.theta) if replays else None,
        graph_low_pct=stats.percent(replays.low) if replays else None,
        graph_high_pct=stats.percent(replays.high) if replays else None,
    )


def _with(
    row: Comparison, verdict: Verdict, reasons: tuple[str, ...], *, p: float | None, certifiable: float | None = None
) -> Comparison:
    return msgspec.structs.replace(row, verdict=verdict, reasons=reasons, p=p, certifiable_pct=certifiable)


def with_discoveries(rows: Sequence[Comparison]) -> tuple[Comparison, ...]:
    """Mark the changed rows that survive false-discovery control (5 %) over all tested rows of one family."""
    found = iter(stats.discoveries([row.p for row in rows if row.p is not None]))
    survives = [row.p is not None and next(found) and row.verdict in {"slower", "faster"} for row in rows]
    return tuple(
        msgspec.structs.replace(row, discovery=True) if yes else row for row, yes in zip(rows, survives, strict=True)
    )
