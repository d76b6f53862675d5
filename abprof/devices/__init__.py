"""The devices abprof can measure on, by kind. An explicit table."""

from __future__ import annotations

from collections.abc import Sequence

from abprof.devices.protocols import Device
from abprof.records.errors import AbprofError


def choose(asked: Sequence[str]) -> Device:
    """The device for `--device cpu | cuda | cuda:N | GPU-UUID | simulated`; () means a GPU where there is one.

    Raises AbprofError when it is not there, or when several are asked for.
    """
    if len(asked) > 1:
        raise AbprofError(f"--device was given {len(asked)} times; this measures on one device")
    return _named(asked[0]) if asked else _first()


def usable(asked: Sequence[str]) -> Device:
    """The same, ready to be measured on. Raises AbprofError for one that cannot be (MIG slices, exclusive mode, ...)."""
    return _ready(choose(asked))


def several(asked: Sequence[str], most: int | None = 1) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """Devices that a run may be spread over, and a line for each that was left out.

    Those `asked` for, all of which must do; or of the GPUs that may be used the first `most` (None: all of them) that do,
    and without a GPU the CPU. Raises AbprofError.
    """
    if asked:
        found = {device.lease: device for device in map(_named, asked)}
        if len(found) > 1 and "cpu" in found:
            raise AbprofError("a CPU is measured alone", where="--device cpu", advice="leave the other devices out")
        return tuple(map(_ready, found.values())), ()
    from abprof.devices import cuda

    gpus = cuda.every()
    refused = [(gpu, why) for gpu in gpus if (why := gpu.refusal())]
    fit = [gpu for gpu in gpus if gpu not in [gpu for gpu, _ in refused]][:most]
    if not fit:
        return (_ready(_first()),), ()
    return tuple(fit), tuple(f"{gpu.lease} is left out: {why}" for gpu, (why, _) in refused if most is None)


def _named(name: str) -> Device:
    """Raises AbprofError when it is not there."""
    if name == "simulated" or name.startswith("simulated:"):
        from abprof.devices.simulated import SimulatedDevice

        return SimulatedDevice(name)
    if name == "cpu":
        return _cpu()
    if name == "cuda" or name.startswith(("cuda:", "GPU-")):
        from abprof.devices import cuda

        found = cuda.find(name.removeprefix("cuda").removeprefix(":"))
        if found is None:
            raise AbprofError(
                "no CUDA device", where=f"--device {name}", advice="abprof doctor says what is there; --device cpu"
            )
        return found
    raise AbprofError(f"unknown device {name!r}", where="--device", advice="cpu, cuda, cuda:N or a GPU's UUID")


def _first() -> Device:
    """A GPU where there is one, otherwise the CPU."""
    from abprof.devices import cuda

    return cuda.find(None) or _cpu()


def _ready(device: Device) -> Device:
    refusal = device.refusal()
    if refusal:
        raise AbprofError(refusal[0], where=device.lease, advice=refusal[1])
    return device


def _cpu() -> Device:
    from abprof.devices.cpu import CpuDevice

    return CpuDevice()
