"""`--probe perf`: where the C++ code of each side spends its time, sampled by Linux's perf while a worker makes calls."""

from __future__ import annotations

import math
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from abprof.evidence.subject import Subject, each_arm, opened
from abprof.measure import Plan
from abprof.measure.pool import WorkerPool, WorkerSpec
from abprof.records import Arm, Sampled, SampledFunction
from abprof.records import messages as wire
from abprof.system import processes as proc
from abprof.system.processes import WorkerDied, WorkerFault

MOST = 200  # functions per arm
_SAMPLED_NS = 1.5e9  # of calls
_MOST_CALLS = 100_000
_HZ = 997  # a prime, so that it is not in step with anything
_ABSENT = "perf is not installed, or not on PATH (Debian: linux-perf, Ubuntu: linux-tools-$(uname -r))"
_KERNEL = Path("/proc/sys/kernel")
# A line of `perf script -F event,ip,sym,dso`: `EVENT: ADDRESS SYMBOL (OBJECT)`. C++ symbols contain blanks and brackets.
_SAMPLE = re.compile(r"\s*(?P<event>[\w/.=-]+:\w*):?\s+[0-9a-f]+ (?P<name>.*) \((?P<object>(?:/|\[|//).*)\)")


def samples(plan: Plan, subjects: Sequence[Subject], folder: Path, epoch: int) -> Iterator[Sampled]:  # noqa: ARG001 - no file is kept
    """The functions of each arm, one arm in memory at a time."""
    for pool, spec, subject, arm in each_arm(plan, subjects, epoch):
        yield _sampled(plan, pool, spec, subject, arm)


def _sampled(plan: Plan, pool: WorkerPool, spec: WorkerSpec, subject: Subject, arm: Arm) -> Sampled:
    none = Sampled(cell=subject.cell.id, arm=arm.id)
    tool = shutil.which("perf")
    if tool is None:
        return msgspec.structs.replace(none, missing=_ABSENT)
    allowed = _number("perf_event_max_sample_rate")
    hz = _HZ if allowed is None else max(1, min(_HZ, allowed))
    try:
        worker, reply = opened(plan, pool, subject, arm)
        calls = min(_MOST_CALLS, max(1, math.ceil(_SAMPLED_NS / max(reply.call_ns, 1.0))))
        data = plan.factory.scratch / "perf.data"
        with _recording(tool, hz, data, worker.pid):
            worker.call(wire.Turn(arm.id, calls, "wall_clock", cold=False), plan.timeout)
        argv = [tool, "script", "-i", str(data), "-F", "event,ip,sym,dso"]
        text = proc.output(argv, timeout=120, env=_environment())
        if text is None:
            raise WorkerDied("perf could not read its own recording")
        event, functions = count_samples(text, (spec.build.path, spec.checkout.path))
    except (WorkerDied, WorkerFault) as failed:
        return msgspec.structs.replace(none, missing=failed.reason)
    finally:
        pool.close()
    whole = sum(one.samples for one in functions)
    if not whole:
        return msgspec.structs.replace(none, missing="perf took no sample of its calls")
    return msgspec.structs.replace(
        none,
        calls=calls,
        hz=hz,
        event=event,
        samples=whole,
        functions=tuple(functions[:MOST]),
        left_out=sum(one.samples for one in functions[MOST:]),
    )


def _recording(tool: str, hz: int, data: Path, pid: int) -> proc.Watching:
    """Sample a process with all its threads while the block runs. Raises WorkerDied if not permitted, or on failure."""
    log = data.with_suffix(".log")
    for path in (data, log):
        path.unlink(missing_ok=True)
    return proc.Watching(
        [tool, "record", "-F", str(hz), "-B", "-N", "-o", str(data), "-p", str(pid)],
        env=_environment(),
        log=log,
        ready=lambda: data.exists() and data.stat().st_size > 0,
        why=lambda text: refusal(text, _number("perf_event_paranoid")),
    )


def refusal(text: str, paranoid: int | None) -> str:
    """Why perf did not record, from its output and the system's setting."""
    lines = [line.strip() for line in text.splitlines() if line.strip() not in ("", "Error:")]
    setting = f"kernel.perf_event_paranoid is {paranoid}"
    if paranoid is None:
        setting = "/proc/sys/kernel/perf_event_paranoid cannot be read"
    elif paranoid > 2:
        setting += ": `sysctl kernel.perf_event_paranoid=2` or CAP_PERFMON permits it"
    else:
        setting += ", which permits one's own processes"
    return f"perf could not record: {lines[0] if lines else 'no output'} ({setting})"


def count_samples(text: str, own: Sequence[str]) -> tuple[str, list[SampledFunction]]:
    """(event, functions) from the output of perf script, most samples first. `own`: folders of the side's own objects."""
    event, counts = "", Counter[tuple[str, str, bool]]()
    for line in text.splitlines():
        found = _SAMPLE.fullmatch(line.rstrip())
        if found:
            event = event or found["event"].partition(":")[0]
            path = found["object"].removesuffix(" (deleted)")
            mine = any(folder and Path(path).is_relative_to(folder) for folder in own)
            file = path if path.startswith("[") else Path(path).name
            if re.fullmatch(r"/tmp/perf-\d+\.map", path):  # noqa: S108 - where perf finds a JIT compiler's symbols
                file = "[jit]"
            counts[found["name"], file, mine] += 1
    made = [SampledFunction(name=name, object=file, samples=n, own=mine) for (name, file, mine), n in counts.items()]
    return event, sorted(made, key=lambda one: (-one.samples, one.name, one.object))


def _number(name: str) -> int | None:
    try:
        return int((_KERNEL / name).read_text())
    except (OSError, ValueError):
        return None


def _environment() -> dict[str, str]:
    return {**os.environ, "LC_ALL": "C", "PERF_CONFIG": "/dev/null"}  # default columns and number formats
