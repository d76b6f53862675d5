"""Locks on files, by flock(2): the kernel drops a lock when its process ends, also after kill -9, so a free lock belongs to a dead
run. A lock on a file that was deleted meanwhile excludes no process, hence the check after each lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from abprof.records.errors import AbprofError
from abprof.records.visible import printable

_held: dict[Path, int] = {}  # lock file -> descriptor, of the locks that `hold` took


def hold(lock: Path, *, shared: bool = False) -> bool:
    """Hold `lock` until `drop` or the end of this process. False if another process, or already this process, holds it."""
    if lock in _held:
        return shared
    descriptor = _lock(lock, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, wait=False)
    if descriptor is None:
        return False
    _held[lock] = descriptor
    return True


def drop(lock: Path) -> None:
    """Release `lock` and delete its file; no effect if this process does not hold it."""
    descriptor = _held.pop(lock, None)
    if descriptor is not None:
        lock.unlink(missing_ok=True)
        os.close(descriptor)


@contextlib.contextmanager
def locked(
    lock: Path, note: str = "", busy: Callable[[str], None] = lambda _: None, *, shared: bool = False
) -> Iterator[None]:
    """Wait for `lock` and hold it during the block. The file stays and contains `note`.

    If another process holds the lock, `busy` is called with the holder's note before the wait; it may raise. `shared`: any number
    of processes hold the lock at once.
    """
    how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    descriptor = _lock(lock, how, wait=False)
    if descriptor is None:
        with contextlib.suppress(FileNotFoundError):
            busy(printable(lock.read_text(errors="replace"), 200) or "another abprof")
        descriptor = _lock(lock, how, wait=True)
    assert descriptor is not None
    try:
        if not shared:
            os.truncate(descriptor, 0)
            os.write(descriptor, note.encode())
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def abandoned(lock: Path) -> Iterator[bool]:
    """Yield whether `lock` is free. A free lock is held during the block, and its file is deleted at the end."""
    descriptor = None if lock in _held else _lock(lock, fcntl.LOCK_EX, wait=False)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            lock.unlink(missing_ok=True)
            os.close(descriptor)


def _lock(lock: Path, operation: int, *, wait: bool) -> int | None:
    """A descriptor that holds the lock, or None if another process holds it. Raises AbprofError for an unusable folder."""
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        while True:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, operation if wait else operation | fcntl.LOCK_NB)
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(descriptor), lock.stat()):
                        return descriptor
            except BlockingIOError:
                os.close(descriptor)
                return None
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # its owner deleted it while we waited: take the new one
    except OSError as error:
        raise AbprofError(f"cannot use the cache folder: {error.strerror}", where=str(lock.parent)) from error
