"""What one call launched, read from a profiled pass: names, how often, grids, and which compiled kernels they were."""

from __future__ import annotations

import json
import statistics
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from abprof.records import messages as wire

UNSEEN = "the profiler saw no kernel of this process, not even the one it was shown"
DIFFER = "calls of one pass did not launch the same"


@dataclass(frozen=True)
class Ran:
    """One thing that ran on the device, or one operation of torch's on a CPU. Times in ns; `at` is when it was launched."""

    name: str
    at: int
    start: int
    ns: int
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    registers: int | None = None
    shared_bytes: int | None = None
    key: str = ""  # of the compiled kernel

    @property
    def kind(self) -> tuple[Any, ...]:
        """What tells it from other launches of a call."""
        return self.name, self.key, self.grid, self.block, self.registers, self.shared_bytes


def census(ran: Sequence[Ran], spans: Sequence[tuple[int, int]]) -> wire.Census:
    """What each call launched, from everything that ran and the calls' (start, end). All calls must agree."""
    calls = _by_call(ran, spans)
    counts = [Counter(one.kind for one in call) for call in calls]
    if not counts:
        return wire.Census(missing="no call was profiled")
    if any(count != counts[0] for count in counts):
        return wire.Census(missing=DIFFER)
    launches = [
        wire.Launch(
            name=name,
            count=number,
            ns=statistics.median(sum(one.ns for one in call if one.kind == kind) for call in calls),
            compiled=key,
            grid=list(grid),
            block=list(block),
            registers=registers,
            shared_bytes=shared,
        )
        for kind, number in counts[0].items()
        for name, key, grid, block, registers, shared in [kind]
    ]
    return wire.Census(launches, statistics.median(map(hidden, calls)))


def hidden(call: Sequence[Ran]) -> float:
    """Nanoseconds of what ran that passed while something else ran: their sum minus their union."""
    end = union = 0
    for one in sorted(call, key=lambda one: one.start):
        union += max(0, one.start + one.ns - max(one.start, end))
        end = max(end, one.start + one.ns)
    return float(sum(one.ns for one in call) - union)


def identified(ran: Sequence[Ran], launched: Sequence[tuple[str, str]]) -> list[Ran]:
    """The same with the keys of the compiled kernels. `launched`: (name, key) as Triton launched them, in order.

    A name that ran as often as it was launched is matched in order. Otherwise (a graph that was replayed launches
    nothing) it is matched where all its launches were of one kernel.
    """
    keys: dict[str, list[str]] = {}
    for name, key in launched:
        keys.setdefault(name, []).append(key)
    ordered = sorted(ran, key=lambda one: one.at)
    times = Counter(one.name for one in ordered)
    seen: Counter[str] = Counter()
    found = []
    for one in ordered:
        known = keys.get(one.name, [])
        key = ""
        if len(known) == times[one.name]:
            key = known[seen[one.name]]
        elif len(set(known)) == 1:
            key = known[0]
        seen[one.name] += 1
        found.append(replace(one, key=key))
    return found


def geometry(trace: Path) -> dict[int, Mapping[str, Any]]:
    """Correlation id -> what Kineto's trace file says of a kernel (grid, block, registers per thread, shared memory).

    An empty answer where the file is not as expected: these are details, and the census stands without them.
    """
    try:
        events = json.loads(trace.read_text(errors="replace")).get("traceEvents", [])
        told = [e["args"] for e in events if e.get("cat") == "kernel" and isinstance(e.get("args"), dict)]
        return {int(args["correlation"]): args for args in told if "correlation" in args}
    except (OSError, ValueError, AttributeError, TypeError, KeyError):
        return {}


def dims(args: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """A grid or a block as the trace has it; () where it does not."""
    value = args.get(name)
    return tuple(value) if isinstance(value, list) and all(isinstance(n, int) for n in value) else ()


def number(args: Mapping[str, Any], name: str) -> int | None:
    """A count as the trace has it."""
    value = args.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _by_call(ran: Sequence[Ran], spans: Sequence[tuple[int, int]]) -> list[list[Ran]]:
    calls: list[list[Ran]] = [[] for _ in spans]
    starts = [start for start, _ in spans]
    for one in ran:
        call = bisect_right(starts, one.at) - 1
        if call >= 0 and one.at <= spans[call][1]:
            calls[call].append(one)
    return calls
