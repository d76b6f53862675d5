"""Atomic writes. What the disk refuses becomes an AbprofError with the path."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from secrets import token_hex

from abprof.records import UNREADABLE
from abprof.records.errors import AbprofError


def put(target: Path, data: bytes) -> Path:
    """Write a file atomically, and make its folder if need be. Raises AbprofError when the disk refuses."""
    with refusals(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
    return replace(target, data)


def replace(target: Path, data: bytes, check: Callable[[Path], object] = lambda written: written) -> Path:
    """Replace a file atomically, once `check(path)` of the new file on the disk has passed.

    Raises AbprofError if the disk refuses, ValueError if the check fails.
    """
    # Unpredictable: in a folder of several users somebody may have put a link under a known name.
    temporary = target.with_name(f".{token_hex(8)}.partial")
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
    """Write all of `data`, and force it to the disk. Raises OSError."""
    rest = memoryview(data)
    while rest:  # a disk that fills up takes a part first, and refuses only the next write
        rest = rest[file.write(rest) :]
    os.fsync(file.fileno())


@contextmanager
def refusals(path: Path, advice: str = "") -> Iterator[None]:
    """Raise AbprofError with this path for an OSError in the block."""
    try:
        yield
    except OSError as error:
        raise AbprofError(error.strerror or str(error), where=str(path), advice=advice) from None
