"""How a call is timed: one class a kind of device, whose methods are the timers. All times are nanoseconds."""

from __future__ import annotations

from abprof.worker.clocks.base import Clock, mean, shortest

__all__ = ["Clock", "clock", "mean", "shortest"]


def clock(device: str) -> Clock:
    """The clock for "cpu", "cuda" or "cuda:UUID". Raises RuntimeError when the device is not there."""
    if device == "cpu":
        from abprof.worker.clocks.cpu import CpuClock

        return CpuClock()
    from abprof.worker.clocks.cuda import CudaClock

    return CudaClock()
