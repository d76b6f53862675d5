"""Aggregation: from a run's blocks to one `CellData` per cell, with each arm's state and the epoch values of any pair."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import is_
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from abprof.records import (
    DO_BENCH_METRIC,
    JUDGED_METRIC,
    LONGEST_CALL,
    REPORTED,
    SEED_METRIC,
    SUSTAINED,
    Arm,
    Block,
    Cell,
    CheckResult,
    Outcome,
    Proof,
    Run,
    Status,
    Turn,
)
from abprof.verdict import stats

Array = NDArray[np.float64]
ARM, START, END, VALUE, WALL, EMPTY, MHZ, WAITED = range(8)  # columns of `table`, in the order of Turn's fields
_QUIETER = 0.8  # rescaled rounds are judged when they scatter by less than this share of the measured ones
_FEWEST_RATIOS = 6  # a first look of mirrored pairs with one round rejected
_FEWEST_ROUNDS = 4  # a first look of single rounds
FASTEST_CLOCK = 1e6  # MHz
_CLOCK_MISSING = 0.1  # largest share of turns that may lack a clock


@dataclass(frozen=True)
class Columns:
    """A block's kept rounds: one value per round and arm, NaN where the round has no turn of that arm."""

    epoch: int
    protocol: str
    outcomes: dict[str, Outcome]
    values: dict[str, Array]  # judged time, ns per call
    walls: dict[str, Array]  # wall clock, ns per call
    clocks: dict[str, Array]  # device clock, MHz; NaN where unknown
    waits: dict[str, Array]  # time the parent waited, ns per call; NaN where unknown


def table(rounds: Sequence[Sequence[Turn]]) -> tuple[Array, NDArray[np.int64]]:
    """Turns as rows of (arm, start, end, value, wall, empty, mhz, waited), and the round number of each row."""
    rows = [msgspec.structs.astuple(turn) for row in rounds for turn in row]
    return np.array(rows, dtype=float).reshape(len(rows), 8), np.repeat(np.arange(len(rounds)), [*map(len, rounds)])


def columns(block: Block) -> Columns:
    """A block's kept rounds. Raises ValueError on a judged time that is not positive, finite and below LONGEST_CALL."""
    turns, rows = table(block.rounds)
    kept = np.ones(len(block.rounds), dtype=bool)
    kept[[i for i in block.rejected if 0 <= i < len(kept)]] = False
    turns, at_round = turns[kept[rows]], (np.cumsum(kept) - 1)[rows[kept[rows]]]
    at = turns[:, ARM].astype(int), at_round
    values = np.full((len(block.arms), int(kept.sum())), np.nan)
    walls, clocks, waits = values.copy(), values.copy(), values.copy()
    timed = (turns[:, VALUE] > 0) & (turns[:, VALUE] <= LONGEST_CALL)
    values[at] = np.where(timed, turns[:, VALUE], -1.0)
    walls[at] = turns[:, WALL]
    clocks[at] = np.where((turns[:, MHZ] > 0) & (turns[:, MHZ] < FASTEST_CLOCK), turns[:, MHZ], np.nan)
    if block.calls:
        waits[at] = np.where(turns[:, WAITED] > 0, turns[:, WAITED] / block.calls, np.nan)
    if (values < 0).any():
        raise ValueError(f"{block.cell}, epoch {block.epoch}: a kept round has an impossible time")
    calls = f"{block.calls} call{'s' if block.calls != 1 else ''} a turn"
    present = [(i, arm) for i, arm in enumerate(block.arms) if not np.isnan(values[i]).all()]
    return Columns(
        epoch=block.epoch,
        protocol=block.rule if block.metric == REPORTED else f"{block.timer}, {calls}",
        outcomes=block.outcomes,
        values={arm: values[i] for i, arm in present},
        walls={arm: walls[i] for i, arm in present},
        clocks={arm: clocks[i] for i, arm in present},
        waits={arm: waits[i] for i, arm in present},
    )


