"""Probe changed cells with torch's profiler, ncu or perf, after all timing (`--probe`). A failed probe raises no error:
its record says why in `missing`."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from abprof.evidence.causes import CHANGED
from abprof.evidence.ncu.capture import PROFILE, Ncu, Refused
from abprof.records import UNREADABLE, Arm, Cell, Profile, Run, Sampled, SampledFunction, Trace
from abprof.records import messages as wire
from abprof.records.errors import AbprofError
from abprof.records.names import row_file
from abprof.system import doorway, files
from abprof.system import processes as proc
from abprof.system.processes import Worker, WorkerDied, WorkerFault

if TYPE_CHECKING:
    from abprof.measure import Plan

Found = Trace | Profile | Sampled
MOST = 8  # rows to probe at most: a trace of each side is up to 16 MB
Rows = list[tuple[Cell, tuple[Arm, ...]]]  # cells in one variant, with its arm on each side


def probed(
    plan: Plan, run: Run, names: Sequence[str], folder: Path, epoch: int, say: Callable[[str], None]
) -> Iterator[Found]:
    """Run the probes `names` on the first eight cells of `subjects()`, and yield the records.

    `epoch`: an epoch number that the run has not used. `folder`: the run folder, where probes write their files.
    """
    worth = subjects(run)
    if not worth:
        say(f"--probe {','.join(names)}: no row changed, so no row is probed")
    elif len(worth) > MOST:
        say(f"--probe {','.join(names)}: {MOST} of {len(worth)} rows are probed")
    for name in names:
        for found in _looked(plan, worth[:MOST], name, folder, epoch):
            if found.missing:
                say(f"--probe {name}: {found.cell} {found.arm}: {found.missing}")
            yield found


def subjects(run: Run) -> Rows:
    """Return the cells to probe, each with the arms to compare: cells whose time changed, largest change first. In a
    run with one side, these are all cells that ran."""
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


def _looked(plan: Plan, rows: Rows, name: str, folder: Path, epoch: int) -> Iterator[Found]:
    if name == "ncu":
        try:
            yield from Ncu.find().captured(plan, rows, PROFILE, folder, lambda _: None)
        except Refused as refused:  # holds for all arms
            where = {"cell": rows[0][0].id, "arm": rows[0][1][0].id}
            yield msgspec.structs.replace(PROFILE, **where, status="error", reason=refused.line)
        return
    seed, sides = plan.run.options.seed, [side.id for side in plan.run.sides]
    for kernel in dict.fromkeys(cell.kernel for cell, _ in rows):
        with plan.pool(kernel, sides, epoch) as pool:
            own = [(cell, arm) for cell, arms in rows if cell.kernel == kernel for arm in arms]
            each = [(cell, arm) for cell, arm in own if arm.side in pool.start_order]
            for cell, arm in each:
                found: dict[str, Any] = {"cell": cell.id, "arm": arm.id}
                try:
                    worker = pool.worker(arm.side)
                    request = wire.Open(cell.workload, dict(cell.params), arm.id, arm.variant, seed=seed)
                    reply: wire.Opened = worker.call(request, plan.factory.timeout)
                    if name == "perf":
                        data = plan.factory.scratch.with_name("perf.data")  # where no side can write
                        built = [b.path for b in plan.run.builds if (b.side, b.kernel) == (arm.side, kernel)]
                        roots = [*built, plan.checkouts[arm.side].path]
                        found |= _perf(worker, arm.id, reply.call_ns, plan.factory.timeout, data, roots)
                    else:
                        found |= _traced(plan, worker, reply.call_ns, cell, arm, folder)
                except (WorkerDied, WorkerFault) as failed:
                    found["missing"] = failed.reason
                finally:
                    pool.close()
                yield Sampled(**found) if name == "perf" else Trace(**found)


# ---------------------------------------------------------------- torch's profiler

FOLDER = "traces"  # in the run folder
MOST_BYTES = 16_000_000  # per file: events beyond this size are left out and counted
_CALLS, _DISCARDED = 5, 2


def _traced(plan: Plan, worker: Worker, call_ns: float, cell: Cell, arm: Arm, folder: Path) -> dict[str, Any]:
    name = f"{row_file(cell.id, arm.variant)}.{arm.side}.json"
    made = plan.factory.scratch / arm.side / name
    calls, discarded = (1, 1) if call_ns >= wire.LONG_CALL else (_CALLS, _DISCARDED)
    try:
        request = wire.Phases(arm.id, calls, discarded, f"{arm.side}/{name}", MOST_BYTES)
        traced: wire.Phased = worker.call(request, plan.factory.timeout)
        found: dict[str, Any] = {"calls": calls, "census": traced.census}
        try:
            size = _keep(made, plan.factory.scratch, folder / FOLDER / name)
            return found | {"file": f"{FOLDER}/{name}", "bytes": size, "left_out": traced.left_out}
        except (AbprofError, OSError, ValueError) as failed:  # without this machine's path
            why = getattr(failed, "what", "") or getattr(failed, "strerror", "") or failed
            return found | {"missing": f"the file could not be kept: {why}"}
    finally:
        with contextlib.suppress(OSError):
            made.unlink(missing_ok=True)


def _keep(made: Path, scratch: Path, target: Path) -> int:
    """Copy a worker's trace into the run folder and return its size in bytes. Raises ValueError if the file is too
    large or not a trace, OSError or AbprofError if it cannot be copied."""
    data = doorway.read(made, MOST_BYTES + 1, scratch)
    if len(data) > MOST_BYTES:
        raise ValueError(f"more than {MOST_BYTES} bytes")
    try:
        loose = msgspec.json.decode(data)
    except UNREADABLE as error:
        raise ValueError(f"not JSON: {error}") from None
    if not (isinstance(loose, dict) and isinstance(loose.get("traceEvents"), list)):
        raise ValueError("the JSON has no list traceEvents")
    files.put(target, data)
    return len(data)


# ---------------------------------------------------------------- perf

_MOST_FUNCTIONS = 200  # per arm
_SAMPLED_NS = 1.5e9  # duration of the sampled calls
_MOST_CALLS = 100_000
_HZ = 997  # samples a second: a prime, so that no periodic work is in step with the samples
_ENVIRONMENT = {"LC_ALL": "C", "PERF_CONFIG": "/dev/null"}  # default columns and number formats
# A line of `perf script -F event,ip,sym,symoff,dso`: `EVENT: ADDRESS SYMBOL+OFFSET (OBJECT)`. C++ symbols contain blanks
# and brackets.
_SAMPLE = re.compile(
    r"\s*(?P<event>[\w/.=-]+:\w*):?\s+[0-9a-f]+ (?P<name>.*?)(?:\+(?P<at>0x[0-9a-f]+))? \((?P<object>(?:/|\[|//).*)\)"
)


def _perf(worker: Worker, arm: str, call_ns: float, timeout: float, data: Path, own: Sequence[str]) -> dict[str, Any]:
    """Sample the arm's calls with perf into the file `data`, and return the fields of a Sampled record.

    Raises WorkerDied if perf is missing, not permitted or fails.
    """
    tool = shutil.which("perf")
    if tool is None:
        raise WorkerDied("perf is not on PATH (Debian: linux-perf, Ubuntu: linux-tools-$(uname -r))")
    hz = min(_HZ, _setting("perf_event_max_sample_rate") or _HZ)
    calls = min(_MOST_CALLS, max(1, math.ceil(_SAMPLED_NS / max(call_ns, 1.0))))
    log, env = data.with_suffix(".log"), {**os.environ, **_ENVIRONMENT}
    for path in (data, log):
        path.unlink(missing_ok=True)
    argv = [tool, "record", "-F", str(hz), "-B", "-N", "-o", str(data), "-p", str(worker.pid)]
    with proc.watching(argv, env=env, log=log, ready=lambda: data.exists() and data.stat().st_size > 0, why=_refusal):
        worker.call(wire.Turn(arm, calls, "wall_clock", cold=False), timeout)
    script = [tool, "script", "-i", str(data), "-F", "event,ip,sym,symoff,dso"]
    event, functions = count_samples(proc.output_lines(script, timeout=timeout, env=env), own)
    if not functions:
        raise WorkerDied("perf took no sample of the calls")
    kept, rest = functions[:_MOST_FUNCTIONS], sum(one.samples for one in functions[_MOST_FUNCTIONS:])
    whole = sum(one.samples for one in kept) + rest
    return {"calls": calls, "hz": hz, "event": event, "samples": whole, "functions": tuple(kept), "left_out": rest}


def _refusal(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() not in ("", "Error:")]
    paranoid = _setting("perf_event_paranoid")
    advice = "needed: `sysctl kernel.perf_event_paranoid=2` or CAP_PERFMON"
    return f"perf could not record: {lines[0] if lines else 'no output'} (perf_event_paranoid is {paranoid}; {advice})"


def count_samples(printed: Iterable[str], own: Sequence[str]) -> tuple[str, list[SampledFunction]]:
    """Return the sampled event, and the functions with most samples first, from the lines of `perf script`. `own`:
    folders that hold the side's code."""
    event, counts, offsets = "", Counter[tuple[str, str, bool]](), dict[tuple[str, str, bool], Counter[str]]()
    for line in printed:
        found = _SAMPLE.fullmatch(line.rstrip())
        if found:
            event = event or found["event"].partition(":")[0]
            path = found["object"].removesuffix(" (deleted)")
            mine = any(folder and Path(path).is_relative_to(folder) for folder in own)
            key = found["name"], path if path.startswith("[") else Path(path).name, mine
            counts[key] += 1
            if mine and found["at"]:
                offsets.setdefault(key, Counter())[found["at"]] += 1
    made = [SampledFunction(name=key[0], object=key[1], samples=n, own=key[2], offsets=dict(offsets.get(key, {})))
            for key, n in counts.items()]  # fmt: skip
    return event, sorted(made, key=lambda one: (-one.samples, one.name, one.object))


def _setting(name: str) -> int | None:
    try:
        return int(Path("/proc/sys/kernel", name).read_text())
    except (OSError, ValueError):
        return None
