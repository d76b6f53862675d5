"""What CUPTI's records say where the answer is known: run by test_timers_gpu.py in a process of its own.

Where torch's profiler was, as in other tests' process, CUPTI's times are the processor's ticks.
"""

import pytest
import torch

from abprof.worker.api import Op
from tests.worker.test_timers_gpu import CYCLES, CudaClock, cuda, median, sleep

__all__ = ["cuda"]

pytestmark = pytest.mark.gpu


def test_a_kernel_of_known_length_lasts_as_long_by_events_and_by_records(cuda: CudaClock) -> None:
    """The flush before a call is not part of it."""
    plain = sleep()
    read: dict[str, list[float]] = {name: [] for name in ("events", "cold", "warm")}
    for _ in range(15):
        read["events"].append(cuda.turn(plain, 1, cold=True))
        read["cold"].append(cuda.kernels(plain, 2, cold=True))
        read["warm"].append(cuda.kernels(plain, 2, cold=False))
    for name in ("cold", "warm"):
        assert median(read[name]) == pytest.approx(median(read["events"]), rel=0.03), name


def test_a_reset_is_no_part_of_a_call_by_its_duration_or_in_a_graph(cuda: CudaClock) -> None:
    op = Op(lambda: torch.cuda._sleep(CYCLES), reset=lambda: torch.cuda._sleep(3 * CYCLES))
    graph = cuda.graph(op, lambda: 0)
    span = median([cuda.turn(op, 1, cold=False) for _ in range(7)])
    assert median([cuda.replays(graph, op, 3) for _ in range(7)]) == pytest.approx(span, rel=0.05)
    assert median([cuda.kernels(op, 2, cold=True) for _ in range(7)]) == pytest.approx(span, rel=0.05)


def test_a_call_that_launches_nothing_reads_zero(cuda: CudaClock) -> None:
    assert cuda.kernels(Op(lambda: None), 3, cold=True) == 0.0