def at_one_clock(blocks: tuple[Columns, ...]) -> tuple[Columns, ...] | None:
    """The times rescaled to the mean clock of all turns; None unless that reduces the scatter of ratios by a fifth.

    Neighbouring short turns share a clock, but a device changes its clock within a call of 20 ms: under its power limit
    the ratio of two such calls on an H200 scattered by 0.1 to 5 %, that of their cycles by 0.02 to 0.6 %
    (docs/MEASUREMENT.md). Only scatter is compared, never a centre, so the choice cannot favour a verdict, and all arms
    of a cell share it. Memory does not follow the clock: there the scatter grows and the measured times are judged.
    An epoch of one round has no scatter of its own; then the drift of all arms together is compared from round to round
    (not the ratios between epochs, which the interval is made of). Also None when more than a tenth of the turns lack a
    clock.
    """
    pairs = [(block.values[arm], block.clocks[arm]) for block in blocks for arm in _judged_arms(block)]
    clocks = np.concatenate([clock[~np.isnan(times)] for times, clock in pairs] or [np.empty(0)])
    known = ~np.isnan(clocks)
    if not known.size or known.mean() < 1 - _CLOCK_MISSING:
        return None
    mhz = float(np.nanmean(clocks))
    rescaled = tuple(
        replace(
            block,
            protocol=f"{block.protocol}, at {mhz:.0f} MHz",
            values={arm: values * block.clocks[arm] / mhz for arm, values in block.values.items()},
        )
        for block in blocks
    )
    before, after = _ratio_scatter(blocks), _ratio_scatter(rescaled)
    if before is None or after is None:
        before, after = _drift(blocks), _drift(rescaled)
    return rescaled if before is not None and after is not None and after < _QUIETER * before else None


def _judged_arms(block: Columns) -> list[str]:
    """All arms but peers, which do not decide how the sides are judged."""
    return [arm for arm in block.values if not Arm.of(arm).peer]


def _ratio_scatter(blocks: Sequence[Columns]) -> float | None:
    """Median absolute deviation of the rounds' log ratios from their epoch's median, over all pairs of a judged arm with
    the first; None with fewer than six ratios."""
    deviations = [np.empty(0)]
    for block in blocks:
        arms = _judged_arms(block)
        for other in arms[1:]:
            logs = np.log(block.values[other]) - np.log(block.values[arms[0]])
            logs = logs[~np.isnan(logs)]
            if logs.size > 1:
                deviations.append(np.abs(logs - np.median(logs)))
    every = np.concatenate(deviations)
    return float(np.median(every)) if every.size >= _FEWEST_RATIOS else None


def _drift(blocks: Sequence[Columns]) -> float | None:
    """Standard deviation of the rounds' mean log time over the judged arms that every epoch has; None with fewer than two
    such arms or four rounds.

    Independent of the ratios when the arms scatter alike. When one scatters three times as far, 95 % intervals miss in
    7 % instead of 5 (tests/simulations/test_error_rates.py).
    """
    several = [block for block in blocks if len(_judged_arms(block)) > 1]
    common = sorted(set.intersection(*(set(_judged_arms(block)) for block in several))) if several else []
    if len(common) < 2:
        return None
    levels = np.concatenate([np.mean([np.log(block.values[arm]) for arm in common], axis=0) for block in several])
    levels = levels[~np.isnan(levels)]
    return float(np.std(levels)) if levels.size >= _FEWEST_ROUNDS else None


T = TypeVar("T")
Quantity = Literal["judged", "read", "clock", "cycles", "sustained"]
RUNS: frozenset[Status] = frozenset({"ok", "identical"})
# Worst first: the status of an arm whose epochs disagree. A wrong answer comes first: only it would show a speed.
SEVERITY: tuple[Status, ...] = ("wrong", "crash", "oom", "timeout", "build_failed", "missing", "unsupported")
TRANSIENT: frozenset[Status] = frozenset({"crash", "oom", "timeout"})  # may be the machine's fault


@dataclass(frozen=True)
class ArmState:
    """An arm of one cell over all its epochs."""

    status: Status
    reason: str = ""
    log: str = ""
    at: str = ""  # where the workload itself raised: function and file
    check: CheckResult | None = None
    proof_broken: bool = False
    flaky: bool = False  # one epoch failed, at least two did not: ok, with a warning
    settled: bool = True  # False: one failure so far, further attempts decide
    seen: bool = True  # False: not tried in any epoch

    @property
    def runs(self) -> bool:
        return self.status in RUNS


