"""A worker's timers on a simulated device; test_timers_gpu.py uses a real one."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from abprof.records import messages as wire
from abprof.worker import clocks
from abprof.worker.api import Op, Unsupported
from abprof.worker.arms import Arms
from abprof.worker.clocks import CudaClock, NotCaptured, Records, Stamps


@pytest.fixture
def made() -> tuple[Any, Arms]:
    """A device on which a call takes 5 us, a replay 2 and its kernels 1; and its arms, with a workload that does nothing."""
    device = mock.create_autospec(CudaClock, instance=True, enqueued=9e3, device=torch.device("cpu"), kind="cuda")
    says = {"turn": 5e3, "wall": 2e4, "mhz": 1500.0, "replays": 2e3, "kernels": 1e3, "peak_bytes": None, "empty": 0.0}
    for name, value in {**says, "graph": SimpleNamespace(nodes=3)}.items():
        getattr(device, name).return_value = value
    load: Any = SimpleNamespace(inputs=lambda case, device, seed: 1, prepare=lambda *of: Op(lambda: None))
    arms = Arms(wire.Start("cpu", "base"))
    arms.clock, arms.module, arms.kernel = device, lambda name: load, lambda: ModuleType("k")  # type: ignore[method-assign]
    return device, arms


def test_each_timer_reads_a_quantity_of_its_own(made: tuple[Any, Arms]) -> None:
    device, arms = made
    opened = arms.open(wire.Open("w", {}, "base"))
    assert (opened.call_ns, opened.host_ns) == (5e3, 9e3)
    captured = arms.capture(wire.Capture("base"))
    assert (captured.why, captured.replay_ns) == ("", 2e3)
    read = {t: arms.turn(wire.Turn("base", 4, t)) for t in ("cuda_event", "cuda_graph", "cupti", "wall_clock")}
    assert {timer: turned.value for timer, turned in read.items()} == {
        "cuda_event": 5e3, "cuda_graph": 2e3, "cupti": 1e3, "wall_clock": 2e4,
    }  # fmt: skip
    assert [read[timer].mhz for timer in ("cuda_event", "cuda_graph", "cupti")] == [1500.0, 1500.0, 0.0]
    assert device.graph.call_count == 1, "the graph of these inputs is kept"


def test_what_cannot_be_captured_says_why_and_whether_the_process_is_spoiled(made: tuple[Any, Arms]) -> None:
    device, arms = made
    arms.open(wire.Open("w", {}, "base"))
    device.graph.side_effect = NotCaptured("host_sync", "it waits")
    assert arms.capture(wire.Capture("base")) == wire.Captured("host_sync", "it waits")
    device.graph.side_effect = NotCaptured("error", "it fails (ValueError: x)", spoiled=True)
    reported = arms.capture(wire.Capture("base"))
    assert (reported.why, reported.spoiled, "ValueError: x" in reported.reason) == ("error", True, True)
    with pytest.raises(Unsupported, match="ValueError"):
        arms.turn(wire.Turn("base", 1, "cuda_graph"))


def test_a_cpu_has_neither(made: tuple[Any, Arms]) -> None:
    _, arms = made
    arms.clock = clocks.Clock()
    arms.open(wire.Open("w", {}, "base"))
    for timer in ("cuda_graph", "cupti", "sustained"):
        with pytest.raises(Unsupported, match="needs a GPU"):
            arms.turn(wire.Turn("base", 1, timer))
    with pytest.raises(Unsupported, match="a CUDA graph needs a GPU"):
        arms.capture(wire.Capture("base"))


class Cupti(ModuleType):
    """CUPTI as far as Records goes: records come at a flush, to the last who registered."""

    class ActivityKind:
        MEMCPY, MEMSET, CONCURRENT_KERNEL, MARKER = 1, 2, 10, 8

    def __init__(self) -> None:
        super().__init__("cupti.cupti")
        self.enabled: set[int] = set()
        self.pending: list[Any] = []
        self.held = ""

    def ran(self, kind: int, ns: int, start: int = 100) -> None:
        if kind in self.enabled:
            self.pending.append(SimpleNamespace(kind=kind, start=start, end=start + ns))

    def activity_register_callbacks(self, requested: Any, completed: Any) -> None:
        assert requested()[0] >= 1 << 20
        self.completed = completed

    def activity_enable(self, kind: int) -> None:
        if self.held:
            raise ArithmeticError(self.held)
        self.enabled.add(kind)

    def activity_disable(self, kind: int) -> None:
        self.enabled.discard(kind)

    def activity_flush_all(self, flag: int) -> None:
        assert flag == 1
        reported, self.pending = self.pending, []
        self.completed(reported)


@pytest.fixture
def cupti(monkeypatch: pytest.MonkeyPatch) -> Cupti:
    fake, package = Cupti(), ModuleType("cupti")
    package.cupti = fake  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupti", package)
    monkeypatch.setitem(sys.modules, "cupti.cupti", fake)
    monkeypatch.setattr(clocks, "_KNOWN", Op(lambda: fake.ran(10, 101_000, start=NOW + 6_000)))
    return fake


def test_kernels_copies_and_fills_of_a_call_are_added_up(cupti: Cupti) -> None:
    records = Records()
    cupti.ran(10, 5)
    with records:
        assert not records.drained(), "what ran before is not the call's"
        for kind, ns in ((10, 700), (1, 20), (2, 3), (8, 9999)):
            cupti.ran(kind, ns)
        assert records.drained() == 723
        cupti.ran(10, 50)
    with records:
        assert not records.drained(), "nor is what was left"
    assert not cupti.enabled


NOW = 1_795_000_000_000_000_000  # ns since 1970: a float would round it to 256 of them


def test_a_cupti_that_somebody_holds_is_a_reason_and_no_crash(cupti: Cupti) -> None:
    cupti.held = "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"
    with (
        pytest.raises(Unsupported, match=r"CUPTI does not start \(ArithmeticError: .*another profiler may hold it"),
        Records(),
    ):
        pass


class OnNoDevice(CudaClock):
    """The clock for a GPU without one: events read 100 us of any call."""

    def __init__(self, cupti: Cupti) -> None:
        self.profiled, self._records, self._cupti, self._flush = False, None, cupti, None

    def sync(self) -> None: ...

    def turn(self, op: Op, calls: int, *, cold: bool, arm: str = "") -> float:
        return 1e5

    def _flush_l2(self) -> None:
        self._cupti.ran(2, 7_000, start=NOW - 9_000)


def two_kernels(cupti: Cupti) -> Op:
    """Of 3 and 5 us, 1 us apart, and the first is recorded last."""

    def call() -> None:
        cupti.ran(10, 5_000, start=NOW + 11_000)
        cupti.ran(10, 3_000, start=NOW + 7_000)

    return Op(call, reset=lambda: cupti.ran(10, 50_000, start=NOW - 60_000))


def test_neither_reset_nor_flush_is_part_of_a_call(cupti: Cupti) -> None:
    clock = OnNoDevice(cupti)
    assert clock.kernels(two_kernels(cupti), 3, cold=True) == 8_000
    assert clock.kernels(Op(lambda: None), 3, cold=True) == 0, "a call that launches nothing"


@pytest.mark.parametrize(
    ("reported", "why"),
    [(212_000, "CUPTI is wrong: 212.0 us for a kernel of 100.0 us"), (0, "CUPTI is wrong: 0.0 us")],
)
def test_cupti_is_tried_on_a_kernel_that_events_time_too(
    cupti: Cupti, monkeypatch: pytest.MonkeyPatch, reported: int, why: str
) -> None:
    """Ticks of the processor's counter, or records that do not come."""
    monkeypatch.setattr(clocks, "_KNOWN", Op(lambda: cupti.ran(10, reported, start=NOW + 6_000)))
    with pytest.raises(Unsupported, match=why):
        OnNoDevice(cupti).kernels(two_kernels(cupti), 1, cold=False)
    assert not cupti.enabled


