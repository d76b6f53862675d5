"""Aggregate a run's blocks (rounds of a cell in an epoch) into one `CellData` per cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from operator import is_
from statistics import median_low
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from abprof.records import (
    JUDGED_METRIC,
    LONGEST_CALL,
    LOOKS,
    REPORTED,
    SUSTAINED,
    Arm,
    Block,
    Build,
    Cell,
    CheckResult,
    Comparison,
    Outcome,
    Proof,
    Run,
    Status,
    power_bound,
)
from abprof.records.quantities import plural
from abprof.verdict import stats

Array = NDArray[np.float64]
TIME, HOST_TIME, CLOCK, WAIT = range(4)  # indexes of an arm's rows in Rounds.arms
_FASTEST_CLOCK = 1e6  # MHz: readings above are errors
_QUIETER = 0.8  # rescaled rounds are judged if their scatter is below this share of the scatter of rounds as measured
_FEWEST_RATIOS = 6  # ratios at the first look, with two rounds an epoch and one round rejected
_HOST_BOUND = 2.0  # host time over device time from which a row is host-bound
_FEWEST_ROUNDS = 4  # rounds at the first look, with one round an epoch
_MORE_SLOW_CALLS = 0.001  # largest p-value at which an arm has more slow calls (`CellData.tail`)
_BY_COMMAND = "the command's own timing, a process of each side an epoch"
_CLOCK_MISSING = 0.1  # largest share of turns that may lack a reading of the clock


@dataclass(frozen=True)
class Rounds:
    """The rounds of a block without rejected ones. `arms`: arm -> array with a column per round and the rows TIME and
    HOST_TIME (ns per call), CLOCK (MHz) and WAIT (ns per call by the parent process's clock). NaN: not measured."""

    epoch: int
    protocol: str
    outcomes: dict[str, Outcome]
    arms: dict[str, Array]

    def judged_arms(self) -> dict[str, Array]:
        """Return all arms except peers, which must not affect how sides are judged."""
        return {arm: rows for arm, rows in self.arms.items() if not Arm.of(arm).peer}


def kept_rounds(block: Block) -> Rounds:
    """Return a block's rounds without rejected ones. Raises ValueError for a time outside 0 to LONGEST_CALL."""
    dropped = frozenset(block.rejected)
    kept = [row for number, row in enumerate(block.rounds) if number not in dropped]
    turns = np.array([msgspec.structs.astuple(turn) for row in kept for turn in row], dtype=float).reshape(-1, 8)
    arms, _, _, value, wall, _, mhz, waited = turns.T  # in the order of Turn's fields
    if not ((value > 0) & (value <= LONGEST_CALL)).all():
        raise ValueError(f"{block.cell}, epoch {block.epoch}: a round has an impossible time")
    clock = np.where((mhz > 0) & (mhz < _FASTEST_CLOCK), mhz, np.nan)
    wait = np.where(waited > 0, waited / (block.calls or np.nan), np.nan)
    numbers = np.full((len(block.arms), 4, len(kept)), np.nan)
    at_round = np.repeat(np.arange(len(kept)), [len(row) for row in kept])
    numbers[arms.astype(int), :, at_round] = np.stack([value, wall, clock, wait], axis=1)
    return Rounds(
        epoch=block.epoch,
        protocol=_BY_COMMAND if block.metric == REPORTED else f"{block.timer}, {plural(block.calls, 'call')} a turn",
        outcomes=block.outcomes,
        arms={arm: own for arm, own in zip(block.arms, numbers, strict=True) if not np.isnan(own[TIME]).all()},
    )


def at_one_clock(blocks: tuple[Rounds, ...]) -> tuple[Rounds, ...] | None:
    """Return the rounds with times rescaled to the mean clock of all turns; None if that does not reduce the scatter.

    The scatter of ratios between arms (with one round per epoch: the drift of all arms) must shrink by at least a
    fifth. Only scatter decides, not means, so that the choice cannot favour a verdict. Also None if more than a tenth
    of the turns lack a reading of the clock.
    """
    clocks = [rows[CLOCK, ~np.isnan(rows[TIME])] for block in blocks for rows in block.judged_arms().values()]
    every = np.concatenate([np.empty(0), *clocks])
    if not every.size or np.isnan(every).mean() > _CLOCK_MISSING:
        return None
    mhz = float(np.nanmean(every))
    rescaled = tuple(
        replace(
            block,
            protocol=f"{block.protocol}, at {mhz:.0f} MHz",
            arms={arm: np.stack([rows[TIME] * rows[CLOCK] / mhz, *rows[1:]]) for arm, rows in block.arms.items()},
        )
        for block in blocks
    )
    for scatter in (_ratio_scatter, _drift):
        before, after = (
            scatter([{arm: np.log(rows[TIME]) for arm, rows in block.judged_arms().items()} for block in some])
            for some in (blocks, rescaled)
        )
        if before is not None and after is not None:
            return rescaled if after < _QUIETER * before else None
    return None


def _ratio_scatter(blocks: Sequence[dict[str, Array]]) -> float | None:
    """Return the median absolute deviation of log ratios between arms, within blocks; None with too few ratios."""
    deviations = [np.empty(0)]
    for block in blocks:
        first, *others = block.values() or [np.empty(0)]
        for other in others:
            logs = (other - first)[~np.isnan(other - first)]
            if logs.size > 1:
                deviations.append(np.abs(logs - np.median(logs)))
    every = np.concatenate(deviations)
    return float(np.median(every)) if every.size >= _FEWEST_RATIOS else None


def _drift(blocks: Sequence[dict[str, Array]]) -> float | None:
    """Return the standard deviation over rounds of the mean log time of all arms; None with too few arms or rounds.

    Whether times are rescaled to one clock is decided by this value. That does not bias ratios if all arms scatter
    equally. If one arm scatters three times as far as the others, 7 % of the 95 % intervals miss instead of 5 %
    (tests/simulations/test_error_rates.py).
    """
    several = [block for block in blocks if len(block) > 1]
    common = sorted(set.intersection(*map(set, several))) if several else []
    if len(common) < 2:
        return None
    levels = np.concatenate([np.mean([block[arm] for arm in common], axis=0) for block in several])
    levels = levels[~np.isnan(levels)]
    return float(np.std(levels)) if levels.size >= _FEWEST_ROUNDS else None


T = TypeVar("T")
Quantity = Literal["judged", "read", "wall", "clock", "cycles", "waits", "other"]
RUNS: frozenset[Status] = frozenset({"ok", "identical"})
# Worst first, for arms whose epochs disagree. `wrong` is the worst: of these statuses only `wrong` comes with a speed.
SEVERITY: tuple[Status, ...] = (
    "wrong", "outside_turn", "crash", "oom", "timeout", "build_failed", "missing", "unsupported",
)  # fmt: skip
TRANSIENT: frozenset[Status] = frozenset({"crash", "oom", "timeout"})  # may be caused by the machine


@dataclass(frozen=True)
class ArmState:
    """The state of an arm in one cell, over all epochs."""

    status: Status
    reason: str = ""
    log: str = ""
    at: str = ""  # function and file of the workload that raised
    check: CheckResult | None = None
    proof_broken: bool = False
    flaky: bool = False  # one epoch failed and two or more succeeded: the status is ok, with a warning
    settled: bool = True  # False: one transient failure so far, and further epochs decide the status
    seen: bool = True  # False: no epoch tried the arm

    @property
    def runs(self) -> bool:
        return self.status in RUNS

    @property
    def failed(self) -> bool:
        """Whether the arm has failed for good, so that further epochs are useless."""
        return self.proof_broken or (self.settled and not self.runs)


@dataclass(frozen=True, eq=False)
class CellData:
    """All measurements of one cell."""

    cell: Cell
    states: dict[str, ArmState]
    quick: bool
    allow_wrong: bool
    attempts: int  # number of epochs that tried this cell
    metric: str  # the judged metric: gpu_span, wall, reported, ...
    blocks: tuple[Block, ...]
    timed: tuple[Block, ...]  # blocks whose times are judged: `blocks`, or slices (--regime sustained)
    other: tuple[Block, ...]  # blocks of the other regime: slices, or turns
    both: bool  # whether both regimes should be known
    one_clock: bool = True  # whether times may be rescaled: hostile code could forge the clock rates of its turns
    _memo: dict[object, Any] = field(default_factory=dict)

    def once(self, key: object, compute: Callable[[], T]) -> T:
        """Return `compute()`, memoized by `key`. `compute` may use only this cell and fields in `CellCache.head`."""
        if key not in self._memo:
            self._memo[key] = compute()
        result: T = self._memo[key]
        return result

    def state(self, arm: str) -> ArmState:
        return self.states.get(arm, ArmState("missing", f"there is no {arm}", seen=False))

    @property
    def device(self) -> str:
        """Name of the device that measured the cell; "" if the run has one device, or the cell was not measured."""
        return next((block.device for block in self.blocks if block.device), "")

    def shows_times(self, arm: str) -> bool:
        """Whether reports may show the arm's times: if it runs, or if its outputs are wrong with --allow-wrong."""
        state = self.state(arm)
        return state.runs or (state.status == "wrong" and self.allow_wrong)

    @cached_property
    def read(self) -> tuple[Rounds, ...]:
        """Return the rounds with times as measured. Raises ValueError for an impossible time."""
        return tuple(map(kept_rounds, self.timed))

    @cached_property
    def judged(self) -> tuple[Rounds, ...]:
        """Return the rounds that verdicts use: rescaled to one clock if that reduces scatter, else as measured."""
        return (at_one_clock(self.read) if self.one_clock else ()) or self.read

    @cached_property
    def other_rounds(self) -> tuple[Rounds, ...]:
        return tuple(map(kept_rounds, self.other))

    @property
    def at_one_clock(self) -> bool:
        return self.judged is not self.read

    def epochs(self, of: Quantity, *arms: str) -> list[Array]:
        """Return an array for each epoch in which all `arms` ran, with a row per arm and a column per round.

        `of` selects the values: `judged` (times that verdicts use), `read` (times as measured), `wall` (times by the
        host's clock), `clock` (the device's clock rate), `cycles` (time x clock rate), `other` (times in the other
        regime, without pauses or with) or `waits` (two rows per arm: times as measured, and by the parent's clock).
        """
        if not all(map(self.shows_times, arms)):
            return []
        blocks = {"judged": self.judged, "other": self.other_rounds}.get(of, self.read)
        usable = RUNS | {"wrong"} if self.allow_wrong else RUNS
        found: dict[int, list[Array]] = {}
        for block in blocks:
            runs = usable.issuperset(block.outcomes[arm].status for arm in arms if arm in block.outcomes)
            if runs and block.arms.keys() >= set(arms):
                found.setdefault(block.epoch, []).append(np.vstack([_values(block.arms[arm], of) for arm in arms]))
        every = [np.concatenate(blocks, axis=1) for _, blocks in sorted(found.items())]
        whole = [each[:, ~np.isnan(each).any(axis=0)] for each in every]
        return [each for each in whole if each.size]

    def epoch_values(self, before: str, after: str, of: Quantity = "judged") -> list[float]:
        """Return the median over rounds of log(after / before), for each epoch."""
        return self.once(
            ("values", before, after, of),
            lambda: [float(np.median(np.log(b) - np.log(a))) for a, b in self.epochs(of, before, after)],
        )

    def rounding(self, before: str, after: str) -> float:
        """Return how far rounding in a command's printed times can change the log ratio; 0 if a worker measured."""
        step = max((block.last_digit_ns for block in self.blocks), default=0.0)
        medians = [*map(self.epoch_medians, (before, after))]
        return sum(step / 2 / float(np.median(each)) for each in medians) if step and all(medians) else 0.0

    def tail(self, before: str, after: str, pct: float) -> float | None:
        """Return the change of the 90th percentile of call times in per cent; None unless `after` has more slow calls.

        A call is slow if its time, divided by its arm's median, is more than `pct` per cent above the 90th percentile
        of `before`. A one-sided sign test decides whether `after` has more slow calls (p <= 0.001).
        """
        pairs = self.epochs("judged", before, after)
        if not pairs:
            return None
        a, b = (np.concatenate([each[i] / np.median(each[i]) for each in pairs]) for i in (0, 1))
        limit = float(np.quantile(a, 0.9)) * (1 + pct / 100)
        if stats.more_often(int((b > limit).sum()), int((a > limit).sum())) > _MORE_SLOW_CALLS:
            return None
        a, b = (np.concatenate([each[i] / np.median(each[0]) for each in pairs]) for i in (0, 1))
        return stats.percent(float(np.log(np.quantile(b, 0.9) / np.quantile(a, 0.9))))

    def host_change(self, before: str, after: str, pct: float) -> float | None:
        """Return the change of the host's time to enqueue a call, in per cent; None unless callers see the change.

        Callers see the host if it takes twice as long as the device on one side. The 95 % interval of the change must
        lie beyond `pct` per cent.
        """
        known = [[(block.outcomes[arm].host_ns if arm in block.outcomes else None) or 0.0 for arm in (before, after)]
                 for block in self.blocks if block.rounds]  # fmt: skip
        times = np.array([pair for pair in known if min(pair) > 0]).reshape(-1, 2)
        device = [self.epoch_medians(before), self.epoch_medians(after)]
        if self.metric == "wall" or len(times) < LOOKS[0] or not all(device):
            return None
        if not any(np.median(times[:, i]) >= _HOST_BOUND * np.median(device[i]) for i in (0, 1)):
            return None
        change = stats.student_interval(np.log(times[:, 1] / times[:, 0]).tolist(), 0.05)
        low, high = stats.band(pct)
        return stats.percent(change.theta) if change.low > high or change.high < low else None

    def epoch_medians(self, arm: str, of: Quantity = "judged") -> list[float]:
        """Return the arm's median time in each epoch, ns per call."""
        return self.once(("medians", arm, of), lambda: [float(np.median(each)) for each in self.epochs(of, arm)])


def _values(rows: Array, of: Quantity) -> Array:
    if of == "cycles":
        return np.asarray(rows[TIME] * rows[CLOCK])
    found: Array = rows[{"wall": [HOST_TIME], "clock": [CLOCK], "waits": [TIME, WAIT]}.get(of, [TIME])]
    return found


@dataclass
class CellCache:
    """Keeps the data of cells between calls of `aggregate`, until a cell gets new blocks or `head` changes.
    `head`: those fields of the run on which the data depend."""

    head: tuple[object, ...] = ()
    cells: dict[str, tuple[list[Block], CellData]] = field(default_factory=dict)


def aggregate(
    run: Run, blocks: Sequence[Block], proofs: Sequence[Proof] = (), cache: CellCache | None = None
) -> dict[str, CellData]:
    """Return cell id -> data for every cell of the run, measured or not. `cache` saves computing the data of cells
    without new blocks again. Raises ValueError for blocks of unknown cells or with mixed devices, timers or metrics."""
    cache = cache or CellCache()
    owned: dict[str, list[Block]] = {cell.id: [] for cell in run.cells}
    for block in blocks:
        if block.cell not in owned:
            raise ValueError(f"rounds of a cell that is not in the run: {block.cell}")
        owned[block.cell].append(block)
    # If the run checks outputs, an arm whose only check failed to report is not trusted.
    checked = any(outcome.check is not None for block in blocks for outcome in block.outcomes.values())
    broken = tuple(proof for proof in proofs if not proof.ok)
    builds = [(device, machine.builds) for device, machine in run.machines.items() if machine.builds]
    read = run.options, run.sides, run.workloads, run.arms, run.builds, builds, run.status == "interrupted"
    if (*read, broken, checked) != cache.head:
        cache.head, cache.cells = (*read, broken, checked), {}
    for cell in run.cells:
        own, (known, data) = owned[cell.id], cache.cells.get(cell.id, ([], None))
        if data is None or data.cell is not cell or len(own) != len(known) or not all(map(is_, own, known)):
            cache.cells[cell.id] = own, _cell_data(run, cell, own, broken, checked=checked)
    return {cell.id: cache.cells[cell.id][1] for cell in run.cells}


def _cell_data(run: Run, cell: Cell, every: list[Block], broken: Sequence[Proof], *, checked: bool) -> CellData:
    blocks = [block for block in every if block.judged]
    # A quick epoch selects the cells to measure again, so its values would bias them: only later epochs count.
    # A block without a metric has outcomes known without measuring; measured blocks replace it.
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
    quick, regime = bool(tried) and not fresh, run.options.regime
    slices = tuple(block for block in every if block.metric == SUSTAINED and block.rounds)
    by_slices = regime == "sustained" and bool(slices)
    both = any(b.by_spans for b in kept) if regime == "sustained" else regime == "auto" and power_bound(kept)
    return CellData(
        cell=cell,
        states={arm: _state(run, cell, arm, kept, broken, checked=checked) for arm in _cell_arms(run, cell, kept)},
        quick=quick,
        allow_wrong=run.options.allow_wrong,
        attempts=len({block.epoch for block in kept}),
        metric=SUSTAINED if by_slices else next(iter(metrics), JUDGED_METRIC[judge]),
        blocks=kept,
        timed=slices if by_slices else kept,
        other=kept if by_slices else slices,
        both=both and not quick and run.status != "interrupted",
        one_clock=not run.options.untrusted,
    )


def epochs_left(cells: Mapping[str, CellData], row: Comparison) -> int:
    """Return the number of epochs until the look that is likely to decide an unclear row; 0 for other rows."""
    done = len(cells[row.cell].epoch_values(row.from_, row.to)) if row.needed_epochs else 0
    return (row.needed_epochs or 0) - done


def seconds_of(cells: Mapping[str, CellData], more: Mapping[str, int], starts: Mapping[str, float]) -> float:
    """Estimate the seconds of further epochs, given as cell -> number, from the epochs so far. `starts`: what
    `start_seconds` returned; cells of a package share the starts of its workers."""
    total, epochs = 0.0, dict[str, int]()  # package -> its epochs
    for id, number in more.items():
        timed, kernel = _timed_blocks(cells[id]), cells[id].cell.kernel
        spent = sum(block.seconds - block.check_seconds for block in timed)
        total += number * spent / max(1, len({block.epoch for block in timed}))
        epochs[kernel] = max(number, epochs.get(kernel, 0))
    return total + sum(number * starts.get(kernel, 0.0) for kernel, number in epochs.items())


def start_seconds(cells: Mapping[str, CellData]) -> dict[str, float]:
    """Return package -> the usual seconds between its first block of an epoch and the block before, which its workers
    take to start. The first epoch, whose start is longer, does not count."""
    waits: dict[str, list[float]] = {}
    every = [block for data in cells.values() for block in _timed_blocks(data)]
    for before, block in pairwise(sorted(every, key=lambda block: (block.device, block.began))):
        kernel = cells[block.cell].cell.kernel
        first = block.epoch > before.epoch or cells[before.cell].cell.kernel != kernel
        if first and block.device == before.device:
            waits.setdefault(kernel, []).append(max(0.0, block.began - before.began - before.seconds))
    return {kernel: median_low(of) for kernel, of in waits.items()}  # of two, one may be between two invocations


def _timed_blocks(data: CellData) -> list[Block]:
    """Return the blocks that each epoch has: of turns, and with --regime sustained of slices."""
    return [block for block in (*data.blocks, *(data.timed if data.metric == SUSTAINED else ())) if block.rounds]


def builds_of(run: Run, cell: Cell, blocks: Sequence[Block]) -> dict[str, Build]:
    """Return side -> build that measured the cell, with the control's under "control" if it had one of its own."""
    machine = run.machines.get(next(filter(None, (block.device for block in blocks)), ""))
    builds = (machine.builds if machine else ()) or run.builds
    return {build.side: build for build in builds if build.kernel == cell.kernel}


def _cell_arms(run: Run, cell: Cell, blocks: Sequence[Block]) -> list[str]:
    """Return the ids of this cell's arms in the run's order. The control is included only if it was measured."""
    workload = next((load for load in run.workloads if load.name == cell.workload), None)
    built = [variant for build in run.builds if build.kernel == cell.kernel for variant in build.variants]
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
        build = builds_of(run, cell, blocks).get("base" if side == "control" else side)
        if build is not None and build.failure is not None:
            return ArmState(build.failure.status, build.failure.reason, build.failure.log or build.log)
    if not tried:
        turned = any(arm in block.arms and block.rounds for block in blocks)
        return ArmState("ok", "" if turned else "not measured", seen=turned)
    merged = _over_epochs(tried, last=run.options.quick or not any(block.metric for block in blocks))
    if merged.flaky and merged.check is None and checked:  # the failed epoch is the one that checks outputs
        first = next(outcome for _, outcome in tried if outcome.status in TRANSIENT)
        return ArmState(first.status, first.reason, first.log, first.at)
    return merged


def _over_epochs(tried: Sequence[tuple[int, Outcome]], *, last: bool) -> ArmState:
    """Merge an arm's outcomes, given as (epoch, outcome), into one state: the worst status counts.

    But a crash, timeout or exhausted memory in only one epoch is a warning if two or more other epochs succeeded.
    `last`: no further epoch follows.
    """
    failed = {epoch for epoch, outcome in tried if outcome.status in TRANSIENT}
    good = {epoch for epoch, outcome in tried if outcome.status in RUNS} - failed
    bad = [(SEVERITY.index(o.status), epoch, o) for epoch, o in tried if o.status not in RUNS]
    once = len(failed) == 1 and all(outcome.status in TRANSIENT for _, _, outcome in bad)
    checks = [outcome.check for _, outcome in tried if outcome.check is not None]
    check = next((one for one in checks if not one.ok), max(checks, key=lambda c: c.max_abs or 0.0, default=None))
    flaky = once and len(good) >= 2
    if bad and not flaky:
        _, _, worst = min(bad, key=lambda each: each[:2])
        return ArmState(worst.status, worst.reason, worst.log, worst.at, check, settled=last or not once)
    identical = any(outcome.status == "identical" for _, outcome in tried)
    return ArmState("identical" if identical else "ok", bad[0][2].reason if bad else "", check=check, flaky=flaky)
