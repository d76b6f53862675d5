"""Files that are written whole or not at all; what the disk refuses is one clear line."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

from abprof.records import UNREADABLE
from abprof.records.errors import AbprofError


def reading(path: Path) -> BinaryIO:
    """Open a file that lies where others can put things. Raises OSError for a pipe or a device, which may never end."""
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    kind = os.fstat(number).st_mode
    if not stat.S_ISREG(kind):
        os.close(number)
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.EINVAL, "not a file", str(path))
    return os.fdopen(number, "rb")


def content(path: Path) -> bytes:
    """All of such a file. Raises OSError."""
    with reading(path) as file:
        return file.read()


def put(target: Path, data: bytes) -> Path:
    """Write a file, and the folder it is to lie in, atomically. Raises AbprofError when the disk refuses."""
    with refusals(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
    return replace(target, data)


def replace(target: Path, data: bytes, check: Callable[[Path], object] = lambda written: written) -> Path:
    """Replace a file atomically, once `check` has accepted the new one as it lies on the disk.

    Raises AbprofError if the disk refuses, ValueError if `check` does.
    """
    temporary = target.with_name(
        f".{token_hex(8)}.partial"
    )  # unpredictable: in another user's folder a link may lie there
    with refusals(target):
        try:
            with temporary.open("xb", buffering=0) as file:
                pour(file, data)
            check(temporary)
            temporary.replace(target)
            folder = os.open(target.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except UNREADABLE as error:
            raise ValueError(f"{target}: {error}") from None
        finally:
            temporary.unlink(missing_ok=True)
    return target


def pour(file: FileIO, data: bytes) -> None:
    """Write all of it, and force it to the disk. Raises OSError."""
    rest = memoryview(data)
    while rest:  # a disk that fills up takes a part first, and refuses only the next write
        rest = rest[file.write(rest) :]
    os.fsync(file.fileno())


@contextmanager
def refusals(path: Path, advice: str = "") -> Iterator[None]:
    """What the operating system refuses becomes one clear line with the path."""
    try:
        yield
    except OSError as error:
        raise AbprofError(error.strerror or str(error), where=str(path), advice=advice) from None
