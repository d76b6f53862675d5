"""The lease of a device: a lock that lets one abprof at a time measure on it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from abprof.records.errors import AbprofError
from abprof.records.visible import printable
from abprof.system.files import content

_SWEEP = 0.3  # seconds for which `abprof clean` may hold a dead holder's lock
_NO_FILE = (errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.EINVAL)  # a folder, a link to itself, a pipe


@contextlib.contextmanager
def lease(state: Path, device: str, *, wait: bool, label: str, say: Callable[[str], None]) -> Iterator[None]:
    """Hold `device` ("cpu" or a GPU's UUID) while the block runs; waits for a busy one, and says who holds it.

    Raises AbprofError when it is busy and `wait` is False. The lock ends with the process, however that ends. `label`
    describes this run to others.
    """
    folder = state / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", device)
    lock = FileLock(folder / f"{name}.lock")
    owner = folder / f"{name}.owner"
    try:
        lock.acquire(timeout=_SWEEP)
    except Timeout:
        whom = _owner(owner)
        if not wait:
            raise AbprofError(f"{device} is in use by {whom}", advice="run without --no-wait to wait for it") from None
        say(f"waiting for {device}, in use by {whom}")
        began = time.monotonic()
        lock.acquire()
        say(f"{device} is free after {time.monotonic() - began:.0f} s")
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
        advice = "remove what lies there"
        raise AbprofError(error.strerror or str(error), where=lock.lock_file, advice=advice) from None
    try:
        with contextlib.suppress(IsADirectoryError, FileExistsError):  # the lock holds without this note
            owner.unlink(missing_ok=True)
            with owner.open("x") as note:
                note.write(json.dumps({"pid": os.getpid(), "what": label}))
        yield
    finally:
        with contextlib.suppress(IsADirectoryError, FileExistsError):
            owner.unlink(missing_ok=True)
        lock.release()


def sweep_leases(state: Path) -> Iterator[str]:
    """Remove the notes of killed holders; yields a line for each."""
    for owner in sorted((state / "locks").glob("*.owner")):
        with contextlib.suppress(Timeout, OSError), FileLock(owner.with_suffix(".lock"), timeout=0):
            owner.unlink()
            yield f"removed the lease of {owner.stem}, whose holder is gone"


def _owner(path: Path) -> str:
    try:
        facts = json.loads(content(path))
        return f"{printable(str(facts['what']), 200)} (process {int(facts['pid'])})"
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):  # any file may lie there
        return "another abprof"
