"""From rounds.jsonl to what it says about each cell, its evidence: how an arm fared over the epochs, which blocks count.

The verdict stage's first half. Reads records, decides nothing about speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from abprof.records import (
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
from abprof.verdict.cell_data import RUNS, ArmState, Desk, Evidence

# Worst first: which status an arm gets when its epochs disagree. A wrong answer outranks everything, because it is the
# only one that would otherwise come with a speed.
SEVERITY: tuple[Status, ...] = ("wrong", "crash", "oom", "timeout", "build_failed", "missing", "unsupported")
TRANSIENT: frozenset[Status] = frozenset({"crash", "oom", "timeout"})  # may be the machine's doing, not the code's


Gather = Callable[[Run, Sequence[Block], Sequence[Proof]], dict[str, Evidence]]


def gather(run: Run, blocks: Sequence[Block], proofs: Sequence[Proof] = ()) -> dict[str, Evidence]:
    """Evidence by cell id, for every cell of the run, measured or not. Raises ValueError on impossible input."""
    found, checked, desk = by_cell(run, blocks), any_checked(blocks), Desk()
    return {cell.id: evidence(run, cell, found[cell.id], proofs, desk, checked=checked) for cell in run.cells}


def by_cell(run: Run, blocks: Iterable[Block]) -> dict[str, list[Block]]:
    """Blocks by cell id, for every cell of the run. Raises ValueError for one of another cell."""
    found: dict[str, list[Block]] = {cell.id: [] for cell in run.cells}
    for block in blocks:
        if block.cell not in found:
            raise ValueError(f"rounds of a cell that is not in the run: {block.cell}")
        found[block.cell].append(block)
    return found


def any_checked(blocks: Iterable[Block]) -> bool:
    """Whether any output of the run was checked: then an arm whose only check failed to come is not vouched for."""
    return any(outcome.check is not None for block in blocks for outcome in block.outcomes.values())


def evidence(
    run: Run, cell: Cell, blocks: list[Block], proofs: Sequence[Proof], desk: Desk, *, checked: bool
) -> Evidence:
    """One cell's. `blocks`: its own. `checked`: `any_checked` of the run. Of the run's head it reads, as everything that is
    asked of one cell's evidence does, nothing that abprof/verdict/cache.py lists as of no cell. Raises ValueError on impossible input."""
    sequential = tuple(block for block in blocks if block.metric in SEQUENTIAL_METRICS)
    pauseless = tuple(block for block in blocks if block.metric == SUSTAINED and block.rounds)
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
    timers = sorted({block.timer for block in kept if block.rounds})
    if len(timers) > 1:  # each reads a quantity of its own, and their mean is nobody's
        raise ValueError(f"{cell.id}: rounds read by {' and by '.join(timers)} cannot be put together")
    devices = sorted({block.device for block in kept if block.metric})
    if len(devices) > 1:
        raise ValueError(f"{cell.id}: rounds of {' and of '.join(devices)} cannot be put together")
    return Evidence(
        cell=cell,
        states={arm: _state(run, cell, arm, kept, proofs, checked=checked) for arm in cell_arms(run, cell, kept)},
        quick=bool(tried) and not fresh,
        allow_wrong=run.settings.allow_wrong,
        attempts=len({block.epoch for block in kept}),
        metric=metrics[0] if metrics else _judged(run, cell),
        blocks=kept,
        sequential=sequential,
        pauseless=pauseless,
        beside=beside,
        desk=desk,
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
    devices = {block.device for block in blocks}
    for proof in proofs:
        if not proof.ok and (proof.side, proof.kernel) == (side, cell.kernel) and proof.device in devices | {""}:
            reason = proof.reason or "code from outside its own tree was loaded"
            return ArmState("crash", reason, proof_broken=True)
    builds = run.builds_of(next((block.device for block in blocks if block.device), ""))
    build = _failed_build(builds, "base" if side == "control" else side, cell.kernel)
    if build is not None and build.failure is not None and not (arm.startswith("peer:") and tried):
        return ArmState(build.failure.status, build.failure.reason, build.failure.log or build.log)
    if not tried:
        turned = any(arm in block.arms and block.rounds for block in blocks)
        return ArmState("ok", "" if turned else "not measured", seen=turned)
    last = run.settings.quick or not any(block.metric for block in blocks)
    merged = _over_epochs(tried, last=last)
    if merged.flaky and merged.check is None and checked:  # its failure took its check with it: nothing vouches for it
        _, first = next(each for each in tried if each[1].status in TRANSIENT)
        return ArmState(first.status, first.reason, first.log, first.at)
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
    return ArmState(worst.status, worst.reason, worst.log, worst.at, check, settled=last or not once)


def _worst_check(checks: Iterable[CheckResult | None]) -> CheckResult | None:
    """The first failed check, else the one with the largest error."""
    known = [check for check in checks if check is not None]
    failed = [check for check in known if not check.ok]
    return failed[0] if failed else max(known, key=lambda c: c.max_abs or 0.0, default=None)


def same_code(run: Run) -> bool:
    """An A/A run: every side is the same tree. Its cells are judged by their intervals, or it would prove nothing."""
    return len(run.sides) > 1 and len({side.tree for side in run.sides}) == 1
