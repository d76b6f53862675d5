"""`--probe torch`: a Chrome trace per arm, which opens in Perfetto; `--probe proton`: Triton's tree, for proton-viewer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from abprof.evidence.probes.subject import Subject, each_arm, opened
from abprof.measure import Plan
from abprof.measure.pool import WorkerPool
from abprof.records import UNREADABLE, Arm, Census, Trace
from abprof.records import messages as wire
from abprof.records.errors import AbprofError
from abprof.records.names import row_file
from abprof.system import files
from abprof.system.processes import WorkerDied, WorkerFault

By = Literal["torch", "proton"]
FOLDER = "traces"  # in the run folder
MOST_BYTES = 16_000_000  # per file: events beyond are left out and counted
_CALLS, _DISCARDED = 5, 2


def traces(plan: Plan, subjects: Sequence[Subject], folder: Path, epoch: int, by: By) -> Iterator[Trace]:
    """A trace for each arm, one arm in memory at a time."""
    for pool, _, subject, arm in each_arm(plan, subjects, epoch):
        yield _traced(plan, pool, subject, arm, folder, by)


def _traced(plan: Plan, pool: WorkerPool, subject: Subject, arm: Arm, folder: Path, by: By) -> Trace:
    none = Trace(cell=subject.cell.id, arm=arm.id, by=by)
    suffix = "json" if by == "torch" else "hatchet"
    name = f"{row_file(subject.cell.id, subject.variant)}.{arm.side}.{suffix}"
    made = plan.factory.scratch / arm.side / name
    try:
        worker, reply = opened(plan, pool, subject, arm)
        calls, discarded = (1, 1) if reply.call_ns >= wire.LONG_CALL else (_CALLS, _DISCARDED)
        request = wire.Trace(arm.id, f"{arm.side}/{name}", calls, discarded, MOST_BYTES, by)
        traced: wire.Traced = worker.call(request, plan.timeout)
        census = msgspec.convert(dataclasses.asdict(traced.census), Census)
        none = msgspec.structs.replace(none, calls=calls, census=census)
        if traced.missing:
            return msgspec.structs.replace(none, missing=traced.missing)
        size = _keep(made, folder / FOLDER / name, by)
        return msgspec.structs.replace(none, file=f"{FOLDER}/{name}", bytes=size, left_out=traced.left_out)
    except (WorkerDied, WorkerFault) as failed:
        return msgspec.structs.replace(none, missing=failed.reason)
    except (AbprofError, OSError, ValueError) as failed:  # in words without the path on this machine
        why = getattr(failed, "what", "") or getattr(failed, "strerror", "") or failed
        return msgspec.structs.replace(none, missing=f"its file could not be kept: {why}")
    finally:
        made.unlink(missing_ok=True)


def _keep(made: Path, target: Path, by: By) -> int:
    """Copy a worker's file into the run folder and return its bytes. The worker runs code under test, so the file is
    verified. Raises OSError, ValueError, AbprofError."""
    if made.stat().st_size > MOST_BYTES:
        raise ValueError(f"{made.stat().st_size} bytes, and at most {MOST_BYTES} are kept")
    data = made.read_bytes()
    try:
        loose = msgspec.json.decode(data)
    except UNREADABLE as error:
        raise ValueError(f"not JSON: {error}") from None
    if by == "torch" and not (isinstance(loose, dict) and isinstance(loose.get("traceEvents"), list)):
        raise ValueError("not a trace")
    if by == "proton" and not isinstance(loose, list):
        raise ValueError("not a tree of proton's")
    files.put(target, data)
    return len(data)
