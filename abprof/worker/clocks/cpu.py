"""The CPU's timer: the host's monotonic clock around each call, caches warm."""

from __future__ import annotations

import os
import platform
import random
import resource
import time

import torch

from abprof.worker.api import Op
from abprof.worker.clocks.base import Clock, mean


class CpuClock(Clock):
    """Wall time on the host."""

    kind = "cpu"

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        _limit_memory()

    def turn(self, op: Op, calls: int, *, cold: bool, arm: str = "") -> float:  # noqa: ARG002
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


def _limit_memory() -> None:
    """Limit this process to 90 % of the free memory: a greedy workload gets a MemoryError and the machine does not swap."""
    with open("/proc/meminfo") as file:
        rows = dict(line.split(":") for line in file)
    wanted = int(int(rows["MemAvailable"].split()[0]) * 1024 * 0.9)
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard == resource.RLIM_INFINITY or wanted < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (wanted if soft == -1 else min(soft, wanted), hard))
