"""A wait for a processor is not part of a call's time (abprof/worker/clocks.py)."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from abprof.worker.api import Op
from abprof.worker.clocks import Clock

CALLS = 10


def _burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


@pytest.fixture
def shared_core() -> Iterator[None]:
    """This process on one processor, which another process uses all the time."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:  # inherits the processor
        yield
        other.kill()
    os.sched_setaffinity(0, before)


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Return the readings of the clock and the time on the wall of some calls, in seconds."""
    spans = []

    def operation() -> None:
        start = time.perf_counter()
        call()
        spans.append(time.perf_counter() - start)

    clock = Clock()
    return sum(clock.wall(Op(operation)) for _ in range(CALLS)) / 1e9, sum(spans)


@pytest.mark.usefixtures("shared_core")
def test_waiting_for_a_processor_is_not_counted() -> None:
    """The calls take 0.3 s of the processor, and about twice as long on the wall."""
    read, wall = timed(lambda: _burn(0.03))
    assert 0.3 < read < 0.75 * wall


@pytest.mark.usefixtures("shared_core")
def test_the_work_of_other_threads_is_counted() -> None:
    """The calling thread sleeps, then waits for the processor, while its helper works."""

    def helped() -> None:
        helper = threading.Thread(target=_burn, args=(0.03,))
        helper.start()
        _burn(0.002)
        helper.join()

    read, wall = timed(helped)
    assert read > 0.98 * wall


def test_a_sleep_is_counted() -> None:
    read, wall = timed(lambda: time.sleep(0.01))
    assert 0.1 <= read <= wall * 1.02


@pytest.mark.usefixtures("shared_core")
def test_a_wait_between_calls_is_not_taken_off() -> None:
    """What resets the operation takes ten times as long as the operation."""
    operation = Op(lambda: _burn(0.003), reset=lambda: _burn(0.03))
    assert Clock().turn(operation, CALLS, cold=False) > 0.003e9
