"""The CPU as a device: one lease covers the whole machine; state comes from /proc and /sys."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

from abprof.records import Machine, MachineState


class CpuDevice:
    """See abprof.devices.protocols.Device."""

    kind: Literal["cpu"] = "cpu"
    lease = "cpu"
    worker = "cpu"

    def machine(self) -> Machine:
        """Processor, cores and memory."""
        import psutil

        return Machine(
            host=platform.node(),
            device=_processor(),
            kind="cpu",
            cpus=len(os.sched_getaffinity(0)),
            memory_bytes=int(psutil.virtual_memory().total),
            facts={"system": f"{platform.system()} {platform.release()}", **_governor()},
        )

    def refusal(self) -> tuple[str, str] | None:
        """A CPU is shared by its nature: load is recorded, not refused."""
        return None

    def busy(self) -> tuple[str, str] | None:
        """The same."""
        return None

    def gone(self) -> str | None:
        """It is what this is said on."""
        return None

    def watch(self, own: Callable[[], Iterable[int]]) -> None:
        """Nothing is sampled between blocks."""
        del own

    def state(self) -> MachineState:
        """Load over the last minute, and the mean core frequency where the system tells it."""
        return MachineState(load1=os.getloadavg()[0], cpu_mhz=_frequency())

    def bad_times(self) -> list[tuple[int, int, str]]:
        """None: a busy CPU slows both sides of a round alike."""
        return []


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _governor() -> dict[str, str]:
    path = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    return {"governor": path.read_text().strip()} if path.exists() else {}


def _frequency() -> float | None:
    readings = []
    for path in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_cur_freq"):
        try:
            readings.append(int(path.read_text()) / 1000)
        except (OSError, ValueError):
            continue
    return sum(readings) / len(readings) if readings else None
