"""The profiled pass: which calls count, and that one slow call does not."""

from __future__ import annotations

import statistics
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from abprof.worker import profile
from abprof.worker.api import Op
from abprof.worker.clocks import clock

HOST, DEVICE = torch.autograd.DeviceType.CPU, torch.autograd.DeviceType.CUDA


def event(name: str, start: float, end: float, *, kind: Any = HOST, device_us: float = 0.0) -> SimpleNamespace:
    """What torch's profiler gives, in microseconds."""
    span = SimpleNamespace(start=start, end=end, elapsed_us=lambda: end - start)
    return SimpleNamespace(name=name, time_range=span, device_type=kind, device_time_total=device_us)


def call(at: float, *parts: float, whole: float = 90.0) -> list[SimpleNamespace]:
    """One call at this time, with a range of each of these lengths in it; a kernel half as long follows each range."""
    found = [event("abprof_call", at, at + whole)]
    for i, part in enumerate(parts):
        begin = at + 1 + 20 * i
        found += [event("load", begin, begin + part, device_us=part / 2)]
        found += [event("kernel", begin + part, begin + 1.5 * part, kind=DEVICE)]
    return found


def read(calls: list[list[SimpleNamespace]]) -> tuple[dict[str, float | None], float]:
    events = [e for one in calls for e in one]
    return profile.read_host(events, {"load": "load", "store": "store"})


def test_the_first_calls_are_discarded_and_the_median_of_the_others_is_taken() -> None:
    lengths = [9.0, 9.0, 1.0, 2.0, 3.0, 9.0, 2.0]
    found, total = read([call(100.0 * i, length, whole=10 * length) for i, length in enumerate(lengths)])
    assert found == {"load": 2000.0, "store": None}
    assert total == 20000.0


def test_the_events_of_one_call_are_summed_first() -> None:
    lengths = [(9.0, 9.0), (9.0, 9.0), (1.0, 5.0), (2.0, 5.0), (3.0, 5.0)]
    found, _ = read([call(100.0 * i, *parts) for i, parts in enumerate(lengths)])
    assert found["load"] == 7000.0


class Raw:
    """One of Kineto's events: ns, and methods where the profiler's own have attributes."""

    def __init__(self, name: str, start: int, length: int, *, device: bool = False, correlation: int = 0) -> None:
        self.name = lambda: name
        self.start_ns = lambda: start
        self.duration_ns = lambda: length
        self.correlation_id = lambda: correlation
        self.device_type = lambda: DEVICE if device else HOST


def test_on_a_gpu_a_kernel_belongs_to_the_range_that_launched_it() -> None:
    events = []
    for i, length in enumerate([900, 900, 100, 200, 300]):
        at = 10_000 * i
        events += [
            Raw("abprof_call", at, 9_000),
            Raw("load", at + 10, 50),
            Raw("cuLaunchKernelEx", at + 20, 5, correlation=2 * i + 1),
            Raw("kernel_a", at + 4_000, length, device=True, correlation=2 * i + 1),  # runs long after the range ended
            Raw("cudaLaunchKernel", at + 100, 5, correlation=2 * i + 2),
            Raw("kernel_b", at + 6_000, 50, device=True, correlation=2 * i + 2),
            Raw("load", at + 4_000, length, device=True),  # the device's copy of the host's range
        ]
    found, total = profile.read_device(events, {"load": "load", "store": "store"})
    assert found == {"load": 200.0, "store": None}
    assert total == 250.0


def test_what_ran_between_calls_is_not_counted() -> None:
    calls = [call(100.0 * i, 2.0) for i in range(5)]
    found, total = read([*calls, [event("load", 395.0, 399.0)]])
    assert found["load"] == 2000.0
    assert total == 90000.0


def test_a_slow_first_call_leaves_no_trace_in_a_real_pass() -> None:
    """Each call sleeps 10 ms in its range, the first two 300 ms: the mean would be beyond 70 ms."""
    calls: list[float] = []

    def sleeps() -> None:
        with torch.profiler.record_function("load"):
            began = time.perf_counter_ns()
            time.sleep(0.3 if len(calls) < 2 else 0.01)
            calls.append(time.perf_counter_ns() - began)

    phased = profile.phases(Op(sleeps), {"load": "load"}, 7, clock("cpu"))
    found, total = phased.phases, phased.total
    assert len(calls) == 9
    assert found["load"] is not None
    assert statistics.median(calls[2:]) == pytest.approx(found["load"], rel=0.5)
    assert found["load"] <= total < 50e6
