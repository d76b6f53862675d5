"""What a child prints."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

LOG_LIMIT = 16 << 20  # bytes of one child's output that are kept; the rest is counted, read and thrown away


class Log:
    """Keeps a child's output whole up to LOG_LIMIT bytes, and hands each line on as it comes."""

    def __init__(self, path: Path, on_line: Callable[[str], None] | None = None) -> None:
        self.path = path
        self.on_line = on_line
        self.dropped = 0
        self.last_line = ""
        self._size = 0

    def drain(self, fd: int) -> None:
        """Read `fd` until it closes. Runs in a thread of its own; never raises for a full disk."""
        rest = b""
        with self._open() as out:
            self._size = out.tell()
            while chunk := os.read(fd, 1 << 16):
                self._keep(out, chunk)
                *lines, rest = (rest + chunk).split(b"\n")
                rest = rest[-4096:]
                for line in lines:
                    self._line(line)
        if rest:
            self._line(rest)

    def _open(self) -> Any:
        """The log, or nowhere: where it cannot be opened the child's output is still read, or it would die of it."""
        try:
            return open(self.path, "ab", buffering=0)
        except OSError:
            return open(os.devnull, "ab", buffering=0)

    def _keep(self, out: Any, chunk: bytes) -> None:
        room = max(0, LOG_LIMIT - self._size)
        if room:
            with contextlib.suppress(OSError):  # a full disk must not stop the reading: the child would block on it
                out.write(chunk[:room])
        self._size += len(chunk)
        if len(chunk) > room and not self.dropped:
            with contextlib.suppress(OSError):
                out.write(b"\n[abprof: more output than is kept; the rest was thrown away]\n")
        self.dropped += max(0, len(chunk) - room)

    def _line(self, raw: bytes) -> None:
        text = raw.decode(errors="replace").rstrip("\r")
        if text.strip():
            self.last_line = text[-400:]
        if self.on_line and not self.dropped:
            self.on_line(text)
