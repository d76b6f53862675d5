"""The ranges that a call goes through: how often, and what of their time is their own."""

from __future__ import annotations

import torch

from abprof.records import messages as wire
from abprof.worker import profile, ranges
from abprof.worker.api import Op
from abprof.worker.clocks import clock
from abprof.worker.ranges import Marked
from tests.test_worker_profile import Raw

SPANS = [(0, 100), (200, 300)]


def test_a_range_has_its_own_time_without_what_lies_in_it() -> None:
    marked = [Marked("outer", at, at + 90) for at, _ in SPANS]
    marked += [Marked("run", at + begin, at + begin + 20) for at, _ in SPANS for begin in (10, 50)]
    marked += [Marked("reset", 150, 160)]  # between calls
    assert ranges.counted(marked, SPANS) == [wire.Range("outer", 1, 50.0), wire.Range("run", 2, 40.0)]


def test_calls_that_differ_or_that_were_not_seen_tell_nothing() -> None:
    assert ranges.counted([Marked("run", 1, 2)], SPANS) is None
    assert ranges.counted([], []) is None
    assert ranges.counted([], SPANS) == []


def test_a_kernel_is_of_the_innermost_range_that_launched_it() -> None:
    marked = [Marked("outer", 0, 90), Marked("run", 10, 30), Marked("run", 50, 70)]
    kernels = [(5, 1e3), (20, 7e3), (40, 2e3), (60, 7e3), (80, 4e3), (95, 9e9)]
    told = ranges.counted(marked, SPANS[:1], kernels)
    assert told == [wire.Range("outer", 1, 7e3), wire.Range("run", 2, 14e3)]


def test_a_real_pass_on_a_cpu_tells_the_ranges_that_nobody_declared_too() -> None:
    x = torch.randn(64)

    def call() -> None:
        for _ in range(2):
            with torch.profiler.record_function("load"):
                x.clone()
        with torch.profiler.record_function("store"), torch.profiler.record_function("load"):
            x.clone()

    told = profile.phases(Op(call), {"load": "load"}, 3, clock("cpu")).census.ranges or []
    assert {one.name: one.count for one in told} == {"load": 3, "store": 1}
    assert all(one.ns > 0 for one in told)


def test_a_pass_on_a_gpu_tells_what_each_range_launched() -> None:
    events = [Raw(profile._SHOWN, 0, 100), Raw("cudaLaunchKernel", 10, 5, correlation=900)]
    events += [Raw("fill", 40, 5, device=True, correlation=900)]
    for i in range(3):
        at = 10_000 * (i + 1)
        events += [Raw("abprof_call", at, 9_000)]
        for part, begin in enumerate((100, 400)):
            correlation = 2 * i + part + 1
            events += [Raw("ffa_fwd_run", at + begin, 200), Raw("ffa_fwd_run", at + 4_000, 60, device=True)]
            events += [Raw("cuLaunchKernelEx", at + begin + 20, 5, correlation=correlation)]
            events += [Raw("kernel", at + 5_000, 70, device=True, correlation=correlation)]
    told = profile.device_census(events, {"run": "ffa_fwd_run"}, [], {}, 1)
    assert told.ranges == [wire.Range("ffa_fwd_run", 2, 140.0)]
