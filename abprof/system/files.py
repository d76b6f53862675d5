"""Write files atomically. If a write fails, raise AbprofError with the path."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from secrets import token_hex

from abprof.records import UNREADABLE
from abprof.records.errors import AbprofError

_DISK = "make room there, or choose another folder: --runs-dir, ABPROF_CACHE_DIR, ABPROF_STATE_DIR"
_LIMITS = "end other programs, or raise the limits: ulimit -a"
REMEDIES = {  # errno of a lacking resource -> what to do
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO), _DISK),
    **dict.fromkeys((errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE), _LIMITS),
}


def read_named(path: Path, most: int) -> bytes:
    """Return the content of a file that the user named, at most `most` bytes. Raises AbprofError if the file is not
    regular (a pipe would wait for ever, a device never end), larger, or cannot be read."""
    if "\0" in str(path):
        raise AbprofError("no file has this name", where=str(path))
    with refusals(path):
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise AbprofError("not a regular file", where=str(path))
            data = file.read(most + 1)
        if len(data) > most:
            raise AbprofError(f"larger than {most >> 20} MiB", where=str(path))
        return data


def put(target: Path, data: bytes) -> Path:
    """Write a file atomically, and make its folder if needed. Return the file's path. Raises AbprofError."""
    with refusals(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
    return replace(target, data)


def replace(target: Path, data: bytes, check: Callable[[Path], object] = lambda written: written) -> Path:
    """Write `data` to a temporary file, pass its path to `check`, and then rename the file to `target`. Raises
    AbprofError if a write fails. If `check` raises, the error passes on and `target` stays unchanged."""
    # A random name: in a shared folder another user could plant a link under a predictable name.
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


def pour(file: FileIO, data: bytes, *, flush: bool = True) -> None:
    """Write all of `data`, and with `flush` wait until it is on the disk. Raises OSError."""
    rest = memoryview(data)
    while rest:  # a disk that fills up accepts part of a write; only the next write fails
        rest = rest[file.write(rest) :]
    if flush:
        os.fsync(file.fileno())


def refuse_full_disk(reason: str, *places: Path) -> None:
    """Raise OSError if a failure of code under test with this `reason` is a full disk's, which says nothing of the code.

    The parent looks itself: at `places` and the temporary folder there is no room (1 MiB), or the reason says so and
    there is little (1 GiB; what the failed process has removed is free again).
    """
    said = any(os.strerror(code) in reason for code in (errno.ENOSPC, errno.EDQUOT))
    for place in (*places, Path(tempfile.gettempdir())):
        disk = os.statvfs(place)
        if disk.f_bavail * disk.f_frsize < (1 << 30 if said else 1 << 20) or (disk.f_files and not disk.f_favail):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(place))


@contextmanager
def refusals(path: Path, advice: str = "") -> Iterator[None]:
    """Turn an OSError in the block into an AbprofError that names `path` and gives `advice`, by default the remedy for its errno."""
    try:
        yield
    except OSError as error:
        advice = advice or REMEDIES.get(error.errno or 0, "")
        raise AbprofError(error.strerror or str(error), where=str(path), advice=advice) from None
