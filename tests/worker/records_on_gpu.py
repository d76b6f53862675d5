"""What CUPTI's records say where the answer is known: run by test_timers_gpu.py in a process of its own.

Where torch's profiler was, as in other tests' process, CUPTI's times are the processor's ticks.
"""

from __future__ import annotations

import time

import pytest
import torch

from abprof.worker.api import Op
from tests.worker.test_timers_gpu import CYCLES, CudaClock, cuda, median, sleep

__all__ = ["cuda"]

pytestmark = pytest.mark.gpu


def test_a_kernel_of_known_length_by_its_duration_and_by_its_span(cuda: CudaClock) -> None:
    """Neither the flush before a call is part of it, nor, of a span, a reset or the spin kernel behind which it is enqueued."""
    plain, reset = sleep(), Op(lambda: torch.cuda._sleep(CYCLES), reset=lambda: torch.cuda._sleep(3 * CYCLES))
    read: dict[str, list[float]] = {name: [] for name in ("events", "cold", "warm", "span", "behind a reset")}
    for _ in range(15):
        read["events"].append(cuda.turn(plain, 1, cold=True))
        read["cold"].append(cuda.kernels(plain, 2, cold=True))
        read["warm"].append(cuda.kernels(plain, 2, cold=False))
        read["span"].append(cuda.span(plain, 2, cold=True))
        read["behind a reset"].append(cuda.span(reset, 2, cold=True))
    known = median(read["events"])
    for name in ("cold", "warm", "span"):
        assert median(read[name]) == pytest.approx(known, rel=0.03), name
    assert median(read["behind a reset"]) == pytest.approx(known, rel=0.05)


def test_a_reset_is_no_part_of_a_call_by_its_duration_or_in_a_graph(cuda: CudaClock) -> None:
    op = Op(lambda: torch.cuda._sleep(CYCLES), reset=lambda: torch.cuda._sleep(3 * CYCLES))
    graph = cuda.graph(op, lambda: 0)
    span = median([cuda.turn(op, 1, cold=False) for _ in range(7)])
    assert median([cuda.replays(graph, op, 3) for _ in range(7)]) == pytest.approx(span, rel=0.05)
    assert median([cuda.kernels(op, 2, cold=True) for _ in range(7)]) == pytest.approx(span, rel=0.05)


def test_the_gap_between_two_kernels_counts_and_the_hosts_launches_do_not(cuda: CudaClock) -> None:
    values = torch.zeros(1024, device="cuda")

    def two(wait: float = 0.0) -> None:
        torch.cuda._sleep(10_000)
        until = time.perf_counter() + wait
        while time.perf_counter() < until:
            pass
        values.add_(1)

    op, slow_host = Op(two), Op(lambda: two(300e-6))
    cuda.wall(op)
    added = median([cuda.kernels(op, 4, cold=True) for _ in range(15)])
    spans = median([cuda.span(op, 4, cold=True) for _ in range(15)])
    waited = median([cuda.span(slow_host, 4, cold=True) for _ in range(15)])
    assert added < spans < added + 10_000, "a gap between kernels that are enqueued is of microseconds"
    assert abs(waited - spans) < 10_000, "the 300 us for which the host did nothing are no gap"
    assert waited < 100_000


def test_what_runs_on_another_stream_is_part_of_the_call(cuda: CudaClock) -> None:
    other = torch.cuda.Stream()

    def beside() -> None:
        here = torch.cuda.current_stream()
        other.wait_stream(here)
        with torch.cuda.stream(other):
            torch.cuda._sleep(CYCLES)
        torch.cuda._sleep(CYCLES // 10)
        here.wait_stream(other)

    alone = median([cuda.span(sleep(), 2, cold=True) for _ in range(9)])
    assert median([cuda.span(Op(beside), 2, cold=True) for _ in range(9)]) == pytest.approx(alone, rel=0.05)


def test_a_call_that_launches_nothing_reads_zero(cuda: CudaClock) -> None:
    assert cuda.span(Op(lambda: None), 3, cold=True) == 0.0
    assert cuda.kernels(Op(lambda: None), 3, cold=True) == 0.0
