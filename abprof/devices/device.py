"""Define the base class of devices, the CPU, and simulated devices."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

from abprof.records import POWER_CAP, Machine, MachineState
from abprof.records.errors import AbprofError


class Device:
    """A device to measure on. By default a device is usable, is never busy, and reports no state."""

    kind: Literal["cpu", "cuda", "simulated"]
    lease: str  # name of the device's lock: "cpu", or the GPU's UUID
    worker: str  # name of the device in requests to workers: "cpu", "cuda:UUID"

    def machine(self) -> Machine:
        """Return the record of the device and its host."""
        raise NotImplementedError

    def refusal(self) -> tuple[str, str] | None:
        """Return (reason, advice) if the device's settings make times unreliable, else None."""
        return None

    def locked(self, mhz: int) -> contextlib.AbstractContextManager[None]:
        """Hold the device's clock at `mhz` during the block. Raises AbprofError if that is not possible."""
        what = f"the clocks of {self.lease} cannot be set"
        raise AbprofError(what, where=f"--lock-clocks {mhz}", advice="leave the option out")

    def busy(self) -> tuple[str, str] | None:
        """Return (reason, advice) if another process uses the device now, else None. The caller holds the lease."""
        return None

    def gone(self) -> str | None:
        """Return why the device can no longer be used, or None. Call after a worker failed."""
        return None

    def watch(self, own: Callable[[], Iterable[int]]) -> None:
        """Start to sample the device's state. `own` returns the ids of abprof's processes."""

    def state(self) -> MachineState:
        """Return the state sampled since `watch` or the last call of `state`."""
        return MachineState()

    def bad_times(self) -> list[tuple[int, int, str]]:
        """Return (begin, end, reason), by time.monotonic_ns(), of unreliable spans of time since the last call."""
        return []


class CpuDevice(Device):
    """The host's CPU. Unlike a GPU it may be measured while it is busy: other load slows both sides of a round alike."""

    kind = lease = worker = "cpu"  # one lease covers the whole machine

    def machine(self) -> Machine:
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
        return MachineState(load1=os.getloadavg()[0])


class SimulatedDevice(Device):
    """A device of simulated workers, for tests."""

    kind = "simulated"

    def __init__(self, name: str = "simulated") -> None:
        self.lease = self.worker = name
        self._model = name.partition(":")[2].partition(":")[2]

    def machine(self) -> Machine:
        uuid = self.lease if self.lease != "simulated" else ""
        return Machine(host="simulated", device=self._model or "simulated", kind="simulated", uuid=uuid)

    def gone(self) -> str | None:
        mark = Path(f"{os.environ.get('ABPROF_SIMULATED', '')}.gone.{self.lease}")
        return "the simulated device has disappeared" if mark.exists() else None

    def state(self) -> MachineState:
        mark = Path(f"{os.environ.get('ABPROF_SIMULATED', '')}.capped")
        return MachineState(throttle=(POWER_CAP,) if mark.exists() else ())
