"""What rounds.jsonl says about each cell: every arm's outcome over the epochs, and the epoch values of every pair.

The verdict stage's first half. Reads records, decides nothing about speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from abprof import stats
from abprof.digest import Column, Digest, at_one_clock, digest
from abprof.model import (
    JUDGED_METRIC,
    SEQUENTIAL_METRICS,
    SUSTAINED,
    Block,
    Build,
    Cell,
    CheckResult,
    Outcome,
    Proof,
    Run,
    Status,
)

# Worst first: which status an arm gets when its epochs disagree. A wrong answer outranks everything, because it is the
# only one that would otherwise come with a speed.
SEVERITY: tuple[Status, ...] = ("wrong", "crash", "oom", "timeout", "build_failed", "missing", "unsupported")
TRANSIENT: frozenset[Status] = frozenset({"crash", "oom", "timeout"})  # may be the machine's doing, not the code's
RUNS: frozenset[Status] = frozenset({"ok", "identical"})


@dataclass(frozen=True)
class ArmState:
    """An arm of one cell over all its epochs."""

    status: Status
    reason: str = ""
    log: str = ""
    check: CheckResult | None = None
    proof_broken: bool = False
    flaky: bool = False  # one epoch failed and at least two did not: ok, with a warning
    settled: bool = True  # False: one failure so far, further attempts decide
    seen: bool = True  # False: no epoch has tried it yet

    @property
    def runs(self) -> bool:
        return self.status in RUNS


@dataclass(frozen=True)
class Evidence:
    """Everything measured about one cell."""

    cell: Cell
    digests: tuple[Digest, ...]
    states: dict[str, ArmState]
    quick: bool
    allow_wrong: bool
    attempts: int  # distinct epochs that tried this cell
    metric: str  # the judged one: gpu_span, wall or reported
    blocks: tuple[Block, ...] = field(repr=False)
    read: tuple[Digest, ...] = field(default=(), repr=False)  # as they were read, where `digests` are at one clock
    sequential: tuple[Block, ...] = field(default=(), repr=False)  # timed as others do: one round, a turn a side
    sustained: tuple[Digest, ...] = field(default=(), repr=False)  # without a pause (abprof/sustained.py)
    beside: tuple[Block, ...] = field(default=(), repr=False)  # of a launch-bound cell, by graphs (abprof/graphed.py)

    def state(self, arm: str) -> ArmState:
        return self.states.get(arm, ArmState("missing", f"there is no {arm}", seen=False))

    def numbers(self, arm: str) -> bool:
        """Whether this arm's times may be shown: a speed is never reported on a wrong answer, nor on wrong code."""
        state = self.state(arm)
        return state.runs or (state.status == "wrong" and self.allow_wrong)

    def epoch_values(self, before: str, after: str) -> list[float]:
        """D of each epoch in which both arms ran through, in the order of epochs (log ratios after/before)."""
        return self._epoch_ratios(before, after, lambda digest, arm: digest.values[arm])

    def epoch_sustained(self, before: str, after: str) -> list[float]:
        """The same of slices without a pause."""
        return self._epoch_ratios(before, after, lambda digest, arm: digest.values[arm], self.sustained)

    def epoch_graphs(self, before: str, after: str) -> list[float]:
        """The same of calls replayed from CUDA graphs, of a launch-bound cell."""
        return self._epoch_ratios(before, after, lambda digest, arm: digest.values[arm], self.graphs)

    @cached_property
    def graphs(self) -> tuple[Digest, ...]:
        """The rounds by graphs, of graphs that hold all that a call launches."""
        return tuple(digest(block) for block in self.beside if block.rounds and not self._torn(block))

    def uncaptured(self, arm: str) -> str:
        """Why this launch-bound arm has no time in a graph; "" where it has, or is not launch-bound."""
        if any(arm in each.values for each in self.graphs):
            return ""
        torn = next((why for block in self.beside if (why := self._torn(block))), "")
        said = [block.outcomes[arm].reason for block in self.beside if arm in block.outcomes]
        return torn or next((reason for reason in said if reason), "")

    def _torn(self, block: Block) -> str:
        """What is against a block's graphs: of one that runs less than the call launches a part went elsewhere."""
        for arm, nodes in block.nodes.items():
            told = [o.census for o in (b.outcomes.get(arm) for b in self.blocks) if o is not None and o.census]
            for census in (one for one in told if one.on_device and not one.missing):
                count = sum(launch.count for launch in census.launches)
                if nodes < count:
                    return f"part: the graph of {arm} runs {nodes} of the {count} that a call launches"
        return ""

    @property
    def at_one_clock(self) -> bool:
        """Whether the judged times are what they would be at the cell's mean clock (abprof/digest.py)."""
        return self.read is not self.digests

    def epoch_read(self, before: str, after: str) -> list[float]:
        """The same of the times as they were read."""
        return self._epoch_ratios(before, after, lambda digest, arm: digest.values[arm], self.read)

    def epoch_cycles(self, before: str, after: str) -> list[float]:
        """The same of time x the device's clock; no epoch in which turns did not read it."""
        return self._epoch_ratios(before, after, lambda digest, arm: digest.values[arm] * digest.clocks[arm], self.read)

    def epoch_clocks(self, before: str, after: str) -> list[float]:
        """The same of the clock alone."""
        return self._epoch_ratios(before, after, lambda digest, arm: digest.clocks[arm], self.read)

    def _epoch_ratios(
        self,
        before: str,
        after: str,
        column: Callable[[Digest, str], Column],
        of: Sequence[Digest] | None = None,
    ) -> list[float]:
        if not (self.numbers(before) and self.numbers(after)):
            return []
        values = []
        for _, digests in self._by_epoch(before, after, of=self.digests if of is None else of):
            pairs = [(column(d, before), column(d, after)) for d in digests]
            first, second = (np.concatenate(side) for side in zip(*pairs, strict=True))
            both = ~(np.isnan(first) | np.isnan(second))
            if both.any():
                values.append(stats.round_median(first[both], second[both]))
        return values

    def epoch_savings(self, before: str, after: str) -> list[tuple[float, float]]:
        """What the second arm saves of the first's time in each epoch, as shares of it: by the worker's timer, and by the
        parent's clock, which no code under test can reach. No epoch in which the parent's was not told."""
        if not (self.numbers(before) and self.numbers(after)):
            return []
        found = []
        for _, digests in self._by_epoch(before, after, of=self.read or self.digests):
            timer = np.concatenate([digest.values[before] - digest.values[after] for digest in digests])
            parent = np.concatenate([digest.waits[before] - digest.waits[after] for digest in digests])
            told = ~(np.isnan(timer) | np.isnan(parent))
            if told.any():
                whole = float(np.nanmedian(np.concatenate([digest.values[before] for digest in digests])))
                found.append((float(np.median(timer[told])) / whole, float(np.median(parent[told])) / whole))
        return found

    def epoch_medians(self, arm: str, clock: str = "value") -> list[float]:
        """The arm's median time of each epoch, ns per call: `clock` is "value" (the judged metric), "wall", "sustained" or
        "graph"."""
        if not self.numbers(arm):
            return []
        medians = []
        of = {"sustained": self.sustained, "graph": self.graphs}.get(clock, self.digests)
        for _, digests in self._by_epoch(arm, of=of):
            columns = [(d.walls if clock == "wall" else d.values)[arm] for d in digests]
            column = np.concatenate(columns)
            column = column[~np.isnan(column)]
            if column.size:
                medians.append(float(np.median(column)))
        return medians

    def _by_epoch(self, *arms: str, of: Sequence[Digest]) -> list[tuple[int, list[Digest]]]:
        """Digests in which all `arms` ran through, grouped by epoch: one epoch is one unit, however many blocks."""
        groups: dict[int, list[Digest]] = {}
        for each in of:
            if all(arm in each.values and self._usable(each, arm) for arm in arms):
                groups.setdefault(each.epoch, []).append(each)
        return sorted(groups.items())

    def _usable(self, digest: Digest, arm: str) -> bool:
        outcome = digest.outcomes.get(arm)
        return outcome is None or outcome.status in RUNS or (outcome.status == "wrong" and self.allow_wrong)


