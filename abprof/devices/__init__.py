"""Choose and lock the devices to measure on: `choose` and `several` read values of `--device`, `lease` locks a device.

A `Device` reports its identity, its state, and reasons not to measure on it. Only `--lock-clocks` changes a setting.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from abprof.devices.device import CpuDevice, Device, SimulatedDevice
from abprof.records.errors import AbprofError
from abprof.system import locks

__all__ = ["Device", "choose", "lease", "not_busy", "several"]


def choose(names: Sequence[str]) -> Device:
    """Return the device named `cpu`, `cuda`, `cuda:N`, `GPU-UUID` or `simulated`; without a name a GPU, else the CPU.
    Raises AbprofError if the device does not exist, or if `names` has more than one name."""
    from abprof.devices import cuda

    if len(names) > 1:
        raise AbprofError(f"--device was given {len(names)} times; this command measures on one device")
    return _named(names[0]) if names else next(iter(cuda.every()), CpuDevice())


def several(names: Sequence[str], most: int | None = 1) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """Return the devices of a run and, if `most` is None, a line about each unusable GPU.

    The devices are those in `names`. If `names` is empty: the first `most` usable GPUs (None: all), or the CPU if none.
    Raises AbprofError if a named device does not exist or gives no reliable times (MIG slices, exclusive mode, ...).
    """
    from abprof.devices import cuda

    refusals: list[tuple[Device, tuple[str, str] | None]]
    if names:
        found = {device.lease: device for device in map(_named, names)}
        if len(found) > 1 and "cpu" in found:
            raise AbprofError("cannot be combined with GPUs", where="--device cpu", advice="leave out the others")
        refusals = [(device, device.refusal()) for device in found.values()]
    else:
        refusals = [(gpu, gpu.refusal()) for gpu in cuda.every()] or [(CpuDevice(), None)]
    fit = [device for device, refusal in refusals if not refusal]
    for device, refusal in refusals if names or not fit else ():
        if refusal:
            raise AbprofError(refusal[0], where=device.lease, advice=refusal[1])
    left_out = [f"{device.lease} is left out: {refusal[0]}" for device, refusal in refusals if refusal]
    return tuple(fit if names else fit[:most]), tuple(left_out) if most is None else ()


def _named(name: str) -> Device:
    from abprof.devices import cuda

    if name == "simulated" or name.startswith("simulated:"):
        return SimulatedDevice(name)
    if name == "cpu":
        return CpuDevice()
    if name == "cuda" or name.startswith(("cuda:", "GPU-")):
        gpus, wanted = cuda.every(), name.removeprefix("cuda").removeprefix(":")
        if not gpus:
            advice = "abprof doctor lists the devices; or use --device cpu"
            raise AbprofError("no CUDA device", where=f"--device {name}", advice=advice)
        at = int(wanted or 0) if wanted.isdigit() or not wanted else -1
        found = gpus[at : at + 1] if at >= 0 else [gpu for gpu in gpus if gpu.lease.startswith(wanted)]
        if not found:
            there = ", ".join(gpu.lease for gpu in gpus)
            raise AbprofError(f"no GPU {wanted}", where="--device", advice=f"the GPUs are {there}")
        return found[0]
    raise AbprofError(f"unknown device {name!r}", where="--device", advice="use cpu, cuda, cuda:N or a GPU's UUID")


def not_busy(device: Device) -> None:
    """Raise AbprofError if another program uses the device."""
    busy = device.busy()
    if busy:
        raise AbprofError(busy[0], where=device.lease, advice=busy[1])


@contextlib.contextmanager
def lease(state: Path, device: str, *, wait: bool, label: str, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of `device` ("cpu" or a GPU's UUID) while the `with` block runs. Waiting processes print `label`.

    If the device is locked, wait, or raise AbprofError if `wait` is False. The lock also ends if the process is killed.
    """
    began: list[float] = []

    def busy(whom: str) -> None:
        if not wait:
            raise AbprofError(f"{device} is in use by {whom}", advice="run without --no-wait to wait for it")
        say(f"waiting for {device}, in use by {whom}")
        began.append(time.monotonic())

    lock = state / "locks" / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', device)}.lock"
    with locks.locked(lock, f"{label} (process {os.getpid()})", busy):
        if began:
            say(f"{device} is free after {time.monotonic() - began[0]:.0f} s")
        yield
