"""Arms under Nsight Compute: each in a foreground worker of its own, alone, with the counters of its calls."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from abprof.evidence.ncu import metrics, recording, tool, traffic
from abprof.evidence.probes.subject import Subject
from abprof.measure import Plan, foreground
from abprof.measure.pool import WorkerSpec
from abprof.records import Arm, Cell, KernelProfile, Profile
from abprof.records import messages as wire
from abprof.records.errors import AbprofError
from abprof.records.names import row_file
from abprof.records.quantities import refuse_calls
from abprof.system.processes import WorkerDied

FOLDER = "ncu"  # in the run folder


@dataclass(frozen=True)
class Order:
    """Which metrics to record, of how many calls."""

    purpose: Literal["memory", "profile"]
    metrics: tuple[str, ...]
    warmup: int
    runs: int


PROFILE = Order("profile", metrics.PROFILE, 2, 3)  # a dozen passes for each launch


def memory(warmup: int, runs: int) -> Order:
    """Bytes only: one pass or two. Raises AbprofError for impossible numbers of calls."""
    refuse_calls(warmup, runs)
    return Order("memory", metrics.MEMORY, warmup, runs)


def captured(
    plan: Plan,
    rows: Sequence[tuple[Cell, Sequence[Arm]]],
    order: Order,
    folder: Path,
    ncu: tool.Ncu,
    say: Callable[[str], None],
) -> Iterator[Profile]:
    """The profile of each arm of these cells, with the reason of what failed. Raises Refused if no recording can succeed."""
    sides = [side.id for side in plan.run.sides]
    for cell, arms in rows:
        specs = {spec.id: spec for spec in plan.specs(cell.kernel, sides)}
        for arm in arms:
            empty = Profile(cell=cell.id, arm=arm.id, purpose=order.purpose, warmup=order.warmup, runs=order.runs)
            build = plan.build(arm.side, cell.kernel)
            if cell.skip:
                made = msgspec.structs.replace(empty, status="unsupported", reason=cell.skip)
            elif build is None:
                made = msgspec.structs.replace(empty, status="missing")
            elif build.failure:
                made = msgspec.structs.replace(empty, status=build.failure.status, reason=build.failure.reason)
            else:
                made, ncu = _one(plan, specs[arm.side], cell, arm, order, folder, ncu)
            size = f"{len(made.kernels)} kernels" if len(made.kernels) != 1 else "1 kernel"
            say(f"  {cell.id}  {arm.id}: {size if made.status == 'ok' else f'{made.status}, {made.reason}'}")
            yield made


def profiles(plan: Plan, subjects: Sequence[Subject], folder: Path, epoch: int) -> Iterator[Profile]:
    """`--probe ncu`: the metrics of each arm; if no recording can succeed, one record with the reason."""
    del epoch  # each arm has a process of its own
    rows = [(subject.cell, subject.arms) for subject in subjects]
    try:
        yield from captured(plan, rows, PROFILE, folder, tool.find(os.environ), lambda _: None)
    except tool.Refused as refused:
        cell, arms = rows[0]
        yield Profile(cell=cell.id, arm=arms[0].id, purpose="profile", warmup=PROFILE.warmup, runs=PROFILE.runs,
                      status="error", reason=refused.line)  # fmt: skip


def _one(
    plan: Plan, spec: WorkerSpec, cell: Cell, arm: Arm, order: Order, folder: Path, ncu: tool.Ncu
) -> tuple[Profile, tool.Ncu]:
    stem = f"{row_file(cell.id, f'peer {arm.peer}' if arm.peer else arm.variant)}.{arm.side}"
    report, page = folder / FOLDER / f"{stem}.ncu-rep", folder / FOLDER / f"{stem}.csv"
    report.parent.mkdir(exist_ok=True)
    report.unlink(missing_ok=True)  # of an earlier recording
    empty = Profile(cell=cell.id, arm=arm.id, purpose=order.purpose, warmup=order.warmup, runs=order.runs,
                    ncu=ncu.version)  # fmt: skip
    seed = plan.run.options.seed
    job = foreground.job(plan.factory, spec, cell, arm, warmup=order.warmup, runs=order.runs, seed=seed, facts=True)
    log = plan.factory.logs / f"ncu-{stem}.log"
    try:
        did = tool.record(ncu, job.argv, env=job.env, cwd=job.cwd, metrics=order.metrics, to=report, log=log,
                          nvtx=wire.CALL_RANGE)  # fmt: skip
    except WorkerDied as failed:
        return msgspec.structs.replace(empty, status="error", reason=failed.reason), ncu
    if did.failed and not job.result.exists():  # ncu ended the worker
        return msgspec.structs.replace(empty, status="error", reason=f"ncu: {did.failed}"), did.ncu
    outcome = job.outcome(did.code)
    if outcome.status != "ok":
        return msgspec.structs.replace(empty, status=outcome.status, reason=outcome.reason), did.ncu
    kept = {"file": f"{FOLDER}/{report.name}", "bytes": report.stat().st_size} if report.exists() else {}
    try:
        if did.error:
            on_cpu = "; this is a CPU, and ncu sees only a GPU's kernels" if plan.device.kind == "cpu" else ""
            raise AbprofError(did.error + on_cpu)
        tool.raw_page(did.ncu, report, env=job.env, to=page)
        kernels, notes = read(page, order)
    except AbprofError as failed:
        reason = f"{failed.what} ({failed.advice})" if failed.advice else failed.what
        return msgspec.structs.replace(empty, status="error", reason=reason, **kept), did.ncu
    if did.ncu.unknown:
        notes = (*notes, f"this ncu has no {', '.join(sorted(did.ncu.unknown))} here")
    facts = {level: outcome.facts.get(f"minimum_{level}_bytes") for level in recording.LEVELS}
    minimum = {level: float(value) for level, value in facts.items() if isinstance(value, int | float)}
    kept |= {"csv": f"{FOLDER}/{page.name}", "kernels": kernels, "notes": notes, "minimum": minimum}
    return msgspec.structs.replace(empty, **kept), did.ncu


def read(page: Path, order: Order) -> tuple[tuple[KernelProfile, ...], tuple[str, ...]]:
    """(kernels of a call, notes) from a raw page, warm-ups dropped. Raises AbprofError."""
    calls = traffic.count(recording.read(page, order.metrics), warmup=order.warmup, runs=order.runs, one_shape=True)
    return tuple(_kernel(one, order.metrics) for shape in calls.shapes for one in shape), calls.notes


def _kernel(one: traffic.Counted, names: Sequence[str]) -> KernelProfile:
    """Means over launches; rates and ratios weighted by the launches' time. Metrics that a launch lacks are left out."""
    found = {}
    for name in names:
        if all(name in launch.values for launch in one.kept):
            times = [launch.values.get(metrics.TIME, 0.0) for launch in one.kept]
            weights = times if not metrics.adds_up(name) and all(times) else [1.0] * len(times)
            total = sum(launch.values[name] * weight for launch, weight in zip(one.kept, weights, strict=True))
            found[name] = total / sum(weights)
    name, grid, block = one.name
    return KernelProfile(
        name=name,
        grid=grid,
        block=block,
        kind="other" if traffic.moves_only(name) else "compute",
        launches=one.launches,
        launches_a_call=one.a_call,
        metrics=found,
    )