def gather(run: Run, blocks: Sequence[Block], proofs: Sequence[Proof] = ()) -> dict[str, Evidence]:
    """Evidence by cell id, for every cell of the run, measured or not. Raises ValueError on impossible input."""
    by_cell: dict[str, list[Block]] = {cell.id: [] for cell in run.cells}
    for block in blocks:
        if block.cell not in by_cell:
            raise ValueError(f"rounds of a cell that is not in the run: {block.cell}")
        by_cell[block.cell].append(block)
    checked = any(outcome.check is not None for block in blocks for outcome in block.outcomes.values())
    return {cell.id: _evidence(run, cell, by_cell[cell.id], proofs, checked=checked) for cell in run.cells}


def _evidence(run: Run, cell: Cell, blocks: list[Block], proofs: Sequence[Proof], *, checked: bool) -> Evidence:
    sequential = tuple(block for block in blocks if block.metric in SEQUENTIAL_METRICS)
    sustained = tuple(digest(block) for block in blocks if block.metric == SUSTAINED and block.rounds)
    beside = tuple(block for block in blocks if block.beside)
    blocks = [block for block in blocks if block.judged]
    # A quick epoch picked the cells that were measured again, so it would bias what follows: fresh epochs alone count.
    # A block without a metric says what was known without measuring, and gives way to any that was measured.
    tried = [block for block in blocks if block.metric]
    fresh = [block for block in tried if not block.quick]
    kept = tuple(sorted(fresh or tried or blocks, key=lambda block: (block.epoch, block.began)))
    metrics = sorted({block.metric for block in kept} - {""})
    if len(metrics) > 1:
        raise ValueError(f"{cell.id}: rounds judged by {' and by '.join(metrics)} cannot be put together")
    read = tuple(digest(block) for block in kept)
    return Evidence(
        cell=cell,
        digests=at_one_clock(read) or read,
        read=read,
        states={arm: _state(run, cell, arm, kept, proofs, checked=checked) for arm in cell_arms(run, cell, kept)},
        quick=bool(tried) and not fresh,
        allow_wrong=run.settings.allow_wrong,
        attempts=len({block.epoch for block in kept}),
        metric=metrics[0] if metrics else _judged(run, cell),
        blocks=kept,
        sequential=sequential,
        sustained=sustained,
        beside=beside,
    )


