"""Probes look at cells that changed, after all timing (`--probe`): torch's profiler, ncu, perf. They report a failure in their
record's `missing` and raise nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from abprof.evidence import perf
from abprof.evidence.causes import CHANGED
from abprof.records import UNREADABLE, Arm, Cell, Census, Profile, Run, Sampled, Trace
from abprof.records import messages as wire
from abprof.records.errors import AbprofError
from abprof.records.names import row_file
from abprof.system import files
from abprof.system.processes import Worker, WorkerDied, WorkerFault

if TYPE_CHECKING:
    from abprof.measure import Plan

MOST = 8  # rows: a trace of each side is up to 16 MB
Rows = list[tuple[Cell, tuple[Arm, ...]]]  # cells in one variant, with its arm on each side


def probed(
    plan: Plan,
    judged: Callable[[Literal["running"]], Run],
    names: Sequence[str],
    folder: Path,
    epoch: int,
    say: Callable[[str], None],
) -> Iterator[Trace | Profile | Sampled]:
    """What these probes find on the rows that changed (of one branch alone: on all), at most eight.

    `epoch`: a number that no other workers have; files go into the run's `folder`.
    """
    worth = subjects(judged("running")) if names else []
    if names and not worth:
        say(f"--probe {','.join(names)}: no row changed, nothing to probe")
    elif len(worth) > MOST:
        say(f"--probe {','.join(names)}: {len(worth)} rows, {MOST} of them are probed")
    for name in names:
        for found in _looked(plan, worth[:MOST], name, folder, epoch):
            if found.missing:
                say(f"--probe {name}: {found.cell} {found.arm}: {found.missing}")
            yield found


def subjects(run: Run) -> Rows:
    """The rows that changed, the most changed first, each with the arms that differ (a side equal to base would cost a pass
    and show nothing). Of one branch alone every cell that ran."""
    ok = {(seen.cell, seen.arm) for seen in run.observations if seen.status == "ok"}
    sides = {side.id for side in run.sides}
    arms = {arm.id: arm for arm in run.arms if arm.side in sides and not arm.peer}
    changed = [row for row in run.comparisons if row.verdict in CHANGED and row.from_ in arms and row.to in arms]
    changed.sort(key=lambda row: -abs(row.pct or 0.0))
    each = [(row.cell, id) for row in changed for id in (row.from_, row.to)]
    if len(sides) == 1:
        each = [(cell.id, id) for cell in run.cells for id in arms]
    found: dict[tuple[str, str], list[Arm]] = {}
    for cell, id in dict.fromkeys(each):
        if (cell, id) in ok:
            found.setdefault((cell, arms[id].variant), []).append(arms[id])
    cells = {cell.id: cell for cell in run.cells}
    return [(cells[cell], tuple(own)) for (cell, _), own in found.items()]


def _looked(plan: Plan, rows: Rows, name: str, folder: Path, epoch: int) -> Iterator[Trace | Profile | Sampled]:
    """What one probe finds, one arm in memory at a time."""
    from abprof.evidence.ncu import capture
    from abprof.measure import WorkerPool

    if name == "ncu":
        try:
            yield from capture.captured(plan, rows, capture.PROFILE, folder, capture.find(), lambda _: None)
        except capture.Refused as refused:  # of all arms
            where = {"cell": rows[0][0].id, "arm": rows[0][1][0].id}
            yield msgspec.structs.replace(capture.PROFILE, **where, status="error", reason=refused.line)
        return
    for kernel in dict.fromkeys(cell.kernel for cell, _ in rows):
        specs = {spec.id: spec for spec in plan.specs(kernel, [side.id for side in plan.run.sides])}
        each = [(cell, arm) for cell, arms in rows if cell.kernel == kernel for arm in arms if arm.side in specs]
        with WorkerPool(plan.factory, list(specs.values()), epoch) as pool:
            for cell, arm in each:
                found: dict[str, Any] = {"cell": cell.id, "arm": arm.id}
                try:
                    worker = pool.worker(arm.side)
                    request = wire.Open(
                        cell.workload, dict(cell.params), arm.id, arm.variant, seed=plan.run.options.seed
                    )
                    reply: wire.Opened = worker.call(request, plan.timeout)
                    if reply.status != "ok":
                        raise WorkerFault(reply.status, reply.reason)
                    if name == "perf":
                        data, spec = plan.factory.scratch / "perf.data", specs[arm.side]
                        own = spec.build.path, spec.checkout.path
                        found |= perf.sampled(worker, arm.id, reply.call_ns, plan.timeout, data, own)
                    else:
                        found |= _traced(plan, worker, reply.call_ns, cell, arm, folder)
                except (WorkerDied, WorkerFault) as failed:
                    found["missing"] = failed.reason
                finally:
                    pool.close()
                yield Sampled(**found) if name == "perf" else Trace(**found)


# ---------------------------------------------------------------- torch's profiler

FOLDER = "traces"  # in the run folder
MOST_BYTES = 16_000_000  # per file: events beyond are left out and counted
_CALLS, _DISCARDED = 5, 2


def _traced(plan: Plan, worker: Worker, call_ns: float, cell: Cell, arm: Arm, folder: Path) -> dict[str, Any]:
    """Fields of the Trace of an arm. Raises WorkerDied, WorkerFault."""
    name = f"{row_file(cell.id, arm.variant)}.{arm.side}.json"
    made = plan.factory.scratch / arm.side / name
    calls, discarded = (1, 1) if call_ns >= wire.LONG_CALL else (_CALLS, _DISCARDED)
    try:
        request = wire.Phases(arm.id, calls, discarded, f"{arm.side}/{name}", MOST_BYTES)
        traced: wire.Phased = worker.call(request, plan.timeout)
        census = msgspec.convert(dataclasses.asdict(traced.census), Census)
        found: dict[str, Any] = {"calls": calls, "census": census}
        try:
            size = _keep(made, folder / FOLDER / name)
            return found | {"file": f"{FOLDER}/{name}", "bytes": size, "left_out": traced.left_out}
        except (AbprofError, OSError, ValueError) as failed:  # in words without the path on this machine
            why = getattr(failed, "what", "") or getattr(failed, "strerror", "") or failed
            return found | {"missing": f"its file could not be kept: {why}"}
    finally:
        made.unlink(missing_ok=True)


def _keep(made: Path, target: Path) -> int:
    """Copy a worker's file into the run folder and return its bytes. The worker runs code under test, so the file is
    verified. Raises OSError, ValueError, AbprofError."""
    if made.stat().st_size > MOST_BYTES:
        raise ValueError(f"{made.stat().st_size} bytes, and at most {MOST_BYTES} are kept")
    data = made.read_bytes()
    try:
        loose = msgspec.json.decode(data)
    except UNREADABLE as error:
        raise ValueError(f"not JSON: {error}") from None
    if not (isinstance(loose, dict) and isinstance(loose.get("traceEvents"), list)):
        raise ValueError("not a trace")
    files.put(target, data)
    return len(data)
