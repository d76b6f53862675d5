"""The devices abprof can measure on, by kind. An explicit table."""

from __future__ import annotations

from collections.abc import Sequence

from abprof.errors import AbprofError
from abprof.protocols import Device


def choose(asked: Sequence[str]) -> Device:
    """The device for `--device cpu | cuda | cuda:N | GPU-UUID | simulated`; () means a GPU where there is one.

    Raises AbprofError when it is not there, or when several are asked for.
    """
    if len(asked) > 1:
        raise AbprofError(f"--device was given {len(asked)} times; this abprof measures on one device a run")
    name = asked[0] if asked else "auto"
    if name == "simulated":
        from abprof.devices.simulated import SimulatedDevice

        return SimulatedDevice()
    if name == "cpu":
        return _cpu()
    from abprof.devices import cuda

    if name == "auto":
        return cuda.find(None) or _cpu()
    if name == "cuda" or name.startswith(("cuda:", "GPU-")):
        found = cuda.find(name.removeprefix("cuda").removeprefix(":"))
        if found is None:
            raise AbprofError(
                "no CUDA device", where=f"--device {name}", advice="abprof doctor says what is there; --device cpu"
            )
        return found
    raise AbprofError(f"unknown device {name!r}", where="--device", advice="cpu, cuda, cuda:N or a GPU's UUID")


def usable(asked: Sequence[str]) -> Device:
    """The same, ready to be measured on. Raises AbprofError for one that cannot be (MIG slices, exclusive mode, ...)."""
    device = choose(asked)
    refusal = device.refusal()
    if refusal:
        raise AbprofError(refusal[0], where=device.lease, advice=refusal[1])
    return device


def _cpu() -> Device:
    from abprof.devices.cpu import CpuDevice

    return CpuDevice()
