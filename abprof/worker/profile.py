"""Phases and launches: a separate pass under torch's profiler, read by range and by call."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import tempfile
import traceback
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from abprof.records import messages as wire
from abprof.worker import census
from abprof.worker import ranges as marks
from abprof.worker.api import Op
from abprof.worker.clocks import Clock
from abprof.worker.compiles import Watch

DISCARDED = 2  # first calls under the profiler pay for its own start: milliseconds where a call takes microseconds
_CALL = wire.CALL_RANGE
_SHOWN = "abprof_shown"  # a range with a kernel of abprof's own: a profiler that does not see it sees nothing


def phases(
    op: Op,
    ranges: dict[str, str],
    calls: int,
    clock: Clock,
    *,
    discarded: int = DISCARDED,
    watch: Watch | None = None,
) -> wire.Phased:
    """Median ns per call of each range (None when it never ran), of the whole call in this same pass, and what it launched.

    Of `calls` calls, after `discarded` more that are thrown away; a range's time in a call is the sum of its events in
    it. On a CPU a range is the host time spent in it. On a GPU it is the time of the kernels launched from it, and the
    total that of all kernels launched in the call. What the operation raises is raised; a pass that cannot be read says
    so in its census.
    """
    profiler, launched = profiled(op, calls, clock, discarded, watch)
    try:
        return _read(profiler, launched, ranges, clock, discarded)
    except Exception as error:  # noqa: BLE001 - evidence, which must not cost the cell its time
        traceback.print_exc()
        why = f"the profiled pass could not be read: {type(error).__name__}: {error}"
        return wire.Phased({}, 0.0, wire.Census(missing=why[:300]))


def _read(
    profiler: Any, launched: Sequence[tuple[str, str]], ranges: dict[str, str], clock: Clock, discarded: int
) -> wire.Phased:
    if clock.kind != "cuda":
        host = list(profiler.function_events)
        return wire.Phased(*read_host(host, ranges, discarded), host_census(host, ranges, discarded))
    with exported(profiler) as trace:
        counted = counted_calls(profiler, launched, ranges, clock, discarded, trace)
    return wire.Phased(*read_device(profiler.kineto_results.events(), ranges, discarded), counted)


def profiled(
    op: Op, calls: int, clock: Clock, discarded: int, watch: Watch | None
) -> tuple[torch.autograd.profiler.profile, Sequence[tuple[str, str]]]:
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
    """The pass as torch's own trace file, while the block runs. A profiler can be asked for it once."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        yield trace


def counted_calls(
    profiler: Any,
    launched: Sequence[tuple[str, str]],
    ranges: dict[str, str],
    clock: Clock,
    discarded: int,
    trace: Path,
) -> wire.Census:
    """What each call of a profiled pass launched; `trace` is its file."""
    if clock.kind != "cuda":
        return host_census(list(profiler.function_events), ranges, discarded)
    events = profiler.kineto_results.events()
    return device_census(events, ranges, launched, census.geometry(trace), discarded)


def device_census(
    events: Sequence[Any],
    ranges: dict[str, str],
    launched: Sequence[tuple[str, str]],
    geometry: dict[int, Any],
    discarded: int = DISCARDED,
) -> wire.Census:
    """What each call launched on the device, from Kineto's raw events (ns), Triton's launches and the trace's details.

    Copies and fills are counted too: they are work. A kernel belongs to the call in which it was launched.
    """
    spans = sorted((e.start_ns(), e.start_ns() + e.duration_ns()) for e in events if _is_host(e) and e.name() == _CALL)
    ran = [
        census.Ran(
            e.name(),
            at,
            e.start_ns(),
            e.duration_ns(),
            census.dims(args, "grid"),
            census.dims(args, "block"),
            census.number(args, "registers per thread"),
            census.number(args, "shared memory"),
        )
        for e, at in _kernels(events, ranges)
        for args in [geometry.get(e.correlation_id(), {})]
    ]
    shown = [(e.start_ns(), e.start_ns() + e.duration_ns()) for e in events if _is_host(e) and e.name() == _SHOWN]
    if not any(begin <= one.at <= end for one in ran for begin, end in shown):
        return wire.Census(missing=census.UNSEEN)
    counted = census.census(census.identified(ran, launched), spans[discarded:])
    kernels = [(one.at, float(one.ns)) for one in ran]
    return dataclasses.replace(
        counted, on_device=True, ranges=marks.counted(_marked(events, ranges), spans[discarded:], kernels)
    )