@dataclass(frozen=True, eq=False)
class CellData:
    """Everything measured about one cell."""

    cell: Cell
    states: dict[str, ArmState]
    quick: bool
    allow_wrong: bool
    attempts: int  # distinct epochs that tried this cell
    metric: str  # the judged one: gpu_span, wall or reported
    blocks: tuple[Block, ...] = field(repr=False)
    sequential: tuple[Block, ...] = field(default=(), repr=False)  # selfcheck: timed by another protocol
    sustained: tuple[Block, ...] = field(default=(), repr=False)  # slices without a pause (abprof/measure/sustained.py)
    _memo: dict[object, Any] = field(default_factory=dict, repr=False)

    def once(self, key: object, compute: Callable[[], T]) -> T:
        """Memoize a result that depends on this cell, the key, and the run's head alone (see CellCache)."""
        if key not in self._memo:
            self._memo[key] = compute()
        result: T = self._memo[key]
        return result

    def state(self, arm: str) -> ArmState:
        return self.states.get(arm, ArmState("missing", f"there is no {arm}", seen=False))

    @property
    def device(self) -> str:
        """The run's device it was measured on; "" in a run on one device and when not measured."""
        return next((block.device for block in self.blocks if block.device), "")

    def shows_times(self, arm: str) -> bool:
        """Whether this arm's times may be shown: no speed is reported for a wrong answer or for wrong code."""
        state = self.state(arm)
        return state.runs or (state.status == "wrong" and self.allow_wrong)

    @cached_property
    def read(self) -> tuple[Columns, ...]:
        """The rounds as measured. Raises ValueError on an impossible time."""
        return tuple(columns(block) for block in self.blocks)

    @cached_property
    def judged(self) -> tuple[Columns, ...]:
        """The judged rounds: rescaled to one clock where that is quieter, else as measured."""
        return at_one_clock(self.read) or self.read

    @cached_property
    def pauseless(self) -> tuple[Columns, ...]:
        return tuple(columns(block) for block in self.sustained)

    @property
    def at_one_clock(self) -> bool:
        return self.judged is not self.read

    def protocols(self, arm: str) -> list[str]:
        """The distinct ways in which the arm was timed."""
        return [*dict.fromkeys(block.protocol for block in self.judged if arm in block.values)]

    def epoch_values(self, before: str, after: str, of: Quantity = "judged") -> list[float]:
        """Epoch values D (log ratios after/before) in the order of epochs, for epochs in which both arms ran.

        `of`: the judged times, the times as read, the device clock alone, cycles (time x clock), or the times of slices
        without a pause. Epochs that lack the clock have no clock and cycles.
        """
        return list(self.once(("values", before, after, of), lambda: self._ratios(before, after, of)))

    def _ratios(self, before: str, after: str, of: Quantity) -> list[float]:
        def column(block: Columns, arm: str) -> np.ndarray[Any, Any]:
            if of == "cycles":
                return block.values[arm] * block.clocks[arm]
            return block.clocks[arm] if of == "clock" else block.values[arm]

        rounds = {"judged": self.judged, "sustained": self.pauseless}.get(of, self.read)
        values = []
        for blocks in self._by_epoch(rounds, before, after):
            first, second = (np.concatenate([column(block, arm) for block in blocks]) for arm in (before, after))
            both = ~(np.isnan(first) | np.isnan(second))
            if both.any():
                values.append(stats.round_median(first[both], second[both]))
        return values

    def epoch_savings(self, before: str, after: str) -> list[tuple[float, float]]:
        """What `after` saves of `before`'s time per epoch, as a share of it: (by the worker's timer, by the parent's clock).
        Epochs without the parent's clock are left out."""
        found = []
        for blocks in self._by_epoch(self.read, before, after):
            timer = np.concatenate([block.values[before] - block.values[after] for block in blocks])
            parent = np.concatenate([block.waits[before] - block.waits[after] for block in blocks])
            known = ~(np.isnan(timer) | np.isnan(parent))
            if known.any():
                whole = float(np.nanmedian(np.concatenate([block.values[before] for block in blocks])))
                found.append((float(np.median(timer[known])) / whole, float(np.median(parent[known])) / whole))
        return found

    def epoch_medians(self, arm: str, of: Literal["judged", "wall", "sustained"] = "judged") -> list[float]:
        """The arm's median time of each epoch, ns per call."""
        return list(self.once(("medians", arm, of), lambda: self._medians(arm, of)))

    def _medians(self, arm: str, of: str) -> list[float]:
        medians = []
        for blocks in self._by_epoch(self.pauseless if of == "sustained" else self.judged, arm):
            times = np.concatenate([(block.walls if of == "wall" else block.values)[arm] for block in blocks])
            times = times[~np.isnan(times)]
            if times.size:
                medians.append(float(np.median(times)))
        return medians

    def _by_epoch(self, rounds: Sequence[Columns], *arms: str) -> list[list[Columns]]:
        """Blocks in which all `arms` ran, grouped by epoch; none if an arm's times may not be shown."""
        if not all(map(self.shows_times, arms)):
            return []
        groups: dict[int, list[Columns]] = {}
        usable = RUNS | {"wrong"} if self.allow_wrong else RUNS
        for block in rounds:
            states = [block.outcomes[arm].status for arm in arms if arm in block.outcomes]
            if all(arm in block.values for arm in arms) and usable.issuperset(states):
                groups.setdefault(block.epoch, []).append(block)
        return [blocks for _, blocks in sorted(groups.items())]


