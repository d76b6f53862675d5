"""A profiled pass of its own: phases and what calls launched, by torch's profiler. Instrumentation never touches the timing."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import statistics
import tempfile
import traceback
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeVar

import torch

from abprof.records import messages as wire
from abprof.worker.api import Op
from abprof.worker.clocks import Clock
from abprof.worker.compiles import Watch

T = TypeVar("T")
DISCARDED = 2  # the first calls include the profiler's own start: milliseconds where a call takes microseconds
_CALL = wire.CALL_RANGE
_SHOWN = "abprof_shown"  # a range with a kernel of abprof's own: if the profiler misses it, it records nothing
UNSEEN = "the profiler recorded no kernel of this process, not even abprof's own test kernel"
DIFFER = "calls of one pass did not launch the same"
Pass = tuple[Any, Sequence[tuple[str, str]]]  # torch's profiler, and what Triton launched: (name, key)


def phases(
    op: Op,
    ranges: dict[str, str],
    calls: int,
    clock: Clock,
    *,
    discarded: int = DISCARDED,
    watch: Watch | None = None,
) -> wire.Phased:
    """Median ns per call of each range (None if it never ran), of the whole call in this same pass, and what it launched.

    `ranges`: phase -> name of its `record_function` range. `discarded` calls come before the `calls` that are read. Raises
    what the operation raises; `census.missing` has the reason if the pass cannot be read.
    """
    made = profiled(op, calls, clock, discarded, watch)
    try:
        with exported(made[0]) if clock.kind == "cuda" else contextlib.nullcontext() as trace:
            return counted(made, ranges, clock, discarded, trace)
    except Exception as error:  # noqa: BLE001 - evidence, which must not cost the cell its time
        traceback.print_exc()
        why = f"the profiled pass could not be read: {type(error).__name__}: {error}"
        return wire.Phased({}, 0.0, wire.Census(missing=why[:300]))


def profiled(op: Op, calls: int, clock: Clock, discarded: int, watch: Watch | None) -> Pass:
    """`discarded + calls` calls under torch's profiler, each in a range of its own, and what Triton launched in them.

    Autograd's class, which `torch.profiler.profile` starts too: that one first imports all of torch's compiler, two
    seconds in each worker.
    """
    on_gpu = clock.kind == "cuda"
    torchs = torch.autograd.profiler.profile(use_kineto=True, use_device="cuda" if on_gpu else None)
    clock.profiled = clock.profiled or on_gpu
    with (watch or Watch()).launches() as launched, torchs as profiler:
        if on_gpu:
            with torch.profiler.record_function(_SHOWN):
                torch.zeros(256, device=clock.device)
                clock.sync()
        for _ in range(discarded + calls):
            if op.reset:
                op.reset()
            clock.sync()
            with torch.profiler.record_function(_CALL):
                op.call()
                clock.sync()
    return profiler, launched


@contextlib.contextmanager
def exported(profiler: Any) -> Iterator[Path]:
    """The pass as torch's own trace file, while the block runs. A profiler can export once."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        yield trace


def counted(made: Pass, ranges: dict[str, str], clock: Clock, discarded: int, trace: Path | None) -> wire.Phased:
    """Phases and launches of a pass; `trace` is its file, which only a GPU needs."""
    if clock.kind != "cuda" or trace is None:
        return read(*_host_events(made[0].function_events, ranges), ranges, discarded)
    return read(*_device_events(made, ranges, geometry(trace)), ranges, discarded, on_device=True)


# ---------------------------------------------------------------- reading a pass


