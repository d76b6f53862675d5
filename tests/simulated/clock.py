"""Virtual time. Turns return at once; this clock advances by their programmed times."""

import contextlib
import mmap
import os
import struct
import time
from pathlib import Path

CELL = struct.Struct("=q")


class Clock:
    """Nanoseconds, shared through a file by the workers of a run, so that their turns never overlap in virtual time.

    The workers take strict turns, so the file needs no lock. With `origin` None the clock never runs behind the real
    monotonic clock (the parent subtracts real readings from it); with a number it starts there and only `advance`
    moves it.
    """

    def __init__(self, folder: str, origin: int | None) -> None:
        self._follow = origin is None
        self._memory: mmap.mmap | bytearray = bytearray(CELL.size)
        CELL.pack_into(self._memory, 0, origin or 0)
        if folder:
            with contextlib.suppress(OSError):  # a target's sandbox cannot write there
                self._memory = _shared(Path(folder) / "simulated.clock", origin or 0)

    def now(self) -> int:
        """The present virtual time in ns."""
        (virtual,) = CELL.unpack_from(self._memory, 0)
        return max(virtual, time.monotonic_ns()) if self._follow else int(virtual)

    def advance(self, ns: float) -> tuple[int, int]:
        """Let `ns` pass. Returns the times before and after."""
        start = self.now()
        end = start + max(0, round(ns))
        CELL.pack_into(self._memory, 0, end)
        return start, end


def _shared(path: Path, origin: int) -> mmap.mmap:
    """Map the clock's file. The first process creates it and publishes it by a link, so no process sees it empty."""
    if not path.exists():
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        fresh.write_bytes(CELL.pack(origin))
        try:
            os.link(fresh, path)
        except FileExistsError:
            pass
        fresh.unlink()
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), CELL.size)
