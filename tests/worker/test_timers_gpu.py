"""Events, graphs and CUPTI on a GPU, beside each other where the answer is known."""

import importlib.util
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from abprof.worker.api import Op
from abprof.worker.clocks import CudaClock, NotCaptured, clock
from tests.gpus import INSIDE

pytestmark = [pytest.mark.gpu, pytest.mark.alone]
CYCLES = 2_000_000  # about a millisecond
with_cupti = pytest.mark.skipif(importlib.util.find_spec("cupti") is None, reason="cupti-python is not installed")


@pytest.fixture
def cuda() -> CudaClock:
    found = clock("cuda")
    assert isinstance(found, CudaClock)
    return found


def sleep(cycles: int = CYCLES) -> Op:
    return Op(lambda: torch.cuda._sleep(cycles))


def median(readings: list[float]) -> float:
    return statistics.median(readings)


def test_a_kernel_of_known_length_by_events_and_by_graphs(cuda: CudaClock) -> None:
    op = sleep()
    cuda.turn(op, 3, cold=True)
    graph = cuda.graph(op, lambda: 0)
    assert graph.nodes == 1
    spans, replays, known = [], [], []
    for _ in range(15):
        spans.append(cuda.turn(op, 1, cold=True))
        known.append(1e3 * CYCLES / cuda.mhz())
        replays.append(cuda.replays(graph, op, 4))
    assert median(spans) == pytest.approx(median(known), rel=0.03)
    assert median(replays) == pytest.approx(median(known), rel=0.03)


def test_calls_behind_a_lead_read_the_same_and_one_that_is_too_short_is_reported(cuda: CudaClock) -> None:
    op = sleep(CYCLES // 20)
    alone, behind = ([cuda.turn(op, 20, cold=True, lead=lead) for _ in range(9)] for lead in (0.0, 2e7))
    assert median(behind) == pytest.approx(median(alone), rel=0.03)
    assert 0 < cuda.lead < 2e7
    cuda.turn(Op(lambda: (time.sleep(0.001), torch.cuda._sleep(CYCLES // 20))), 20, cold=True, lead=1e6)
    assert cuda.lead == 2e6


def test_every_multiprocessor_has_both_stamps_of_a_turn(cuda: CudaClock) -> None:
    there = torch.cuda.get_device_properties(0).multi_processor_count
    for op in (sleep(), Op(lambda: torch.ones(1 << 24, device="cuda").sin_())):
        for _ in range(5):
            cuda.turn(op, 2, cold=True)
            assert cuda._stamps is not None
            begun, ended = (stamps[:, 2] == cuda._stamps._turn for stamps in cuda._stamps._written)
            assert int((begun & ended).sum()) > 0.95 * there
            assert 200 < cuda.mhz() < 4000


@with_cupti
def test_cupti_in_a_process_of_its_own() -> None:
    file = Path(__file__).parent / "records_on_gpu.py"
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider", str(file)]
    inside = {**os.environ, INSIDE: "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=inside)
    assert done.returncode == 0, done.stdout + done.stderr


PROFILED = """
import sys, torch
from abprof.kit import Op, Unsupported
from abprof.records import messages as wire
from abprof.worker import profile
from abprof.worker.clocks import clock
from abprof.worker.compiles import Watch
cuda, op = clock("cuda"), Op(lambda: torch.cuda._sleep(2_000_000))
if sys.argv[1] == "first":
    assert 0.9 < cuda.kernels(op, 1, cold=True) / cuda.turn(op, 1, cold=True) < 1.1
profile.phases(op, {}, wire.Phases("base", 2, 1), cuda, Watch())
cuda.profiled = sys.argv[1] == "first"
try:
    print("nanoseconds" if 0.9 < cuda.kernels(op, 1, cold=True) / cuda.turn(op, 1, cold=True) < 1.1 else "ticks")
except Unsupported:
    print("refused")
"""


@with_cupti
@pytest.mark.parametrize("who", ["first", "code under test"])
def test_what_cupti_says_after_torchs_profiler_is_not_taken_for_nanoseconds(who: str) -> None:
    command = [sys.executable, "-c", PROFILED, who]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() in ([["refused"]] if who == "first" else [["refused"], ["nanoseconds"]])


def test_launch_bound_adds_take_far_less_in_a_graph(cuda: CudaClock) -> None:
    values = torch.zeros(1024, device="cuda")

    def adds() -> torch.Tensor:
        for _ in range(50):
            values.add_(1)
        return values

    op = Op(adds)
    walls = [cuda.wall(op) for _ in range(20)]
    host = cuda.enqueued
    graph = cuda.graph(op, lambda: 0)
    assert graph.nodes == 50
    replay = median([cuda.replays(graph, op, 10) for _ in range(10)])
    assert replay < 0.6 * median(walls)
    assert replay < host
    before = values[0].item()
    graph.replay()
    torch.cuda.synchronize()
    assert values[0].item() == before + 50, "a replay does the call's work"


def test_a_call_that_waits_is_refused_before_anything_is_spoiled(cuda: CudaClock) -> None:
    values = torch.ones(1024, device="cuda")
    with pytest.raises(NotCaptured) as refused:
        cuda.graph(Op(lambda: values.sum().item()), lambda: 0)
    assert (refused.value.why, refused.value.spoiled) == ("host_sync", False)
    assert cuda.graph(Op(lambda: values.add_(1)), lambda: 0).nodes == 1, "the next can be captured"


def test_a_call_that_compiles_each_time_is_refused(cuda: CudaClock) -> None:
    count = iter(range(100))
    with pytest.raises(NotCaptured) as refused:
        cuda.graph(sleep(1000), lambda: next(count))
    assert (refused.value.why, refused.value.spoiled) == ("compiles", False)


SPOILING = """
import sys, torch
from abprof.kit import Op
from abprof.worker.clocks import NotCaptured, clock
cuda, x, other = clock("cuda"), torch.ones(1024, device="cuda"), torch.cuda.Stream()
def elsewhere():
    with torch.cuda.stream(other):
        x.add_(1)
calls = {"waits": lambda: (x.add_(1), torch.cuda.synchronize()), "elsewhere": elsewhere,
         "raises": lambda: torch.cuda.is_current_stream_capturing() and 1 / 0 or x.add_(1)}
try:
    cuda.graph(Op(calls[sys.argv[1]]), lambda: 0)
except NotCaptured as error:
    print(error.why, error.spoiled)
else:
    print("captured")
sys.stdout.flush()
import os; os._exit(0)  # an orderly end of a spoiled process may abort
"""


@pytest.mark.parametrize(
    ("call", "message"), [("waits", "error True"), ("elsewhere", "empty False"), ("raises", "error True")]
)
def test_what_only_a_capture_shows_is_typed(call: str, message: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SPOILING, call], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.startswith(message), (done.stdout, done.stderr)