def read(
    marked: Sequence[Marked], ran: Sequence[Ran], ranges: dict[str, str], discarded: int, *, on_device: bool = False
) -> wire.Phased:
    """Phases and census of a pass, from the host's ranges (abprof's own too) and what ran; times in ns.

    On a CPU a range's time is the host time spent in it. On a GPU it is that of the kernels launched from it, and the
    whole call's that of all kernels launched in the call: torch's own sums leave out what torch did not launch itself,
    as Triton's and CUDA C++'s.
    """

    def timed(label: str) -> list[tuple[int, int]]:
        spans = [(one.start, one.end) for one in marked if one.name == label]
        if not on_device:
            return [(start, end - start) for start, end in spans]
        return [(one.at, one.ns) for one in ran if any(start <= one.at <= end for start, end in spans)]

    spans = sorted((one.start, one.end) for one in marked if one.name == _CALL)[discarded:]
    known = {one.name for one in marked}
    found = {name: _median_call(timed(label), spans) if label in known else None for name, label in ranges.items()}
    total = _median_call([(one.at, one.ns) for one in ran] if on_device else timed(_CALL), spans)
    if on_device and not timed(_SHOWN):
        return wire.Phased(found, total, wire.Census(missing=UNSEEN))
    kernels = [(one.at, float(one.ns)) for one in ran] if on_device else None
    own = ranges_of([one for one in marked if one.name not in (_CALL, _SHOWN)], spans, kernels)
    return wire.Phased(found, total, replace(census(ran, spans), on_device=on_device, ranges=own))


def _median_call(timed: Iterable[tuple[int, int]], spans: Sequence[tuple[int, int]]) -> float:
    """Median over calls of what began in each, from (start, duration) and the calls' (start, end)."""
    return statistics.median(sum(each, 0.0) for each in _by_call(timed, spans))


def _by_call(timed: Iterable[tuple[int, T]], spans: Sequence[tuple[int, int]]) -> list[list[T]]:
    """What began within each call, from (start, thing) and the calls' (start, end)."""
    found = [list[T]() for _ in spans]
    starts = [start for start, _ in spans]
    for start, thing in timed:
        call = bisect_right(starts, start) - 1
        if call >= 0 and start <= spans[call][1]:
            found[call].append(thing)
    return found


def _device_events(made: Pass, ranges: dict[str, str], geometry: Mapping[int, Any]) -> tuple[list[Marked], list[Ran]]:
    """The host's ranges and everything that ran on the device (copies and fills are work, too), from Kineto's raw events.

    A thing is launched at the driver's or the runtime's call of the same correlation id.
    """
    profiler, launched = made
    events = profiler.kineto_results.events()
    known = {_CALL, _SHOWN, *ranges.values()}  # the device's timeline has copies of host ranges
    host = [e for e in events if e.device_type() == torch.autograd.DeviceType.CPU]
    launches = {e.correlation_id(): e.start_ns() for e in host if e.name().startswith("cu")}
    marked = [
        Marked(e.name(), e.start_ns(), e.start_ns() + e.duration_ns())
        for e in host
        if e.name() in known or _is_annotation(e)
    ]
    ran = [
        Ran.detailed(
            e.name(),
            launches.get(e.correlation_id(), e.start_ns()),
            e.start_ns(),
            e.duration_ns(),
            geometry.get(e.correlation_id(), {}),
        )
        for e in events
        if e.device_type() != torch.autograd.DeviceType.CPU and e.name() not in known and not _is_annotation(e)
    ]
    return marked, identified(ran, launched)


def _host_events(events: Iterable[Any], ranges: dict[str, str]) -> tuple[list[Marked], list[Ran]]:
    """The ranges, and torch's operations that lie in ranges alone and not in other operations (events in us)."""
    known = {_CALL, *ranges.values()}

    def is_range(event: Any) -> bool:
        return event.name in known or _is_annotation(event)

    def outermost(event: Any) -> bool:
        parent = event.cpu_parent
        while parent is not None and is_range(parent):
            parent = parent.cpu_parent
        return parent is None

    marked, ran = list[Marked](), list[Ran]()
    for event in events:
        start, end = (round(1e3 * us) for us in (event.time_range.start, event.time_range.end))
        if is_range(event):
            marked.append(Marked(event.name, start, end))
        elif outermost(event):
            ran.append(Ran(event.name, start, start, end - start))
    return marked, ran


def _is_annotation(event: Any) -> bool:
    flag = getattr(event, "is_user_annotation", False)  # Kineto's events have a method, torch's an attribute
    return bool(flag() if callable(flag) else flag)


# ---------------------------------------------------------------- what one call launched


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
    calls = _by_call(((one.at, one) for one in ran), spans)
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


