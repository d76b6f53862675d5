"""What is measured on, seen from the parent: identity, state, reasons not to measure, and the lease.

In: the values of `--device`. Out: a `Device`. Devices are read, never changed; torch is not imported.
"""

from __future__ import annotations

from collections.abc import Sequence

from abprof.devices.device import Device
from abprof.devices.lease import lease
from abprof.records.errors import AbprofError

__all__ = ["Device", "choose", "lease", "several", "usable"]


def choose(names: Sequence[str]) -> Device:
    """The device for `--device cpu | cuda | cuda:N | GPU-UUID | simulated`; () means the first GPU, or else the CPU.

    Raises AbprofError for a missing device, and for more than one.
    """
    if len(names) > 1:
        raise AbprofError(f"--device was given {len(names)} times; this command measures on one device")
    return _named(names[0]) if names else _first()


def usable(names: Sequence[str]) -> Device:
    """As `choose`. Raises AbprofError also if measurements on it could not be trusted (MIG slices, exclusive mode, ...)."""
    return _ready(choose(names))


def several(names: Sequence[str], most: int | None = 1) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """Devices to spread a run over, and a line for each that was left out.

    All of `names`, or without names the first `most` usable GPUs (None: all), or the CPU if there is none. Raises
    AbprofError if a named device cannot be used.
    """
    if names:
        found = {device.lease: device for device in map(_named, names)}
        if len(found) > 1 and "cpu" in found:
            raise AbprofError("a CPU is measured alone", where="--device cpu", advice="leave the other devices out")
        return tuple(map(_ready, found.values())), ()
    from abprof.devices import cuda

    refusals = [(gpu, gpu.refusal()) for gpu in cuda.every()]
    fit = [gpu for gpu, refusal in refusals if not refusal][:most]
    if not fit:
        return (_ready(_first()),), ()
    left_out = [f"{gpu.lease} is left out: {refusal[0]}" for gpu, refusal in refusals if refusal]
    return tuple(fit), tuple(left_out) if most is None else ()


def _named(name: str) -> Device:
    if name == "simulated" or name.startswith("simulated:"):
        from abprof.devices.device import SimulatedDevice

        return SimulatedDevice(name)
    if name == "cpu":
        return _cpu()
    if name == "cuda" or name.startswith(("cuda:", "GPU-")):
        from abprof.devices import cuda

        found = cuda.find(name.removeprefix("cuda").removeprefix(":"))
        if found is None:
            advice = "abprof doctor lists the devices; --device cpu"
            raise AbprofError("no CUDA device", where=f"--device {name}", advice=advice)
        return found
    raise AbprofError(f"unknown device {name!r}", where="--device", advice="cpu, cuda, cuda:N or a GPU's UUID")


def _first() -> Device:
    from abprof.devices import cuda

    return cuda.find(None) or _cpu()


def _cpu() -> Device:
    from abprof.devices.cpu import CpuDevice

    return CpuDevice()


def _ready(device: Device) -> Device:
    if refusal := device.refusal():
        raise AbprofError(refusal[0], where=device.lease, advice=refusal[1])
    return device
