"""A profiled pass of its own: phases and launches by torch's profiler. Instrumentation never touches the timing."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import statistics
import tempfile
import traceback
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from abprof.records import messages as wire
from abprof.worker import census
from abprof.worker.api import Op
from abprof.worker.census import Marked, Ran
from abprof.worker.clocks import Clock
from abprof.worker.compiles import Watch

DISCARDED = 2  # the first calls include the profiler's own start: milliseconds where a call takes microseconds
_CALL = wire.CALL_RANGE
_SHOWN = "abprof_shown"  # a range with a kernel of abprof's own: if the profiler misses it, it records nothing
Pass = tuple[Any, Sequence[tuple[str, str]]]  # torch's profiler, and what Triton launched: (name, key)
Phases = tuple[dict[str, float | None], float]  # median ns per call of each range, and of the whole call


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

    `discarded` calls come before the `calls` that are read; a range's time in a call is the sum of its events in it. On
    a CPU that is the host time spent in the range. On a GPU it is the time of the kernels launched from it, and the
    total that of all kernels launched in the call. Raises what the operation raises; `census.missing` has the reason if
    the pass cannot be read.
    """
    made = profiled(op, calls, clock, discarded, watch)
    try:
        if clock.kind != "cuda":
            host = list(made[0].function_events)
            return wire.Phased(*read_host(host, ranges, discarded), host_census(host, ranges, discarded))
        with exported(made[0]) as trace:
            counted = counted_calls(made, ranges, clock, discarded, trace)
        return wire.Phased(*read_device(made[0].kineto_results.events(), ranges, discarded), counted)
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


def counted_calls(made: Pass, ranges: dict[str, str], clock: Clock, discarded: int, trace: Path) -> wire.Census:
    """What each call of a profiled pass launched; `trace` is its file."""
    profiler, launched = made
    if clock.kind != "cuda":
        return host_census(list(profiler.function_events), ranges, discarded)
    return device_census(profiler.kineto_results.events(), ranges, launched, census.geometry(trace), discarded)


# ---------------------------------------------------------------- a GPU: Kineto's raw events, in ns


def device_census(
    events: Sequence[Any],
    ranges: dict[str, str],
    launched: Sequence[tuple[str, str]],
    geometry: Mapping[int, Any],
    discarded: int = DISCARDED,
) -> wire.Census:
    """What each call launched on the device, from Kineto's raw events (ns), Triton's launches and the trace's details.

    Copies and fills are counted too: they are work. A kernel belongs to the call in which it was launched.
    """
    spans = _spans(events, _CALL)
    ran = [
        Ran.detailed(e.name(), at, e.start_ns(), e.duration_ns(), geometry.get(e.correlation_id(), {}))
        for e, at in _kernels(events, ranges)
    ]
    if not any(begin <= one.at <= end for one in ran for begin, end in _spans(events, _SHOWN)):
        return wire.Census(missing=census.UNSEEN)
    counted = census.census(census.identified(ran, launched), spans[discarded:])
    kernels = [(one.at, float(one.ns)) for one in ran]
    marked = [
        Marked(e.name(), e.start_ns(), e.start_ns() + e.duration_ns())
        for e in events
        if _is_host(e) and _is_range(e, e.name(), ranges)
    ]
    own = census.ranges(marked, spans[discarded:], kernels)
    return dataclasses.replace(counted, on_device=True, ranges=own)


def read_device(events: Sequence[Any], ranges: dict[str, str], discarded: int = DISCARDED) -> Phases:
    """Phases on a GPU, from Kineto's raw events (ns).

    A kernel belongs to the range in which it was launched. The launch is the driver's or the runtime's call of the same
    correlation id: torch's own sums over ranges leave out what it did not launch itself, as Triton's and CUDA C++'s.
    """
    kernels = [(at, float(e.duration_ns())) for e, at in _kernels(events, ranges)]
    spans = _spans(events, _CALL)[discarded:]
    found: dict[str, float | None] = {}
    for name, label in ranges.items():
        mine = _spans(events, label)
        inside = [(at, time) for at, time in kernels if any(begin <= at <= end for begin, end in mine)]
        found[name] = _median_call(inside, spans) if mine else None
    return found, _median_call(kernels, spans)


