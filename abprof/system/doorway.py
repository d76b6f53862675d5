"""Open files that code under test could have made or replaced.

It can replace a file by a link to a file of the user, by a FIFO that never ends or by a sparse file of any size, and a
folder by a link. So no link is followed, only regular files are opened, and each read has a limit.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

LARGEST = 4 << 30  # bytes of a file to hash


@contextlib.contextmanager
def entry(path: Path, root: Path | None = None) -> Iterator[tuple[str, int]]:
    """Yield the last part of `path` and a descriptor of its folder, reached without links from `root`. `root`: a folder
    above `path` that code under test cannot replace; default: the folder of `path`. Raises OSError."""
    root = root or path.parent
    parts = path.parts[len(root.parts) :]
    if path.parts[: len(root.parts)] != root.parts or not parts or ".." in parts:
        raise OSError(errno.EXDEV, f"not below {root}")
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            os.close(folder)
            folder = inner
        yield parts[-1], folder
    finally:
        os.close(folder)


def opened(path: Path, root: Path | None = None, flags: int = os.O_RDONLY) -> FileIO:
    """Open a regular file without following a link below `root` (see `entry`). Raises OSError."""
    safe = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # O_NONBLOCK: do not wait for a FIFO's writer
    with entry(path, root) as (name, folder):
        file = os.open(name, flags | safe, 0o644, dir_fd=folder)
    seen, writes = os.fstat(file), flags & os.O_WRONLY
    if not stat.S_ISREG(seen.st_mode) or (writes and seen.st_nlink > 1):
        os.close(file)
        raise OSError(errno.EINVAL, "not a regular file")
    return FileIO(file, "wb" if writes else "rb")


def appended(path: Path) -> FileIO:
    """Open a regular file to append to, and create it if missing. Raises OSError."""
    return opened(path, flags=os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def read(path: Path, most: int, root: Path | None = None) -> bytes:
    """Return the first `most` bytes of a regular file. Raises OSError."""
    with opened(path, root) as file:
        return _read(file, most)


def tail(path: Path, most: int, begin: int = 0) -> bytes:
    """Return the last `most` bytes after position `begin` of a regular file. Raises OSError."""
    with opened(path) as file:
        file.seek(max(begin, os.fstat(file.fileno()).st_size - most))
        return _read(file, most)


def _read(file: FileIO, most: int) -> bytes:
    parts: list[bytes] = []
    while most > 0 and (part := file.read(min(most, 1 << 20))):
        parts.append(part)
        most -= len(part)
    return b"".join(parts)


def sha256(path: Path, root: Path | None = None) -> str:
    """Return the SHA-256 of a regular file. Raises OSError, also for a file larger than LARGEST."""
    with opened(path, root) as file:
        return hashed(file)


def hashed(file: FileIO) -> str:
    """Return the SHA-256 of an open file. Raises OSError, also for a file larger than LARGEST."""
    digest, left = hashlib.sha256(), LARGEST
    if os.fstat(file.fileno()).st_size > left:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    while left > 0 and (part := file.read(1 << 20)):
        digest.update(part)
        left -= len(part)
    return digest.hexdigest()
