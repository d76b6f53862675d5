"""Phases: a separate pass under torch's profiler, read by range."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from abprof.kit import Op
from abprof.worker.clocks import Clock

DISCARDED = 2  # first calls under the profiler pay for its own start: milliseconds where a call takes microseconds
_CALL = "abprof_call"


def phases(op: Op, ranges: dict[str, str], calls: int, clock: Clock) -> tuple[dict[str, float | None], float]:
    """Median ns per call of each range (None when it never ran), and of the whole call in this same pass.

    Of `calls` calls, after `DISCARDED` more that are thrown away; a range's time in a call is the sum of its events in
    it. On a CPU a range is the host time spent in it. On a GPU it is the time of the kernels launched from it, and the
    total that of all kernels launched in the call.
    """
    on_gpu = clock.kind == "cuda"
    activities = [torch.profiler.ProfilerActivity.CPU]
    if on_gpu:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(DISCARDED + calls):
            if op.reset:
                op.reset()
            clock.sync()
            with torch.profiler.record_function(_CALL):
                op.call()
                clock.sync()
    if on_gpu:
        return read_device(profiler.profiler.kineto_results.events(), ranges)
    return read_host(list(profiler.events()), ranges)


def read_device(events: Sequence[Any], ranges: dict[str, str]) -> tuple[dict[str, float | None], float]:
    """What `phases` answers on a GPU, from Kineto's raw events (ns).

    A kernel belongs to the range in which it was launched. The launch is the driver's or the runtime's call of the same
    correlation id: torch's own sums over ranges leave out what it did not launch itself, as Triton's and CUDA C++'s.
    """
    device = [e for e in events if e.device_type() != torch.autograd.DeviceType.CPU]
    host = [e for e in events if e.device_type() == torch.autograd.DeviceType.CPU]
    launches = {e.correlation_id(): e.start_ns() for e in host if e.name().startswith("cu")}
    annotations = {_CALL, *ranges.values()}  # the device's timeline has copies of host ranges
    kernels = [
        (launches.get(e.correlation_id(), e.start_ns()), float(e.duration_ns()))
        for e in device
        if e.name() not in annotations and not _is_annotation(e)
    ]
    spans = sorted((e.start_ns(), e.start_ns() + e.duration_ns()) for e in host if e.name() == _CALL)[DISCARDED:]
    found: dict[str, float | None] = {}
    for name, label in ranges.items():
        mine = [(e.start_ns(), e.start_ns() + e.duration_ns()) for e in host if e.name() == label]
        inside = [(at, time) for at, time in kernels if any(begin <= at <= end for begin, end in mine)]
        found[name] = _median_call(inside, spans) if mine else None
    return found, _median_call(kernels, spans)


def _is_annotation(event: Any) -> bool:
    told = getattr(event, "is_user_annotation", None)
    return bool(told()) if callable(told) else False


def read_host(events: Sequence[Any], ranges: dict[str, str]) -> tuple[dict[str, float | None], float]:
    """What `phases` answers on a CPU, from the profiler's events (µs)."""
    whole = sorted((e for e in events if e.name == _CALL), key=_start)
    spans = [(e.time_range.start, e.time_range.end) for e in whole][DISCARDED:]
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
