"""`--probe torch`: each side's calls under torch's profiler, as a Chrome trace that opens in Perfetto; `--probe proton`: under
Triton's, as the tree that proton-viewer reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from abprof.devices.protocols import Subject
from abprof.measure.epochs import Ground
from abprof.measure.pool import Crew, posts
from abprof.records import UNREADABLE, Arm, Census, Trace
from abprof.records import messages as wire
from abprof.records.errors import AbprofError
from abprof.records.names import row_file
from abprof.system import files as disk
from abprof.system.processes import WorkerDied, WorkerFault

By = Literal["torch", "proton"]
FOLDER = "traces"  # in the run folder
MOST_BYTES = 16_000_000  # of a file: what has no room is left out, and counted
_CALLS, _DISCARDED = 5, 2


def traces(ground: Ground, subjects: Sequence[Subject], folder: Path, epoch: int) -> Iterator[Trace]:
    """A trace for each arm of these cells, one arm in memory at a time, or the reason why there is none."""
    yield from _all(ground, subjects, folder, epoch, "torch")


def trees(ground: Ground, subjects: Sequence[Subject], folder: Path, epoch: int) -> Iterator[Trace]:
    """The same by proton."""
    yield from _all(ground, subjects, folder, epoch, "proton")


def _all(ground: Ground, subjects: Sequence[Subject], folder: Path, epoch: int, by: By) -> Iterator[Trace]:
    sides = [side.id for side in ground.run.sides]
    for kernel in dict.fromkeys(subject.cell.kernel for subject in subjects):
        stand = posts(ground.checkouts, ground.packages[kernel], ground.build, sides)
        present = {post.id for post in stand}
        with Crew(ground.shop, stand, epoch) as crew:
            for subject in (subject for subject in subjects if subject.cell.kernel == kernel):
                for arm in subject.arms:
                    if arm.side in present:
                        yield _traced(ground, crew, subject, arm, folder, by)


def file_name(cell: str, variant: str, side: str, by: By = "torch") -> str:
    """CELL-HASH.SIDE.json, of proton .hatchet: a row's traces begin alike, and no two rows share a name."""
    return f"{row_file(cell, variant)}.{side}.{'json' if by == 'torch' else 'hatchet'}"


def _traced(ground: Ground, crew: Crew, subject: Subject, arm: Arm, folder: Path, by: By) -> Trace:
    none = Trace(cell=subject.cell.id, arm=arm.id, by=by)
    name = file_name(subject.cell.id, subject.variant, arm.side, by)
    made = ground.shop.scratch / arm.side / name
    try:
        calls, reply = _asked(ground, crew, subject, arm, f"{arm.side}/{name}", by)
        counted = msgspec.convert(dataclasses.asdict(reply.census), Census)
        none = msgspec.structs.replace(none, calls=calls, census=counted)
        if reply.missing:
            return msgspec.structs.replace(none, missing=reply.missing)
        size = _keep(made, folder / FOLDER / name, by)
        return msgspec.structs.replace(none, file=f"{FOLDER}/{name}", bytes=size, left_out=reply.left_out)
    except (WorkerDied, WorkerFault) as failed:
        return msgspec.structs.replace(none, missing=failed.reason)
    except (AbprofError, OSError, ValueError) as failed:  # in words without the path, which is of this machine
        why = getattr(failed, "what", "") or getattr(failed, "strerror", "") or failed
        return msgspec.structs.replace(none, missing=f"its file could not be kept: {why}")
    finally:
        made.unlink(missing_ok=True)
        crew.close()


def _asked(ground: Ground, crew: Crew, subject: Subject, arm: Arm, name: str, by: By) -> tuple[int, wire.Traced]:
    """(calls that are read, what the worker said). Raises WorkerDied, WorkerFault."""
    worker, cell = crew.worker(arm.side), subject.cell
    request = wire.Open(cell.workload, dict(cell.params), arm.id, arm.variant, seed=ground.run.options.seed)
    opened: wire.Opened = worker.call(request, ground.timeout)
    if opened.status != "ok":
        raise WorkerFault(opened.status, opened.reason)
    calls, discarded = (1, 1) if opened.call_ns >= wire.LONG_CALL else (_CALLS, _DISCARDED)
    reply: wire.Traced = worker.call(wire.Trace(arm.id, name, calls, discarded, MOST_BYTES, by), ground.timeout)
    return calls, reply


def _keep(made: Path, target: Path, by: By) -> int:
    """Move a worker's file into the run folder: what runs the code under test is asked for no more than it may write.
    Returns its bytes. Raises OSError, ValueError, AbprofError."""
    if made.stat().st_size > MOST_BYTES:
        raise ValueError(f"{made.stat().st_size} bytes, and at most {MOST_BYTES} are kept")
    data = made.read_bytes()
    try:
        loose = msgspec.json.decode(data)
    except UNREADABLE as error:
        raise ValueError(f"not JSON: {error}") from None
    whole = isinstance(loose, dict) and isinstance(loose.get("traceEvents"), list)
    if not (whole if by == "torch" else isinstance(loose, list)):
        raise ValueError("not a trace" if by == "torch" else "not a tree of proton's")
    disk.put(target, data)
    return len(data)
