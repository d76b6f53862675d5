"""The lease of a device: a lock that lets one abprof at a time measure on it."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from abprof.records.errors import AbprofError
from abprof.system import locks


@contextlib.contextmanager
def lease(state: Path, device: str, *, wait: bool, label: str, say: Callable[[str], None]) -> Iterator[None]:
    """Hold `device` ("cpu" or a GPU's UUID) while the block runs; waits for a busy one, and says who holds it.

    Raises AbprofError when it is busy and `wait` is False. The lock ends with the process, however that ends. `label`
    describes this run to others.
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