def ranges_of(
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


# ---------------------------------------------------------------- a pass kept as a file

# Of limited size, without folders of this machine: torch's profile for Perfetto, or the tree of Triton's proton.
_KEPT = ("schemaVersion", "deviceProperties", "displayTimeUnit", "baseTimeNanoseconds")
_FOLDERS = re.compile(r"(?<![\w.:/])/(?:[^/\s\"':]+/)+")
# Kernels by which Triton's hook reads a launch's numbers: proton-viewer drops them.
_METADATA = "__proton_launch_metadata"
_UNITS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}


def write_chrome(raw: Path, target: Path, most_bytes: int) -> int:
    """Write torch's trace file to `target`: the first events in time that fit into `most_bytes`. Names of threads and
    processes stay. Returns how many events were left out.

    Raises OSError, and ValueError when torch's file is no JSON or has no events.
    """
    loose = json.loads(raw.read_text(errors="replace"), parse_constant=lambda _: None)
    events = loose.get("traceEvents") if isinstance(loose, dict) else None
    if not isinstance(events, list) or not events:
        raise ValueError("torch's profiler wrote no events")
    events = sorted((e for e in events if isinstance(e, dict)), key=lambda e: (e.get("ph") != "M", _time(e)))
    head = json.dumps(_plain({key: loose[key] for key in _KEPT if key in loose}))
    head = (head[:-1] + ", " if len(head) > 2 else "{") + '"traceEvents": [\n'
    lines, room = list[str](), most_bytes - len(head) - len("\n]}\n")
    for event in events:
        line = json.dumps(_plain(event))
        room -= len(line) + 2
        if room < 0:
            break
        lines.append(line)
    target.write_text(head + ",\n".join(lines) + "\n]}\n")
    return len(events) - len(lines)


def _time(event: dict[str, Any]) -> float:
    at = event.get("ts")
    return float(at) if isinstance(at, int | float) else 0.0


