"""Files that are written whole or not at all; what the disk refuses is one clear line."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from secrets import token_hex

from abprof.errors import AbprofError
from abprof.model import UNREADABLE


def put(target: Path, data: bytes) -> Path:
    """Write a file, and the folder it is to lie in, atomically. Raises AbprofError when the disk refuses."""
    with refusals(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
    return replace(target, data)


def replace(target: Path, data: bytes, check: Callable[[bytes], object] = len) -> Path:
    """Replace a file atomically, once `check` has accepted the bytes as they lie on the disk.

    Raises AbprofError when the disk refuses, ValueError when `check` does.
    """
    # A name that nobody can know before, made and never opened: in a folder of somebody else's a link may lie there.
    temporary = target.with_name(f".{token_hex(8)}.partial")
    with refusals(target):
        try:
            with temporary.open("xb", buffering=0) as file:
                pour(file, data)
            check(temporary.read_bytes())
            temporary.replace(target)
            _sync_folder(target.parent)
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


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def refusals(path: Path, advice: str = "") -> Iterator[None]:
    """What the operating system refuses becomes one clear line with the path."""
    try:
        yield
    except OSError as error:
        raise AbprofError(error.strerror or str(error), where=str(path), advice=advice) from None
