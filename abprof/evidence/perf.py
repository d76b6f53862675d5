"""`--probe perf`: where the C++ code of a side spends its time, sampled by Linux's perf while a worker makes calls."""

from __future__ import annotations

import math
import os
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from abprof.records import SampledFunction
from abprof.records import messages as wire
from abprof.system import processes as proc
from abprof.system.processes import Worker, WorkerDied

MOST = 200  # functions per arm
_SAMPLED_NS = 1.5e9  # of calls
_MOST_CALLS = 100_000
_HZ = 997  # a prime, so that it is not in step with anything
_ENVIRONMENT = {"LC_ALL": "C", "PERF_CONFIG": "/dev/null"}  # default columns and number formats
# A line of `perf script -F event,ip,sym,dso`: `EVENT: ADDRESS SYMBOL (OBJECT)`. C++ symbols contain blanks and brackets.
_SAMPLE = re.compile(r"\s*(?P<event>[\w/.=-]+:\w*):?\s+[0-9a-f]+ (?P<name>.*) \((?P<object>(?:/|\[|//).*)\)")


def sampled(worker: Worker, arm: str, call_ns: float, timeout: float, data: Path, own: Sequence[str]) -> dict[str, Any]:
    """Fields of a Sampled of this worker's calls. `data`: perf's file; `own`: folders of the side's own objects.

    Raises WorkerDied with the reason if perf is missing, not permitted or fails.
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
    text = proc.output([tool, "script", "-i", str(data), "-F", "event,ip,sym,dso"], timeout=120, env=env)
    event, functions = count_samples(text or "", own)
    if not functions:
        raise WorkerDied("perf took no sample of its calls" if text else "perf could not read its own recording")
    kept, rest = functions[:MOST], sum(one.samples for one in functions[MOST:])
    whole = sum(one.samples for one in kept) + rest
    return {"calls": calls, "hz": hz, "event": event, "samples": whole, "functions": tuple(kept), "left_out": rest}


def _refusal(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() not in ("", "Error:")]
    paranoid = _setting("perf_event_paranoid")
    advice = "needed: `sysctl kernel.perf_event_paranoid=2` or CAP_PERFMON"
    return f"perf could not record: {lines[0] if lines else 'no output'} (perf_event_paranoid is {paranoid}; {advice})"


def count_samples(text: str, own: Sequence[str]) -> tuple[str, list[SampledFunction]]:
    """(event, functions) from the output of perf script, most samples first. `own`: folders of the side's own objects."""
    event, counts = "", Counter[tuple[str, str, bool]]()
    for line in text.splitlines():
        found = _SAMPLE.fullmatch(line.rstrip())
        if found:
            event = event or found["event"].partition(":")[0]
            path = found["object"].removesuffix(" (deleted)")
            mine = any(folder and Path(path).is_relative_to(folder) for folder in own)
            counts[found["name"], path if path.startswith("[") else Path(path).name, mine] += 1
    made = [SampledFunction(name=name, object=file, samples=n, own=mine) for (name, file, mine), n in counts.items()]
    return event, sorted(made, key=lambda one: (-one.samples, one.name, one.object))


def _setting(name: str) -> int | None:
    try:
        return int(Path("/proc/sys/kernel", name).read_text())
    except (OSError, ValueError):
        return None
