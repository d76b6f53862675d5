"""Hold a GPU's application clock during a run (--lock-clocks), and restore the former clocks afterwards.

A second process, `python -m abprof.devices.clocks`, restores them when its standard input ends. That happens when the
`with` block that holds the clocks ends, and also when the run is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

from abprof.records.errors import AbprofError
from abprof.system.processes import WorkerDied, guarded

_GRAPHICS, _MEMORY = 0, 2  # nvml.h, nvmlClockType_t
_ALLOW = "ask the GPU's owner to run `nvidia-smi -acp UNRESTRICTED`, or leave the option out"


@contextlib.contextmanager
def locked(nvml: Any, handle: Any, uuid: str, mhz: int) -> Iterator[None]:
    """Set the GPU's graphics application clock to `mhz` during the block. Raises AbprofError if the GPU refuses."""
    where = f"--lock-clocks {mhz}"
    try:
        memory, graphics = (nvml.nvmlDeviceGetApplicationsClock(handle, kind) for kind in (_MEMORY, _GRAPHICS))
        known = sorted(nvml.nvmlDeviceGetSupportedGraphicsClocks(handle, memory))
    except Exception as error:
        raise AbprofError(f"{uuid} does not report its clocks: {error}", where=where, advice=_ALLOW) from error
    if mhz not in known:
        nearest = min(known, key=lambda each: abs(each - mhz))
        raise AbprofError(f"{uuid} has no clock of {mhz} MHz", where=where, advice=f"the nearest is {nearest}")
    argv = [sys.executable, "-P", "-m", "abprof.devices.clocks", uuid, str(memory), str(graphics)]
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(guarded(argv, os.environ))
        except WorkerDied as died:
            raise AbprofError(f"the process that restores the clocks failed: {died.reason}", where=where) from died
        try:
            nvml.nvmlDeviceSetApplicationsClocks(handle, memory, mhz)
        except Exception as error:
            raise AbprofError(f"the clocks of {uuid} cannot be set: {error}", where=where, advice=_ALLOW) from error
        if (now := nvml.nvmlDeviceGetApplicationsClock(handle, _GRAPHICS)) != mhz:
            raise AbprofError(f"{uuid} is set to {mhz} MHz, but reports {now}", where=where, advice=_ALLOW)
        yield
    if nvml.nvmlDeviceGetApplicationsClock(handle, _GRAPHICS) != graphics:  # after the run's report: no error
        print(f"warning: the clocks of {uuid} are not restored: run `nvidia-smi -rac`", file=sys.stderr)


def main(uuid: str, memory: str, graphics: str) -> None:
    """Restore the clocks (MHz) when the standard input ends."""
    import pynvml

    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    pynvml.nvmlInit()
    handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
    handle = next(one for one in handles if pynvml.nvmlDeviceGetUUID(one) == uuid)
    print("ready", flush=True)
    sys.stdin.read()
    pynvml.nvmlDeviceSetApplicationsClocks(handle, int(memory), int(graphics))


if __name__ == "__main__":
    main(*sys.argv[1:])
