"""An arm of a cell under Nsight Compute: a worker in the foreground, alone, and what its calls counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from abprof.evidence.memory import census, recording, traffic
from abprof.evidence.ncu import metrics, tool
from abprof.measure import foreground
from abprof.measure.epochs import Ground
from abprof.measure.pool import Post, posts
from abprof.records import Arm, Cell, KernelProfile, Profile
from abprof.records import messages as wire
from abprof.records.errors import AbprofError
from abprof.records.names import row_file
from abprof.system.processes import WorkerDied

FOLDER = "ncu"  # in the run folder
LEVELS = tuple(recording.LEVELS)


@dataclass(frozen=True)
class Order:
    """What is asked of an arm, and of how many calls."""

    purpose: Literal["memory", "profile"]
    metrics: tuple[str, ...]
    warmup: int
    runs: int


def memory(warmup: int, runs: int) -> Order:
    """Bytes alone: one pass or two. Raises AbprofError for numbers of calls that nothing can be counted by."""
    census.refuse_odd(warmup, runs)
    return Order("memory", metrics.MEMORY, warmup, runs)


PROFILE = Order("profile", metrics.PROFILE, 2, 3)  # a dozen passes for each launch


def captured(
    ground: Ground,
    rows: Sequence[tuple[Cell, Sequence[Arm]]],
    order: Order,
    folder: Path,
    ncu: tool.Ncu,
    say: Callable[[str], None],
) -> Iterator[Profile]:
    """Each arm of these cells, in a process of its own. What went wrong is in its record; raises Refused where no
    recording can succeed."""
    sides = [side.id for side in ground.run.sides]
    for cell, arms in rows:
        stand = {post.id: post for post in posts(ground.checkouts, ground.packages[cell.kernel], ground.build, sides)}
        for arm in arms:
            made = _without(ground, cell, arm, order)
            if made is None:
                made, ncu = _one(ground, stand[arm.side], cell, arm, order, folder, ncu)
            size = f"{len(made.kernels)} kernels" if len(made.kernels) != 1 else "1 kernel"
            say(f"  {cell.id}  {arm.id}: {size if made.status == 'ok' else f'{made.status}, {made.reason}'}")
            yield made


def _without(ground: Ground, cell: Cell, arm: Arm, order: Order) -> Profile | None:
    """The record of an arm that cannot run, and None of one that can."""
    empty = Profile(cell=cell.id, arm=arm.id, purpose=order.purpose, warmup=order.warmup, runs=order.runs)
    if cell.skip:
        return msgspec.structs.replace(empty, status="unsupported", reason=cell.skip)
    build = ground.build(arm.side, cell.kernel)
    if build is None or build.failure:
        status, reason = (build.failure.status, build.failure.reason) if build and build.failure else ("missing", "")
        return msgspec.structs.replace(empty, status=status, reason=reason)
    return None


def _one(
    ground: Ground, post: Post, cell: Cell, arm: Arm, order: Order, folder: Path, ncu: tool.Ncu
) -> tuple[Profile, tool.Ncu]:
    stem = f"{row_file(cell.id, f'peer {arm.peer}' if arm.peer else arm.variant)}.{arm.side}"
    report, page = folder / FOLDER / f"{stem}.ncu-rep", folder / FOLDER / f"{stem}.csv"
    report.parent.mkdir(exist_ok=True)
    report.unlink(missing_ok=True)  # of an earlier look, which must not pass for this one's
    empty = Profile(cell=cell.id, arm=arm.id, purpose=order.purpose, warmup=order.warmup, runs=order.runs,
                    ncu=ncu.version)  # fmt: skip
    seed = ground.run.options.seed
    job = foreground.job(ground.shop, post, cell, arm, warmup=order.warmup, runs=order.runs, seed=seed, facts=True)
    log = ground.shop.logs / f"ncu-{stem}.log"
    try:
        did = tool.record(ncu, job.argv, env=job.env, cwd=job.cwd, metrics=order.metrics, to=report, log=log,
                          nvtx=wire.CALL_RANGE)  # fmt: skip
    except WorkerDied as failed:
        return msgspec.structs.replace(empty, status="error", reason=failed.reason), ncu
    if did.failed and not job.told.exists():  # ncu took the worker with it
        return msgspec.structs.replace(empty, status="error", reason=f"ncu: {did.failed}"), did.ncu
    told = job.outcome(did.code)
    if told.status != "ok":
        return msgspec.structs.replace(empty, status=told.status, reason=told.reason), did.ncu
    kept = {"file": f"{FOLDER}/{report.name}", "bytes": report.stat().st_size} if report.exists() else {}
    try:
        if did.error:
            on_cpu = "; this is a CPU, and ncu sees a GPU's kernels alone" if ground.device.kind == "cpu" else ""
            raise AbprofError(did.error + on_cpu)
        tool.raw_page(did.ncu, report, env=job.env, to=page)
        kernels, notes = read(page, order)
    except AbprofError as failed:
        return msgspec.structs.replace(empty, status="error", reason=_in_words(failed), **kept), did.ncu
    if did.ncu.unknown:
        notes = (*notes, f"this ncu has no {', '.join(sorted(did.ncu.unknown))} here")
    kept |= {"csv": f"{FOLDER}/{page.name}", "kernels": kernels, "notes": notes, "minimum": minimum(told.facts)}
    return msgspec.structs.replace(empty, **kept), did.ncu


def _in_words(error: AbprofError) -> str:
    """Without where it was read: that is in the record."""
    return f"{error.what} ({error.advice})" if error.advice else error.what


def read(page: Path, order: Order) -> tuple[tuple[KernelProfile, ...], tuple[str, ...]]:
    """The kernels of a call from a raw page, warm-ups dropped, and how launches were counted. Raises AbprofError."""
    counted = census.take_one(recording.read(page, order.metrics), warmup=order.warmup, runs=order.runs)
    kernels = tuple(_kernel(one, order.metrics) for shape in counted.shapes for one in shape)
    return kernels, counted.notes


def _kernel(one: census.Counted, names: Sequence[str]) -> KernelProfile:
    found = {name: _mean(name, [launch.values for launch in one.kept]) for name in names}
    name, grid, block = one.name
    return KernelProfile(
        name=name,
        grid=grid,
        block=block,
        kind="other" if traffic.moves_only(name) else "compute",
        launches=one.launches,
        launches_a_call=one.a_call,
        metrics={name: value for name, value in found.items() if value is not None},
    )


def _mean(name: str, launches: Sequence[Mapping[str, float]]) -> float | None:
    """Of a launch; a rate's or a ratio's is weighted by the launches' time. None where one of them lacks it."""
    if any(name not in values for values in launches):
        return None
    times = [values.get(metrics.TIME, 0.0) for values in launches]
    weights = times if not metrics.adds_up(name) and all(times) else [1.0] * len(launches)
    return sum(values[name] * weight for values, weight in zip(launches, weights, strict=True)) / sum(weights)


def minimum(facts: Mapping[str, object]) -> dict[str, float]:
    """What the workload says that a call moves at least, by level, bytes."""
    told = {level: facts.get(f"minimum_{level}_bytes") for level in LEVELS}
    return {level: float(value) for level, value in told.items() if isinstance(value, int | float)}