def _spans(events: Sequence[Any], name: str) -> list[tuple[int, int]]:
    """(start, end) of the host's ranges of this name."""
    return sorted((e.start_ns(), e.start_ns() + e.duration_ns()) for e in events if _is_host(e) and e.name() == name)


def _kernels(events: Sequence[Any], ranges: dict[str, str]) -> list[tuple[Any, int]]:
    """Everything that ran on the device, and when it was launched (ns)."""
    launches = {e.correlation_id(): e.start_ns() for e in events if _is_host(e) and e.name().startswith("cu")}
    annotations = {_CALL, _SHOWN, *ranges.values()}  # the device's timeline has copies of host ranges
    return [
        (e, launches.get(e.correlation_id(), e.start_ns()))
        for e in events
        if not _is_host(e) and e.name() not in annotations and not _is_annotation(e)
    ]


def _is_host(event: Any) -> bool:
    return bool(event.device_type() == torch.autograd.DeviceType.CPU)


def _is_annotation(event: Any) -> bool:
    flag = getattr(event, "is_user_annotation", False)  # Kineto's events have a method, torch's an attribute
    return bool(flag() if callable(flag) else flag)


def _is_range(event: Any, name: str, ranges: dict[str, str]) -> bool:
    return name not in (_CALL, _SHOWN) and (name in ranges.values() or _is_annotation(event))


# ---------------------------------------------------------------- a CPU: the profiler's events, in us


def host_census(events: Sequence[Any], ranges: dict[str, str], discarded: int = DISCARDED) -> wire.Census:
    """Which torch operations each call made directly, not those that operations made, from the profiler's events (us)."""
    known = {_CALL, *ranges.values()}
    spans = sorted((_start_ns(e), _end_ns(e)) for e in events if e.name == _CALL)[discarded:]
    ran = [
        Ran(e.name, _start_ns(e), _start_ns(e), round(1e3 * e.time_range.elapsed_us()))
        for e in events
        if e.name not in known and not _is_annotation(e) and _outermost(e, known)
    ]
    marked = [Marked(e.name, _start_ns(e), _end_ns(e)) for e in events if _is_range(e, e.name, ranges)]
    return dataclasses.replace(census.census(ran, spans), ranges=census.ranges(marked, spans))


def read_host(events: Sequence[Any], ranges: dict[str, str], discarded: int = DISCARDED) -> Phases:
    """Phases on a CPU, from the profiler's events (us)."""

    def timed(label: str) -> list[tuple[float, float]]:
        return [(float(e.time_range.start), float(e.time_range.elapsed_us())) for e in events if e.name == label]

    spans = sorted((e.time_range.start, e.time_range.end) for e in events if e.name == _CALL)[discarded:]
    found: dict[str, float | None] = {}
    for name, label in ranges.items():
        mine = timed(label)
        found[name] = 1e3 * _median_call(mine, spans) if mine else None
    return found, 1e3 * _median_call(timed(_CALL), spans)


def _start_ns(event: Any) -> int:
    return round(1e3 * event.time_range.start)


def _end_ns(event: Any) -> int:
    return round(1e3 * event.time_range.end)


def _outermost(event: Any, known: set[str]) -> bool:
    """Whether only ranges lie around this operation."""
    parent = event.cpu_parent
    while parent is not None:
        if parent.name not in known and not _is_annotation(parent):
            return False
        parent = parent.cpu_parent
    return True


def _median_call(timed: Iterable[tuple[float, float]], spans: Sequence[tuple[float, float]]) -> float:
    """Median over calls of what began in each, from (start, duration) and the calls' (start, end), in one unit."""
    sums = [0.0] * len(spans)
    starts = [start for start, _ in spans]
    for start, duration in timed:
        call = bisect_right(starts, start) - 1
        if call >= 0 and start <= spans[call][1]:
            sums[call] += duration
    return statistics.median(sums)


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
