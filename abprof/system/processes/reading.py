"""A thread that reads what a child prints."""

from __future__ import annotations

import _thread
import contextlib
import threading
from collections.abc import Callable

_TO_BEGIN = 20.0  # seconds


class Reading:
    """`threading.Thread` waits for ever for a thread that had no memory left to begin in; this one says so."""

    def __init__(self, read: Callable[[], None]) -> None:
        self._read = read
        self._begun, self._ended = threading.Event(), threading.Event()

    def start(self) -> None:
        """Returns once it has begun. Raises MemoryError where it does not, RuntimeError where the system has no thread left."""
        _thread.start_new_thread(self._run, ())
        if not self._begun.wait(_TO_BEGIN):
            raise MemoryError

    def _run(self) -> None:
        with contextlib.suppress(MemoryError):
            self._begun.set()
            try:
                self._read()
            finally:
                self._ended.set()

    def join(self, timeout: float) -> None:
        """Wait so long for its end."""
        self._ended.wait(timeout)
