"""The CPU as a device: one lease covers the whole machine; state comes from /proc and /sys."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from abprof.devices.device import Device
from abprof.records import Machine, MachineState


class CpuDevice(Device):
    """Never refused, busy or voided: a CPU is shared by its nature, and load slows both sides of a round alike."""

    kind = "cpu"
    lease = "cpu"
    worker = "cpu"

    def machine(self) -> Machine:
        """Processor, cores, memory and frequency governor."""
        import psutil

        lines = Path("/proc/cpuinfo").read_text().splitlines()
        models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
        facts = {"governor": governor.read_text().strip()} if governor.exists() else {}
        return Machine(
            host=platform.node(),
            device=models[0] if models else platform.processor() or platform.machine(),
            kind="cpu",
            cpus=len(os.sched_getaffinity(0)),
            memory_bytes=int(psutil.virtual_memory().total),
            facts={"system": f"{platform.system()} {platform.release()}", **facts},
        )

    def state(self) -> MachineState:
        """Load over the last minute, and the mean core frequency if known."""
        readings = []
        for path in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_cur_freq"):
            try:
                readings.append(int(path.read_text()) / 1000)
            except (OSError, ValueError):
                continue
        return MachineState(load1=os.getloadavg()[0], cpu_mhz=sum(readings) / len(readings) if readings else None)