def _marked(events: Sequence[Any], ranges: dict[str, str]) -> list[marks.Marked]:
    """The host's ranges, from Kineto's raw events: those that the workload names, and every other annotation."""
    return [
        marks.Marked(e.name(), e.start_ns(), e.start_ns() + e.duration_ns())
        for e in events
        if _is_host(e) and _is_range(e, e.name(), ranges)
    ]


def _is_range(event: Any, name: str, ranges: dict[str, str]) -> bool:
    return name not in (_CALL, _SHOWN) and (name in ranges.values() or _is_annotation(event))


def host_census(events: Sequence[Any], ranges: dict[str, str], discarded: int = DISCARDED) -> wire.Census:
    """Which of torch's operations each call made itself, not counting those that operations made, from the profiler's
    events (µs)."""
    known = {_CALL, *ranges.values()}
    calls = sorted((_ns(e.time_range.start), _ns(e.time_range.end)) for e in events if e.name == _CALL)
    spans = calls[discarded:]
    ran = [
        census.Ran(e.name, _ns(at), _ns(at), _ns(e.time_range.elapsed_us()))
        for e in events
        for at in [_start(e)]
        if e.name not in known and not _is_annotation(e) and _outermost(e, known)
    ]
    marked = [
        marks.Marked(e.name, _ns(e.time_range.start), _ns(e.time_range.end))
        for e in events
        if _is_range(e, e.name, ranges)
    ]
    return dataclasses.replace(census.census(ran, spans), ranges=marks.counted(marked, spans))


def _ns(us: float) -> int:
    return round(1e3 * us)


def _outermost(event: Any, known: set[str]) -> bool:
    """Whether no operation of torch's made this one: only ranges lie around it."""
    parent = event.cpu_parent
    while parent is not None:
        if parent.name not in known and not _is_annotation(parent):
            return False
        parent = parent.cpu_parent
    return True


def read_device(
    events: Sequence[Any], ranges: dict[str, str], discarded: int = DISCARDED
) -> tuple[dict[str, float | None], float]:
    """What `phases` answers on a GPU, from Kineto's raw events (ns).

    A kernel belongs to the range in which it was launched. The launch is the driver's or the runtime's call of the same
    correlation id: torch's own sums over ranges leave out what it did not launch itself, as Triton's and CUDA C++'s.
    """
    host = [e for e in events if _is_host(e)]
    kernels = [(at, float(e.duration_ns())) for e, at in _kernels(events, ranges)]
    spans = sorted((e.start_ns(), e.start_ns() + e.duration_ns()) for e in host if e.name() == _CALL)[discarded:]
    found: dict[str, float | None] = {}
    for name, label in ranges.items():
        mine = [(e.start_ns(), e.start_ns() + e.duration_ns()) for e in host if e.name() == label]
        inside = [(at, time) for at, time in kernels if any(begin <= at <= end for begin, end in mine)]
        found[name] = _median_call(inside, spans) if mine else None
    return found, _median_call(kernels, spans)


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
    told = getattr(event, "is_user_annotation", False)  # Kineto's events have a method, torch's an attribute
    return bool(told() if callable(told) else told)


def read_host(
    events: Sequence[Any], ranges: dict[str, str], discarded: int = DISCARDED
) -> tuple[dict[str, float | None], float]:
    """What `phases` answers on a CPU, from the profiler's events (µs)."""
    whole = sorted((e for e in events if e.name == _CALL), key=_start)
    spans = [(e.time_range.start, e.time_range.end) for e in whole][discarded:]
    found: dict[str, float | None] = {}
    for name, label in ranges.items():
        mine = [(_start(e), float(e.time_range.elapsed_us())) for e in events if e.name == label]
        found[name] = 1e3 * _median_call(mine, spans) if mine else None
    return found, 1e3 * _median_call([(_start(e), float(e.time_range.elapsed_us())) for e in whole], spans)


def _median_call(timed: Iterable[tuple[float, float]], spans: Sequence[tuple[float, float]]) -> float:
    """Median over calls of what began in each, from (start, duration) and the calls' (start, end), in one unit."""
    sums = [0.0] * len(spans)
    starts = [start for start, _ in spans]
    for start, duration in timed:
        call = bisect_right(starts, start) - 1
        if call >= 0 and start <= spans[call][1]:
            sums[call] += duration
    return statistics.median(sums)


def _start(event: Any) -> float:
    return float(event.time_range.start)
