"""One module per kind of device: how a call is timed there. An explicit table, never a scan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from abprof.worker.api import Op

if TYPE_CHECKING:
    from abprof.worker.clocks.graphs import Graph


class Clock(Protocol):
    """Times calls on one device. All times are nanoseconds."""

    kind: str
    device: Any  # torch.device
    enqueued: float  # ns that the host took to enqueue the last call that `wall` made; 0 where it is the device
    profiled: bool  # whether torch's profiler ran on the device in this process

    def sync(self) -> None:
        """Return when the device is idle."""

    def turn(self, op: Op, calls: int, *, cold: bool, arm: str = "") -> float:
        """Mean time of a call by the judged timer, over `calls` calls, each after `op.reset()`.

        What is learnt of an operation (how long the host needs for it) is kept under `arm` until `reset_peak`.
        """

    def empty(self, times: int, *, cold: bool) -> float:
        """What `turn` reads of an operation that does nothing, median of so many; 0 where there is no such thing."""

    def graph(self, op: Op, compiled: Callable[[], int]) -> Graph:
        """A call captured in a CUDA graph. Raises NotCaptured, or Unsupported where there is no such thing."""

    def replays(self, graph: Graph, op: Op, times: int, *, arm: str = "") -> float:
        """Mean time of so many replays, warm caches; one by one where `op` has a reset."""

    def kernels(self, op: Op, calls: int, *, cold: bool) -> float:
        """Mean over calls of the durations of all that a call runs on the device. Raises Unsupported."""

    def span(self, op: Op, calls: int, *, cold: bool, arm: str = "") -> float:
        """Mean over calls of the time from the start of a call's first kernel to the end of its last. `arm` as in `turn`.
        Raises Unsupported."""

    def unrecorded(self) -> str:
        """Why `kernels` and `span` cannot be read in this process; "" where they can."""

    def sustained(self, op: Op, calls: int) -> float:
        """Mean time of calls without a pause, resets included, after a third of `calls` that is not timed."""

    def mhz(self) -> float:
        """The device's mean clock over the calls of the last `turn`, MHz; 0 where it is not known."""

    def wall(self, op: Op) -> float:
        """One call by the host's clock, from an idle device to an idle device."""

    def do_bench(self, op: Op) -> float:
        """One reading of triton.testing.do_bench, for `abprof selfcheck --against do_bench`."""

    def pad(self, placement: int) -> object:
        """Something of random size that shifts the next allocation; the same for the same `placement`."""

    def peak_bytes(self) -> int | None:
        """Most memory in use since the last `reset_peak`, or None where it is not known."""

    def reset_peak(self) -> None:
        """Forget the peak and what is cached."""

    def identity(self) -> tuple[str, str, int, dict[str, str]]:
        """(name, uuid, bytes of memory, further facts)."""


def mean(readings: Sequence[float]) -> float:
    """Of a turn's calls. Where the clock read zero or less at one of them, that reading: it says nothing of the others
    either, and the parent drops the round."""
    least = min(readings)
    return sum(readings) / len(readings) if least > 0 else float(least)


def shortest(readings: Sequence[float]) -> float:
    """The shortest of those that may be a time, or 0 where none may."""
    return float(min((reading for reading in readings if reading > 0), default=0.0))


def clock(device: str) -> Clock:
    """The clock for "cpu", "cuda" or "cuda:UUID". Raises RuntimeError when the device is not there."""
    if device == "cpu":
        from abprof.worker.clocks.cpu import CpuClock

        return CpuClock()
    from abprof.worker.clocks.cuda import CudaClock

    return CudaClock()
