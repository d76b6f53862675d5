"""How often an arm is called before its first turn, on a clock that counts."""

from __future__ import annotations

import types
from typing import Any

import pytest

from abprof.records import messages as wire
from abprof.worker.api import Op
from abprof.worker.arms import Arms


class Clock:
    """A GPU's, whose calls all take 20 ms."""

    device, enqueued = "cpu", 3e4

    def __init__(self, kind: str) -> None:
        self.kind, self.calls = kind, 0

    def wall(self, op: Op) -> float:
        self.calls += 1
        return 2e7

    def turn(self, op: Op, calls: int, *, cold: bool, arm: str) -> float:
        self.calls += calls
        return 2e7

    def pad(self, placement: int) -> None:
        return None

    peak_bytes = reset_peak = sync = lambda self: None


@pytest.mark.parametrize(
    ("kind", "usual_ns", "calls"), [("cuda", 0.0, 5), ("cuda", 2e7, 2), ("cuda", 9e6, 5), ("cpu", 2e7, 5)]
)
def test_a_call_of_10_ms_that_an_epoch_timed_is_soon_warm_on_a_gpu(kind: str, usual_ns: float, calls: int) -> None:
    load: Any = types.SimpleNamespace(inputs=lambda *_: None, prepare=lambda *_: Op(lambda: None))
    clock: Any = Clock(kind)
    arms = Arms(clock, lambda _: load, lambda: load, lambda: 0)
    opened = arms.open(wire.Open("w", {}, "base", usual_ns=usual_ns))
    assert (opened.call_ns, opened.host_ns, clock.calls) == (2e7 if calls == 5 else usual_ns, 3e4, calls)


@pytest.mark.parametrize(("first", "kept", "calls"), [(1.4e8, 1.4e8, 1), (4e8, 1.1e8, 2)])
def test_what_a_long_call_had_to_load_is_no_part_of_its_wall_time(first: float, kept: float, calls: int) -> None:
    load: Any = types.SimpleNamespace(inputs=lambda *_: None, prepare=lambda *_: Op(lambda: None))
    clock: Any = Clock("cuda")
    took = [first, 1.1e8]
    clock.wall = lambda _: took.pop(0)
    arms = Arms(clock, lambda _: load, lambda: load, lambda: 0)
    assert arms.open(wire.Open("w", {}, "base", usual_ns=1e8)).call_ns == 1e8
    assert (arms["base"].wall, 2 - len(took)) == (kept, calls)
