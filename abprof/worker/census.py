"""What one call launched, from the events of a profiled pass: names, counts, grids, compiled kernels, and marked ranges."""

from __future__ import annotations

import json
import statistics
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from abprof.records import messages as wire

UNSEEN = "the profiler recorded no kernel of this process, not even abprof's own test kernel"
DIFFER = "calls of one pass did not launch the same"


@dataclass(frozen=True)
class Ran:
    """One thing that ran on the device, or one torch operation on a CPU. Times in ns; `at` is when it was launched."""

    name: str
    at: int
    start: int
    ns: int
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    registers: int | None = None
    shared_bytes: int | None = None
    key: str = ""  # of the compiled kernel

    @classmethod
    def detailed(cls, name: str, at: int, start: int, ns: int, args: Mapping[str, Any]) -> Self:
        """With grid, block and resources as a Kineto trace has them in `args`; what is malformed is left out."""

        def dims(name: str) -> tuple[int, ...]:
            value = args.get(name)
            return tuple(value) if isinstance(value, list) and all(isinstance(n, int) for n in value) else ()

        def number(name: str) -> int | None:
            value = args.get(name)
            return value if isinstance(value, int) and not isinstance(value, bool) else None

        registers, shared = number("registers per thread"), number("shared memory")
        return cls(name, at, start, ns, dims("grid"), dims("block"), registers, shared)

    @property
    def kind(self) -> tuple[Any, ...]:
        """Launches of one kind are counted together."""
        return self.name, self.key, self.grid, self.block, self.registers, self.shared_bytes


@dataclass(frozen=True)
class Marked:
    """One range as the host went through it. Times in ns."""

    name: str
    start: int
    end: int


def census(ran: Sequence[Ran], spans: Sequence[tuple[int, int]]) -> wire.Census:
    """What each call launched, from everything that ran and the calls' (start, end). All calls must agree."""
    calls: list[list[Ran]] = [[] for _ in spans]
    starts = [start for start, _ in spans]
    for one in ran:
        call = bisect_right(starts, one.at) - 1
        if call >= 0 and one.at <= spans[call][1]:
            calls[call].append(one)
    counts = [Counter(one.kind for one in each) for each in calls]
    if not counts:
        return wire.Census(missing="no call was profiled")
    if any(count != counts[0] for count in counts):
        return wire.Census(missing=DIFFER)
    launches = [
        wire.Launch(
            name=name,
            count=number,
            ns=statistics.median(sum(one.ns for one in each if one.kind == kind) for each in calls),
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
    """Time (ns) during which more than one thing ran: the sum of all times minus their union."""
    end = union = 0
    for one in sorted(call, key=lambda one: one.start):
        union += max(0, one.start + one.ns - max(one.start, end))
        end = max(end, one.start + one.ns)
    return float(sum(one.ns for one in call) - union)


def identified(ran: Sequence[Ran], launched: Sequence[tuple[str, str]]) -> list[Ran]:
    """The same with the keys of the compiled kernels. `launched`: (name, key) as Triton launched them, in order.

    A name that ran as often as it was launched is matched in order; otherwise (a replayed graph launches nothing) only
    if all its launches were of one kernel.
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
    """Correlation id -> arguments of a kernel in Kineto's trace file (grid, block, registers, shared memory); {} if the
    file is not as expected."""
    try:
        events = json.loads(trace.read_text(errors="replace")).get("traceEvents", [])
        kernels = [e["args"] for e in events if e.get("cat") == "kernel" and isinstance(e.get("args"), dict)]
        return {int(args["correlation"]): args for args in kernels if "correlation" in args}
    except (OSError, ValueError, AttributeError, TypeError, KeyError):
        return {}


def ranges(
    marked: Sequence[Marked], spans: Sequence[tuple[int, int]], kernels: Sequence[tuple[int, float]] | None = None
) -> list[wire.Range] | None:
    """Each range's count in a call and its own time, without that of ranges inside it; None if calls differ.

    `spans`: the calls' (start, end). `kernels`: (launched at, ns) of everything that ran on the device; then a range's
    time is that of the kernels launched from it. Without them it is the host's.
    """
    ordered = sorted(marked, key=lambda one: (one.start, -one.end))
    parents = _parents(ordered)
    if kernels is None:
        own = [float(one.end - one.start) for one in ordered]
        for place, parent in parents.items():
            own[parent] -= ordered[place].end - ordered[place].start
    else:
        own = [0.0] * len(ordered)
        starts = [one.start for one in ordered]
        for at, ns in kernels:
            around: int | None = bisect_right(starts, at) - 1
            while around is not None and around >= 0 and ordered[around].end < at:
                around = parents.get(around)
            if around is not None and around >= 0:
                own[around] += ns
    ran = [Ran(one.name, one.start, one.start, round(ns)) for one, ns in zip(ordered, own, strict=True)]
    counted = census(ran, spans)
    return None if counted.missing else [wire.Range(one.name, one.count, one.ns) for one in counted.launches]


def _parents(ordered: Sequence[Marked]) -> Mapping[int, int]:
    """Index of each range that lies in another -> index of the innermost one around it."""
    found: dict[int, int] = {}
    around: list[int] = []
    for place, one in enumerate(ordered):
        while around and ordered[around[-1]].end <= one.start:
            around.pop()
        parent = next((other for other in reversed(around) if ordered[other].end >= one.end), None)
        if parent is not None:
            found[place] = parent
        around.append(place)
    return found
