"""Probes look at cells that changed, after all timing (`--probe`): torch's and Triton's profilers, ncu, perf.

In: the run context and the changed rows. Out: Trace, Profile and Sampled records; a probe reports a failure in the
record's `missing` and raises nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from abprof.evidence.subject import Subject, each_arm, opened
from abprof.measure.pool import WorkerPool
from abprof.records import UNREADABLE, Arm, Census, Profile, Run, Sampled, Trace
from abprof.records import messages as wire
from abprof.records.errors import AbprofError
from abprof.records.names import row_file
from abprof.system import files
from abprof.system.processes import WorkerDied, WorkerFault

if TYPE_CHECKING:
    from abprof.measure import Plan

KNOWN = ("torch", "proton", "ncu", "perf")
MOST = 8  # rows: a trace of each side is up to 16 MB
_CHANGED = ("slower", "faster", "slight")
Evidence = Trace | Profile | Sampled
By = Literal["torch", "proton"]


def probed(
    plan: Plan,
    judged: Callable[[Literal["running"]], Run],
    names: Sequence[str],
    folder: Path,
    epoch: int,
    say: Callable[[str], None],
) -> Iterator[Evidence]:
    """What these probes find on the rows that changed (of one branch alone: on all), at most eight.

    `epoch`: a number that no other workers have; files go into the run's `folder`.
    """
    if not names:
        return
    run = judged("running")
    worth, option = subjects(run), f"--probe {','.join(names)}"
    if not worth:
        say(f"{option}: no row changed, nothing to probe")
    elif len(worth) > MOST:
        say(f"{option}: {len(worth)} {'rows' if len(run.sides) == 1 else 'rows changed'}, {MOST} of them are probed")
    for name in names:
        for found in _probe(name)(plan, worth[:MOST], folder, epoch):
            if found.missing:
                say(f"--probe {name}: {found.cell} {found.arm}: {found.missing}")
            yield found


def subjects(run: Run) -> list[Subject]:
    """The rows that changed, the most changed first, each with the arms that differ (a side equal to base would cost a pass
    and show nothing). Of one branch alone every cell that ran."""
    ok = {(seen.cell, seen.arm) for seen in run.observations if seen.status == "ok"}
    sides = {side.id for side in run.sides}
    arms = {arm.id: arm for arm in run.arms if arm.side in sides and not arm.peer}
    found: dict[tuple[str, str], set[str]] = {}
    if len(sides) == 1:
        for cell, arm in ((cell, arm) for cell in run.cells for arm in arms.values()):
            found.setdefault((cell.id, arm.variant), set()).add(arm.id)
    else:
        changed = [row for row in run.comparisons if row.verdict in _CHANGED and row.from_ in arms and row.to in arms]
        for row in sorted(changed, key=lambda row: -abs(row.pct or 0.0)):
            found.setdefault((row.cell, arms[row.to].variant), set()).update((row.from_, row.to))
    cells = {cell.id: cell for cell in run.cells}
    made = []
    for (id, variant), ids in found.items():
        own = tuple(arm for arm in arms.values() if arm.id in ids and (id, arm.id) in ok)
        made += [Subject(cells[id], variant, own)] if own else []
    return made


def _probe(name: str) -> Callable[[Plan, Sequence[Subject], Path, int], Iterator[Evidence]]:
    from abprof.evidence import perf
    from abprof.evidence.ncu import capture

    if name == "torch":
        return partial(traces, by="torch")
    if name == "proton":
        return partial(traces, by="proton")
    return capture.profiles if name == "ncu" else perf.samples


# ---------------------------------------------------------------- torch's and Triton's profilers


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