def test_after_torchs_profiler_cupti_is_not_believed(cupti: Cupti) -> None:
    clock = OnNoDevice(cupti)
    assert clock.kernels(two_kernels(cupti), 1, cold=False) == 8_000
    assert not cupti.enabled
    clock.profiled = True
    with pytest.raises(Unsupported, match="ticks of the processor's counter"):
        clock.kernels(two_kernels(cupti), 1, cold=False)


def stamps(*took: tuple[int, int], turn: int = 5, began: int = 5) -> list[list[list[int]]]:
    """Stamps of multiprocessors whose turn `took` (cycles, ns)."""
    begun = [[900 * place, 70, began] for place, _ in enumerate(took)]
    return [begun, [[900 * place + cycles, 70 + ns, turn] for place, (cycles, ns) in enumerate(took)]]


FAST, SLOW, NONE = (1_600_000, 1_000_000), (1_590_000, 1_000_000), (0, 0)


@pytest.mark.parametrize(
    ("written", "mhz"),
    [
        (stamps(FAST, SLOW), 1595.0),
        (stamps(FAST, NONE, SLOW, (5, 0), (0, 5)), 1595.0),  # ids without a stamp; clocks that stood still
        (stamps(FAST, began=4), 0.0),  # of an earlier turn
        (stamps(FAST, turn=4), 0.0),
        ([[], []], 0.0),
    ],
)
def test_the_clock_is_the_mean_of_multiprocessors_with_both_stamps_of_the_turn(written: Any, mhz: float) -> None:
    one = object.__new__(Stamps)
    one._written, one._turn = torch.tensor(written), 5
    assert one.mhz() == pytest.approx(mhz)
