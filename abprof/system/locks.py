"""Lock files with flock(2). The kernel releases a lock when its process ends, also after kill -9."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from abprof.records.errors import AbprofError
from abprof.records.visible import visible
from abprof.system import doorway

_held: dict[Path, int] = {}  # lock file -> descriptor, for locks taken by `hold`


def hold(lock: Path, *, shared: bool = False) -> bool:
    """Try to take `lock`, and keep it until `drop` or the end of this process. Return False if the lock is taken."""
    if lock in _held:
        return shared
    descriptor = _lock(lock, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, wait=False)
    if descriptor is None:
        return False
    _held[lock] = descriptor
    return True


def drop(lock: Path) -> None:
    """Release `lock` and delete its file. Do nothing if this process does not hold the lock."""
    descriptor = _held.pop(lock, None)
    if descriptor is not None:
        lock.unlink(missing_ok=True)
        os.close(descriptor)


@contextlib.contextmanager
def locked(
    lock: Path, note: str = "", busy: Callable[[str], None] = lambda _: None, *, shared: bool = False
) -> Iterator[None]:
    """Wait for `lock`, and hold the lock during the block. `note`: text for the lock file, which is not deleted.

    If another process holds the lock, call `busy` with that process's note before waiting. `shared`: several processes
    may hold the lock at the same time.
    """
    how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    descriptor = _lock(lock, how, wait=False)
    if descriptor is None:
        with contextlib.suppress(OSError):
            busy(visible(doorway.read(lock, 400).decode(errors="replace")[:200]) or "another abprof")
        descriptor = _lock(lock, how, wait=True)
    assert descriptor is not None
    try:
        if not shared:
            os.truncate(descriptor, 0)
            os.write(descriptor, note.encode(errors="replace"))
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def abandoned(lock: Path) -> Iterator[bool]:
    """Try to take `lock` without waiting, and yield whether that worked. If so, delete `lock` after the block."""
    descriptor = None if lock in _held else _lock(lock, fcntl.LOCK_EX, wait=False)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            lock.unlink(missing_ok=True)
            os.close(descriptor)


def idle(home: Path) -> Iterator[Path]:
    """Yield each folder NAME in `home` that no process makes (it holds NAME.lock) or uses (NAME.use), under both locks."""
    for name in sorted({path.name.partition(".")[0] for path in home.glob("[!.]*")}):
        with abandoned(home / f"{name}.lock") as free, abandoned(home / f"{name}.use") as unused:
            if free and unused and (home / name).exists():
                yield home / name


def _lock(lock: Path, operation: int, *, wait: bool) -> int | None:
    """Open and lock the file `lock`. Return its descriptor, or None if another process holds the lock."""
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
            os.close(descriptor)  # the holder deleted the file, so this lock excludes no process: lock the new file
    except OSError as error:
        raise AbprofError(f"cannot make lock files here: {error.strerror}", where=str(lock.parent)) from error