# ---------------------------------------------------------------- aggregation


def aggregate(
    run: Run, blocks: Sequence[Block], proofs: Sequence[Proof] = (), cache: CellCache | None = None
) -> dict[str, CellData]:
    """Cell id -> data, for every cell of the run, measured or not; what `cache` has is reused. Raises ValueError on
    impossible input."""
    return (cache or CellCache()).aggregate(run, blocks, proofs)


class CellCache:
    """Aggregated cells of one run, reused while a cell's blocks and the run's head stay the same.

    A cell is aggregated again when its blocks are other objects; all are when the head changes, or a proof fails.
    """

    # Fields of the head that no single cell's data or memoized results depend on.
    UNREAD = frozenset(
        {
            *("id", "status", "ended", "cells", "machines", "losses", "notes", "touched", "proofs"),
            *("header", "observations", "comparisons", "within", "controls", "warnings"),
            *("kernels", "traces", "profiles", "sampled"),
        }
    )

    def __init__(self) -> None:
        self._head: tuple[object, ...] = ()
        self._cells: dict[str, tuple[list[Block], CellData]] = {}

    def aggregate(self, run: Run, blocks: Sequence[Block], proofs: Sequence[Proof]) -> dict[str, CellData]:
        """As the function `aggregate`. Raises ValueError on impossible input."""
        owned: dict[str, list[Block]] = {cell.id: [] for cell in run.cells}
        for block in blocks:
            if block.cell not in owned:
                raise ValueError(f"rounds of a cell that is not in the run: {block.cell}")
            owned[block.cell].append(block)
        # If any output was checked, an arm whose only check did not arrive is not trusted.
        checked = any(outcome.check is not None for block in blocks for outcome in block.outcomes.values())
        broken = tuple(proof for proof in proofs if not proof.ok)
        read = [getattr(run, name) for name in Run.__struct_fields__ if name not in self.UNREAD]
        builds = [(device, machine.builds) for device, machine in run.machines.items() if machine.builds]
        head = (*read, run.status == "interrupted", builds, broken, checked)
        if head != self._head:
            self._head, self._cells = head, {}
        for cell in run.cells:
            own, (known, data) = owned[cell.id], self._cells.get(cell.id, ([], None))
            if data is None or data.cell is not cell or len(own) != len(known) or not all(map(is_, own, known)):
                self._cells[cell.id] = own, _cell_data(run, cell, own, broken, checked=checked)
        return {cell.id: self._cells[cell.id][1] for cell in run.cells}

    def clear(self) -> None:
        """Free the memory."""
        self._head, self._cells = (), {}


def _cell_data(run: Run, cell: Cell, every: list[Block], broken: Sequence[Proof], *, checked: bool) -> CellData:
    blocks = [block for block in every if block.judged]
    # A quick epoch chose the cells that were measured again, so it would bias them: fresh epochs alone count.
    # A block without a metric states what was known without measuring, and yields to any that was measured.
    tried = [block for block in blocks if block.metric]
    fresh = [block for block in tried if not block.quick]
    kept = tuple(sorted(fresh or tried or blocks, key=lambda block: (block.epoch, block.began)))
    metrics = {block.metric for block in kept} - {""}
    timers = {block.timer for block in kept if block.rounds}
    devices = {block.device for block in kept if block.metric}
    for what, found in (("metrics", metrics), ("timers", timers), ("devices", devices)):
        if len(found) > 1:
            raise ValueError(f"{cell.id}: its rounds mix {what} {' and '.join(sorted(found))}")
    judge = next((load.judge for load in run.workloads if load.name == cell.workload), run.options.judge)
    return CellData(
        cell=cell,
        states={arm: _state(run, cell, arm, kept, broken, checked=checked) for arm in cell_arms(run, cell, kept)},
        quick=bool(tried) and not fresh,
        allow_wrong=run.options.allow_wrong,
        attempts=len({block.epoch for block in kept}),
        metric=next(iter(metrics), JUDGED_METRIC[judge]),
        blocks=kept,
        sequential=tuple(block for block in every if block.metric in (SEED_METRIC, DO_BENCH_METRIC)),
        sustained=tuple(block for block in every if block.metric == SUSTAINED and block.rounds),
    )


