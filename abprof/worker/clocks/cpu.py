"""The CPU's clock: the host's monotonic clock around each call, caches warm."""

from __future__ import annotations

import os
import platform
import random
import resource
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from abprof.worker.api import Op, Unsupported
from abprof.worker.clocks import mean

if TYPE_CHECKING:
    from abprof.worker.clocks.graphs import Graph


_NO_CUPTI = "CUPTI times a GPU"


class CpuClock:
    """Wall time on the host. See Clock for the contract."""

    kind = "cpu"

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.enqueued = 0.0
        self.profiled = False
        _limit_memory()

    def sync(self) -> None:
        """Nothing runs ahead of the host."""

    def turn(self, op: Op, calls: int, *, cold: bool, arm: str = "") -> float:
        """Mean over calls. `cold` is ignored: caches are warm on a CPU (docs/DESIGN.md, Measurement, 0)."""
        del cold, arm
        readings = []
        for _ in range(calls):
            if op.reset:
                op.reset()
            start = time.perf_counter_ns()
            op.call()
            readings.append(time.perf_counter_ns() - start)
        return mean(readings)

    def empty(self, times: int, *, cold: bool) -> float:
        """0: reading the host's clock twice costs 0.1 us, in every process alike."""
        del times, cold
        return 0.0

    def graph(self, op: Op, compiled: Callable[[], int]) -> Graph:
        """Raises Unsupported."""
        del op, compiled
        raise Unsupported("a CUDA graph is of a GPU")

    def replays(self, graph: Graph, op: Op, times: int, *, arm: str = "") -> float:
        """Raises Unsupported."""
        del graph, op, times, arm
        raise Unsupported("a CUDA graph is of a GPU")

    def kernels(self, op: Op, calls: int, *, cold: bool) -> float:
        """Raises Unsupported."""
        del op, calls, cold
        raise Unsupported(_NO_CUPTI)

    def span(self, op: Op, calls: int, *, cold: bool, arm: str = "") -> float:
        """Raises Unsupported."""
        del op, calls, cold, arm
        raise Unsupported(_NO_CUPTI)

    def unrecorded(self) -> str:
        """There is nothing to record."""
        return _NO_CUPTI

    def sustained(self, op: Op, calls: int) -> float:
        """Raises Unsupported: nothing pauses between a CPU's calls anyway."""
        del op, calls
        raise Unsupported("a sustained mode times a GPU at its power limit")

    def mhz(self) -> float:
        """0: no unprivileged reading is fine enough."""
        return 0.0

    def wall(self, op: Op) -> float:
        """The same clock."""
        return self.turn(op, 1, cold=False)

    def do_bench(self, op: Op) -> float:
        """Raises Unsupported."""
        del op
        raise Unsupported("do_bench times a GPU")

    def pad(self, placement: int) -> object:
        """Up to 4 MiB in 64-byte steps: moves the allocator's next small blocks; pages are re-drawn by the system."""
        return torch.empty(64 * random.Random(placement).randrange(1, 1 << 16), dtype=torch.uint8)

    def peak_bytes(self) -> int | None:
        """None: the process's peak includes the interpreter, and is not one call's."""
        return None

    def reset_peak(self) -> None:
        """Nothing is kept."""

    def identity(self) -> tuple[str, str, int, dict[str, str]]:
        """The processor's name and the thread count."""
        facts = {"threads": str(torch.get_num_threads()), "capability": torch.backends.cpu.get_cpu_capability()}
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return _processor(), "", pages, facts


def _limit_memory() -> None:
    """Let a workload that eats memory get a MemoryError, not the machine into swap."""
    with open("/proc/meminfo") as file:
        rows = dict(line.split(":") for line in file)
    available = int(rows["MemAvailable"].split()[0]) * 1024
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = int(available * 0.9)
    if hard == resource.RLIM_INFINITY or wanted < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (wanted if soft == -1 else min(soft, wanted), hard))


def _processor() -> str:
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
