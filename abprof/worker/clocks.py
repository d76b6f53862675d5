"""How a call is timed: one class a kind of device, whose methods are the timers. All times are nanoseconds."""
# ruff: noqa: ARG002

from __future__ import annotations

import os
import platform
import random
import resource
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from abprof.worker.api import Op, Unsupported


class NotCaptured(Unsupported):
    """A call that cannot be captured. `spoiled`: a capture had begun, and torch's allocator and generators may be left in
    any state (CUDAGraph::reset): this process must not measure any more."""

    def __init__(self, why: str, reason: str, *, spoiled: bool = False) -> None:
        super().__init__(reason)
        self.why, self.spoiled = why, spoiled  # why: one word


class Clock:
    """Times calls on one device. What only a GPU has raises Unsupported here."""

    kind: str
    device: Any  # torch.device
    enqueued = 0.0  # host time to enqueue the last call of `wall`; 0 where the host is the device
    profiled = False  # whether torch's profiler ran on the device in this process

    def sync(self) -> None:
        """Return when the device is idle."""

    def turn(self, op: Op, calls: int, *, cold: bool, arm: str = "") -> float:
        """Mean of `calls` calls by the judged timer, each after `op.reset()`; `cold` flushes the cache before each.

        How long the host needs for an operation is remembered under `arm` until `reset_peak`.
        """
        raise NotImplementedError

    def wall(self, op: Op) -> float:
        """One call by the host's clock, from an idle device to an idle device."""
        raise NotImplementedError

    def empty(self, times: int, *, cold: bool) -> float:
        """What `turn` reads of an empty operation: the median of `times` readings, or 0 without launch cost."""
        return 0.0

    def mhz(self) -> float:
        """The device's mean clock over the last `turn`, MHz; 0 if unknown."""
        return 0.0

    def pad(self, placement: int) -> object:
        """A buffer of random size that moves the next allocation; the same size for the same `placement`."""
        raise NotImplementedError

    def peak_bytes(self) -> int | None:
        """Peak memory since the last `reset_peak`; None if unknown."""
        return None

    def reset_peak(self) -> None:
        """Reset the peak and release cached memory."""

    def identity(self) -> tuple[str, str, int, dict[str, str]]:
        """(name, uuid, bytes of memory, further facts)."""
        raise NotImplementedError

    # Of GPUs alone:

    def graph(self, op: Op, compiled: Callable[[], int]) -> Any:
        """A call captured in a CUDA graph. Raises NotCaptured."""
        raise Unsupported("CUDA graphs need a GPU")

    def replays(self, graph: Any, op: Op, times: int, *, arm: str = "") -> float:
        """Mean of `times` replays with warm caches; one by one if `op` has a reset."""
        raise Unsupported("CUDA graphs need a GPU")

    def kernels(self, op: Op, calls: int, *, cold: bool) -> float:
        """Mean sum of the durations of all kernels, copies and fills of a call, by CUPTI."""
        raise Unsupported("CUPTI needs a GPU")

    def span(self, op: Op, calls: int, *, cold: bool, arm: str = "") -> float:
        """Mean time from the start of a call's first kernel to the end of its last, by CUPTI."""
        raise Unsupported("CUPTI needs a GPU")

    def unrecorded(self) -> str:
        """Why `kernels` and `span` cannot be read in this process, or ""."""
        return "CUPTI needs a GPU"

    def sustained(self, op: Op, calls: int) -> float:
        """Mean of the last two thirds of `calls` calls without a pause, resets included."""
        raise Unsupported("sustained timing needs a GPU")


class CpuClock(Clock):
    """Wall time on the host."""

    kind = "cpu"

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        _limit_memory()

    def turn(self, op: Op, calls: int, *, cold: bool, arm: str = "") -> float:
        """Mean over calls; caches stay warm, also if `cold` (docs/MEASUREMENT.md)."""
        readings = []
        for _ in range(calls):
            if op.reset:
                op.reset()
            start = time.perf_counter_ns()
            op.call()
            readings.append(time.perf_counter_ns() - start)
        return mean(readings)

    def wall(self, op: Op) -> float:
        return self.turn(op, 1, cold=False)

    def pad(self, placement: int) -> object:
        """Up to 4 MiB in 64-byte steps."""
        return torch.empty(64 * random.Random(placement).randrange(1, 1 << 16), dtype=torch.uint8)

    def identity(self) -> tuple[str, str, int, dict[str, str]]:
        facts = {"threads": str(torch.get_num_threads()), "capability": torch.backends.cpu.get_cpu_capability()}
        with open("/proc/cpuinfo") as file:
            models = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
        name = models[0] if models else platform.processor() or platform.machine()
        return name, "", os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), facts


def mean(readings: Sequence[float]) -> float:
    """Mean of a turn's calls, or the smallest if that is not positive: then the parent drops the round."""
    least = min(readings)
    return sum(readings) / len(readings) if least > 0 else float(least)


def shortest(readings: Sequence[float]) -> float:
    """The smallest positive reading, or 0."""
    return float(min((reading for reading in readings if reading > 0), default=0.0))


def _limit_memory() -> None:
    """Limit this process to 90 % of the free memory: a greedy workload gets a MemoryError and the machine does not swap."""
    with open("/proc/meminfo") as file:
        rows = dict(line.split(":") for line in file)
    wanted = int(int(rows["MemAvailable"].split()[0]) * 1024 * 0.9)
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard == resource.RLIM_INFINITY or wanted < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (wanted if soft == -1 else min(soft, wanted), hard))