# ---------------------------------------------------------------- arms


def arm_id(side: str, variant: str) -> str:
    return f"{side}:{variant}" if variant else side


def same_code(run: Run) -> bool:
    """Whether this is an A/A run: every side is the same tree, and its cells are judged by their intervals."""
    return len(run.sides) > 1 and len({side.tree for side in run.sides}) == 1


def cell_arms(run: Run, cell: Cell, blocks: Sequence[Block] = ()) -> list[str]:
    """Ids of the arms of this cell in the run's order; controls only where one was measured."""
    workload = next((load for load in run.workloads if load.name == cell.workload), None)
    built = tuple(dict.fromkeys(v for build in run.builds if build.kernel == cell.kernel for v in build.variants))
    variants = (workload.variants if workload else ()) or built or ("",)
    peers = workload.peers if workload else ()
    seen = {arm for block in blocks for arm in (*block.arms, *block.outcomes)}
    declared = [
        arm.id
        for arm in run.arms
        if arm.id in seen or (arm.side != "control" and (arm.peer in peers if arm.peer else arm.variant in variants))
    ]
    return declared + sorted(seen - set(declared))


def _state(
    run: Run, cell: Cell, arm: str, blocks: Sequence[Block], broken: Sequence[Proof], *, checked: bool
) -> ArmState:
    """One arm's outcome, strongest evidence first: skipped, wrong code loaded, not built, then its epochs."""
    if cell.skip:
        return ArmState("unsupported", cell.skip)
    side, peer = Arm.of(arm).side, Arm.of(arm).peer
    tried = [(block.epoch, block.outcomes[arm]) for block in blocks if arm in block.outcomes]
    devices = {block.device for block in blocks}
    for proof in broken:
        if (proof.side, proof.kernel) == (side, cell.kernel) and proof.device in devices | {""}:
            reason = proof.reason or "code from outside its own tree was loaded"
            return ArmState("crash", reason, proof_broken=True)
    if not (peer and tried):
        for build in run.builds_of(next((block.device for block in blocks if block.device), "")):
            own = build.side == ("base" if side == "control" else side) and build.kernel == cell.kernel
            if own and build.failure is not None:
                return ArmState(build.failure.status, build.failure.reason, build.failure.log or build.log)
    if not tried:
        turned = any(arm in block.arms and block.rounds for block in blocks)
        return ArmState("ok", "" if turned else "not measured", seen=turned)
    merged = _over_epochs(tried, last=run.options.quick or not any(block.metric for block in blocks))
    if merged.flaky and merged.check is None and checked:  # the failed epoch was the one that checks the output
        _, first = next(each for each in tried if each[1].status in TRANSIENT)
        return ArmState(first.status, first.reason, first.log, first.at)
    return merged


def _over_epochs(tried: Sequence[tuple[int, Outcome]], *, last: bool) -> ArmState:
    """Merge an arm's outcomes: the worst status wins, with one exception.

    A crash, timeout or exhausted memory in a single epoch that at least two other epochs do not repeat leaves the arm ok,
    with a warning. A wrong answer, an unsupported case or a missing kernel counts from the first time. `last`: no further
    attempt will be made.
    """
    failed = {epoch for epoch, outcome in tried if outcome.status in TRANSIENT}
    good = {epoch for epoch, outcome in tried if outcome.status in RUNS} - failed
    lasting = any(outcome.status not in RUNS | TRANSIENT for _, outcome in tried)
    checks = [outcome.check for _, outcome in tried if outcome.check is not None]
    check = next((one for one in checks if not one.ok), max(checks, key=lambda c: c.max_abs or 0.0, default=None))
    once = len(failed) == 1 and not lasting
    flaky = once and len(good) >= 2
    if (not failed and not lasting) or flaky:
        identical = any(outcome.status == "identical" for _, outcome in tried)
        reason = next((o.reason for _, o in tried if o.status in TRANSIENT), "") if flaky else ""
        return ArmState("identical" if identical else "ok", reason, check=check, flaky=flaky)
    _, worst = min(
        ((epoch, outcome) for epoch, outcome in tried if outcome.status not in RUNS),
        key=lambda each: (SEVERITY.index(each[1].status), each[0]),
    )
    return ArmState(worst.status, worst.reason, worst.log, worst.at, check, settled=last or not once)