def _judged(run: Run, cell: Cell) -> str:
    judge = next((w.judge for w in run.workloads if w.name == cell.workload), run.settings.judge)
    return JUDGED_METRIC[judge]


# ---------------------------------------------------------------- arms


def cell_arms(run: Run, cell: Cell, blocks: Sequence[Block] = ()) -> list[str]:
    """Ids of the arms of this cell, in the run's order; controls only where one took turns."""
    workload = next((w for w in run.workloads if w.name == cell.workload), None)
    variants = (workload.variants if workload else ()) or _built_variants(run, cell.kernel) or ("",)
    peers = workload.peers if workload else ()
    seen = {arm for block in blocks for arm in (*block.arms, *block.outcomes)}
    declared = [
        arm.id
        for arm in run.arms
        if arm.id in seen or (arm.side != "control" and (arm.peer in peers if arm.peer else arm.variant in variants))
    ]
    return declared + sorted(seen - set(declared))


def _built_variants(run: Run, kernel: str) -> tuple[str, ...]:
    """All that any side's build has: a variant that only one side has is `missing` on the other."""
    return tuple(dict.fromkeys(v for build in run.builds if build.kernel == kernel for v in build.variants))


def arm_id(side: str, variant: str) -> str:
    return f"{side}:{variant}" if variant else side


def side_of(run: Run, arm: str) -> str:
    """Whose worker an arm runs on: a side's id, or `control`."""
    for known in run.arms:
        if known.id == arm:
            return known.side
    head = arm.partition(":")[0]
    return "base" if head == "peer" else head


def _state(
    run: Run, cell: Cell, arm: str, blocks: Sequence[Block], proofs: Sequence[Proof], *, checked: bool
) -> ArmState:
    """One arm's outcome, strongest evidence first: skipped, wrong code loaded, not built, then what its epochs say."""
    if cell.skip:
        return ArmState("unsupported", cell.skip)
    side = side_of(run, arm)
    tried = [(block.epoch, block.outcomes[arm]) for block in blocks if arm in block.outcomes]
    for proof in proofs:
        if not proof.ok and proof.side == side and proof.kernel == cell.kernel:
            reason = proof.reason or "code from outside its own tree was loaded"
            return ArmState("crash", reason, proof_broken=True)
    build = _failed_build(run.builds, "base" if side == "control" else side, cell.kernel)
    if build is not None and build.failure is not None and not (arm.startswith("peer:") and tried):
        return ArmState(build.failure.status, build.failure.reason, build.failure.log or build.log)
    if not tried:
        turned = any(arm in block.arms and block.rounds for block in blocks)
        return ArmState("ok", "" if turned else "not measured", seen=turned)
    last = run.settings.quick or not any(block.metric for block in blocks)
    merged = _over_epochs(tried, last=last)
    if merged.flaky and merged.check is None and checked:  # its failure took its check with it: nothing vouches for it
        _, first = next(each for each in tried if each[1].status in TRANSIENT)
        return ArmState(first.status, first.reason, first.log)
    return merged


def _failed_build(builds: Iterable[Build], side: str, kernel: str) -> Build | None:
    return next((b for b in builds if b.side == side and b.kernel == kernel and b.failure is not None), None)


def _over_epochs(tried: Sequence[tuple[int, Outcome]], *, last: bool) -> ArmState:
    """Merge an arm's outcomes. The worst status wins, whatever the order of the epochs, but for one case: a crash,
    timeout or exhausted memory in a single epoch that at least two other epochs did not repeat leaves the arm ok, with
    a warning. Not ok therefore means: twice, or once with fewer than two epochs to say otherwise. A wrong answer, an
    unsupported case or a missing kernel counts from the first time: they do not come and go by chance. `last` says that
    no further attempt will be made.
    """
    good = {epoch for epoch, outcome in tried if outcome.status in RUNS}
    failed = {epoch for epoch, outcome in tried if outcome.status in TRANSIENT}
    good -= failed
    lasting = any(outcome.status not in RUNS and outcome.status not in TRANSIENT for _, outcome in tried)
    check = _worst_check(outcome.check for _, outcome in tried)
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
    return ArmState(worst.status, worst.reason, worst.log, check, settled=last or not once)


def _worst_check(checks: Iterable[CheckResult | None]) -> CheckResult | None:
    """The first failed check, else the one with the largest error."""
    known = [check for check in checks if check is not None]
    failed = [check for check in known if not check.ok]
    return failed[0] if failed else max(known, key=lambda c: c.max_abs or 0.0, default=None)


def same_code(run: Run) -> bool:
    """An A/A run: every side is the same tree. Its cells are judged by their intervals, or it would prove nothing."""
    return len(run.sides) > 1 and len({side.tree for side in run.sides}) == 1
