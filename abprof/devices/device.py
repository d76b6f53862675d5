"""The base class of devices, the CPU, and the simulated one."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

from abprof.records import Machine, MachineState


class Device:
    """A device to measure on. The base class refuses nothing and knows no state."""

    kind: Literal["cpu", "cuda", "simulated"]
    lease: str  # name of its lock: "cpu", or the GPU's UUID
    worker: str  # its name in a worker: "cpu", "cuda:UUID"

    def machine(self) -> Machine:
        """The record of the device and its host."""
        raise NotImplementedError

    def refusal(self) -> tuple[str, str] | None:
        """(reason, advice) if measurements could not be trusted as the device is set up, or None."""
        return None

    def busy(self) -> tuple[str, str] | None:
        """(reason, advice) if another process uses it now, or None. Call it with the lease held."""
        return None

    def gone(self) -> str | None:
        """Why the device can no longer be used, or None. Call it after a worker failed."""
        return None

    def watch(self, own: Callable[[], Iterable[int]]) -> None:
        """Begin to sample. `own` returns abprof's process ids; it is called when samples are read, and ids stay known."""

    def state(self) -> MachineState:
        """What was sampled since `watch` or the last `state`."""
        return MachineState()

    def bad_times(self) -> list[tuple[int, int, str]]:
        """(from, to, why), time.monotonic_ns(), of what voids a round, since the last call."""
        return []


class CpuDevice(Device):
    """Never refused, busy or voided: a CPU is shared by its nature, and load slows both sides of a round alike."""

    kind = lease = worker = "cpu"  # one lease covers the whole machine

    def machine(self) -> Machine:
        """Processor, cores, memory and frequency governor."""
        import psutil

        lines = Path("/proc/cpuinfo").read_text().splitlines()
        models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
        facts = {"governor": governor.read_text().strip()} if governor.exists() else {}
        return Machine(
            host=platform.node(),
            device=models[0] if models else platform.machine(),
            kind="cpu",
            cpus=len(os.sched_getaffinity(0)),
            memory_bytes=int(psutil.virtual_memory().total),
            facts={"system": f"{platform.system()} {platform.release()}", **facts},
        )

    def state(self) -> MachineState:
        """Load over the last minute, and the mean core frequency if known."""
        import psutil

        frequency = psutil.cpu_freq()
        return MachineState(load1=os.getloadavg()[0], cpu_mhz=frequency.current or None if frequency else None)


class SimulatedDevice(Device):
    """The device of simulated workers. There may be several, of several models."""

    kind = "simulated"

    def __init__(self, name: str = "simulated") -> None:
        """`name`: simulated, simulated:N or simulated:N:MODEL."""
        self.lease = self.worker = name
        self._model = name.partition(":")[2].partition(":")[2]

    def machine(self) -> Machine:
        uuid = self.lease if self.lease != "simulated" else ""
        return Machine(host="simulated", device=self._model or "simulated", kind="simulated", uuid=uuid)

    def gone(self) -> str | None:
        """A simulated worker leaves a mark beside its scenario when its device disappears."""
        mark = Path(f"{os.environ.get('ABPROF_SIMULATED', '')}.gone.{self.lease}")
        return "the simulated device has disappeared" if mark.exists() else None
