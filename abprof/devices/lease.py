"""One measuring run at a time on a device: a lock that other abprof processes respect, named by the device's UUID."""

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

_A_MOMENT = 0.3  # seconds: `abprof clean` has a dead holder's lock in hand for so long at most


_NO_FILE = (
    errno.EISDIR,
    errno.ELOOP,
    errno.ENXIO,
    errno.EINVAL,
)  # what the system says of a folder, a link to itself, a pipe


@contextlib.contextmanager
def lease(state: Path, device: str, *, wait: bool, label: str, say: Callable[[str], None]) -> Iterator[None]:
    """Hold `device` ("cpu" or a GPU's UUID) while the block runs. A busy one is waited for, saying for whom.

    Raises AbprofError when it is busy and `wait` is False. The lock ends with the process, however that ends.
    """
    folder = state / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", device)
    lock = FileLock(folder / f"{name}.lock")
    owner = folder / f"{name}.owner"
    try:
        lock.acquire(timeout=_A_MOMENT)
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
        with _only_words():
            owner.unlink(missing_ok=True)
            with owner.open("x") as note:
                note.write(json.dumps({"pid": os.getpid(), "what": label}))
        yield
    finally:
        with _only_words():
            owner.unlink(missing_ok=True)
        lock.release()


def _only_words() -> contextlib.AbstractContextManager[None]:
    """The lock holds without its note: a folder in its place costs the words alone."""
    return contextlib.suppress(IsADirectoryError, FileExistsError)


def sweep(state: Path) -> Iterator[str]:
    """Remove what killed processes wrote of the devices that they held; a line for each."""
    for owner in sorted((state / "locks").glob("*.owner")):
        with contextlib.suppress(Timeout, OSError), FileLock(owner.with_suffix(".lock"), timeout=0):
            owner.unlink()
            yield f"removed the lease of {owner.stem}, whose holder is gone"


def _owner(path: Path) -> str:
    try:
        facts = json.loads(content(path))
        return f"{printable(str(facts['what']), 200)} (process {int(facts['pid'])})"
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        OverflowError,
        RecursionError,
    ):  # what lies there need not be abprof's
        return "another abprof"