def _plain(value: Any) -> Any:
    """The same without the folders of absolute paths: `/home/somebody/x/kernel.py` becomes `kernel.py`."""
    if isinstance(value, str):
        return _FOLDERS.sub("", value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def proton(op: Op, calls: int, clock: Clock, discarded: int, target: Path, most_bytes: int) -> wire.Traced:
    """`discarded` calls, then `calls` under proton, whose tree is written to `target`. `missing` has the reason if proton
    fails."""
    for _ in range(discarded):
        if op.reset:
            op.reset()
        op.call()
        clock.sync()
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "calls"
        try:
            _under_proton(op, calls, clock, made)
        except (ImportError, AttributeError, RuntimeError, ValueError, TypeError, OSError) as error:
            return _failed(f"proton does not work here: {type(error).__name__}: {error}")
        file = made.with_suffix(".hatchet")
        if not file.is_file():
            return _failed("proton wrote no file: it is switched off (PROTON_DISABLE), or another profiler holds CUPTI")
        written = file.read_text(errors="replace")
    try:
        tree = json.loads(written, parse_constant=lambda _: None)
        launches = read_proton(tree, calls)
    except ValueError as error:
        return _failed(f"cannot read proton's file: {error}")
    text = json.dumps(_plain(tree))
    counted = wire.Census(launches, on_device=True)
    if len(text) > most_bytes:
        return wire.Traced(counted, missing=f"its tree has {len(text)} bytes, and at most {most_bytes} are kept")
    target.write_text(text)
    return wire.Traced(counted)


def _under_proton(op: Op, calls: int, clock: Clock, made: Path) -> None:
    import triton.profiler

    session = triton.profiler.start(str(made), hook="triton")
    try:
        for _ in range(calls):
            if op.reset:
                op.reset()
            with triton.profiler.scope(_CALL):
                op.call()
            clock.sync()
    finally:
        triton.profiler.finalize(session)


def _failed(why: str) -> wire.Traced:
    return wire.Traced(wire.Census(missing=why), missing=why)


def read_proton(tree: Any, calls: int) -> list[wire.Launch]:
    """What one of `calls` calls launched, by name, with its mean time, from proton's tree (the file that `proton-viewer`
    reads). Raises ValueError for anything else, for a tree without kernels, and if calls differ."""
    found: dict[str, tuple[int, float]] = {}
    for name, count, ns in _kernels(tree[0] if isinstance(tree, list) and tree else None, inside=False):
        before = found.get(name, (0, 0.0))
        found[name] = before[0] + count, before[1] + ns
    if not found:
        raise ValueError("proton recorded no kernel in the calls")
    odd = [name for name, (count, _) in found.items() if count % calls]
    if odd:
        raise ValueError(f"{odd[0][:80]} ran {found[odd[0]][0]} times in {calls} calls: calls differ")
    return [wire.Launch(name, count // calls, ns / calls) for name, (count, ns) in found.items()]


def _kernels(node: Any, *, inside: bool) -> Iterator[tuple[str, int, float]]:
    """(name, times, ns) of every frame inside the calls that has times of its own."""
    if not isinstance(node, dict) or not isinstance(node.get("frame"), dict):
        raise ValueError("not a proton tree")
    name = str(node["frame"].get("name", ""))
    if name == _METADATA:
        return
    metrics, ns = node.get("metrics"), 0.0
    metrics = metrics if isinstance(metrics, dict) else {}
    for key, value in metrics.items():
        what, _, unit = key.rstrip(")").partition(" (")
        if what.lower() == "time" and unit in _UNITS and isinstance(value, int | float):
            ns = value * _UNITS[unit]
    count = metrics.get("count", metrics.get("Count", 0))
    if inside and isinstance(count, int) and count > 0 and ns > 0:  # otherwise a scope without times of its own
        yield name, count, ns
    children = node.get("children")
    for child in children if isinstance(children, list) else ():
        yield from _kernels(child, inside=inside or name == _CALL)


# ---------------------------------------------------------------- NVTX ranges, for Nsight Systems and Nsight Compute


@contextlib.contextmanager
def nvtx(names: Sequence[str], calls: Sequence[str] = ()) -> Iterator[None]:
    """The block within NVTX ranges of these names, the first outermost, and each `record_function` range of the block as
    an NVTX range of its name. `calls` are further names of abprof's own range around a call. Never within a timed turn.

    Each range exists in both of NVTX's kinds: push and pop nest and belong to one thread (`NAME/` in ncu's filter); start
    and end hold for all threads (`NAME`): autograd launches a backward kernel from a thread of its own. Torch's
    `emit_nvtx` does nothing under its profiler, marks every operation and appends numbers to names. Does nothing if torch
    was built without NVTX.
    """
    try:
        torch.cuda.nvtx.mark("abprof")
    except (RuntimeError, AttributeError):  # torch's stub for builds without CUDA
        yield
        return
    record_function = torch.profiler.record_function
    enter, leave = record_function.__enter__, record_function.__exit__

    @functools.wraps(enter)
    def entered(self: Any) -> Any:
        spans = _nvtx_spans([self.name, *(calls if self.name == _CALL else ())])  # outside: they do not lengthen it
        vars(self).setdefault("abprof_spans", []).append(spans)  # a decorator's is entered again by what it calls
        return enter(self)

    @functools.wraps(leave)
    def left(self: Any, *error: Any) -> Any:
        try:
            return leave(self, *error)
        finally:
            if spans := vars(self).get("abprof_spans"):  # none if it was entered before the block began
                spans.pop().close()

    with _nvtx_spans(names):
        record_function.__enter__, record_function.__exit__ = entered, left
        try:
            yield
        finally:
            record_function.__enter__, record_function.__exit__ = enter, leave


def _nvtx_spans(names: Sequence[str]) -> contextlib.ExitStack:
    """Open the ranges; closing the stack closes them."""
    stack = contextlib.ExitStack()
    for name in names:
        text = name.encode("ascii", "backslashreplace").decode()
        stack.callback(torch.cuda.nvtx.range_end, torch.cuda.nvtx.range_start(text))
        torch.cuda.nvtx.range_push(text)
        stack.callback(torch.cuda.nvtx.range_pop)
    return stack
