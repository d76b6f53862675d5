"""When something under a folder was saved. The only place of watchdog."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from abprof.records.errors import AbprofError

_QUIET = 0.3  # seconds without a further event: an editor writes a file in several steps, a checkout many files
_LOOK = 0.5  # seconds: a signal that another thread takes is handled when this one next looks
_WRITES = {"created", "modified", "moved", "deleted", "closed"}  # reading a file makes events too


class Saves:
    """Watches a folder while the block runs; what happens under `besides` is nobody's save.

    Entering raises AbprofError where watchdog is not installed, or the system cannot watch so many folders.
    """

    def __init__(self, root: Path, besides: Sequence[Path]) -> None:
        self._root = root
        self._besides = tuple(os.path.join(path, "") for path in besides)  # noqa: PTH118 - with a slash at its end
        self._happened = threading.Event()
        self._first = self._last = 0.0

    def __enter__(self) -> Saves:
        try:
            from watchdog.events import FileSystemEventHandler
            from watchdog.observers import Observer
        except ImportError:
            advice = "pip install 'abprof[watch]'"
            raise AbprofError("needs watchdog, which is not installed", where="--watch", advice=advice) from None
        handler = FileSystemEventHandler()
        handler.on_any_event = self.note  # type: ignore[method-assign]
        self._observer = Observer()
        self._observer.schedule(handler, str(self._root), recursive=True)
        try:
            self._observer.start()
        except OSError as error:
            what = f"cannot be watched: {error.strerror}"
            advice = "raise fs.inotify.max_user_watches"
            raise AbprofError(what, where=str(self._root), advice=advice) from error
        return self

    def __exit__(self, *_: object) -> None:
        self._observer.stop()
        self._observer.join(timeout=5)

    def note(self, event: Any) -> None:
        """One event, from watchdog's thread."""
        paths = [os.fsdecode(path) for path in (event.src_path, getattr(event, "dest_path", "")) if path]
        if event.event_type not in _WRITES or all(path.startswith(self._besides) for path in paths):
            return
        self._last = time.monotonic()
        if not self._happened.is_set():
            self._first = self._last
            self._happened.set()

    def wait(self) -> float:
        """Until something was saved, and nothing more came for a moment. When that began, by time.monotonic()."""
        while not self._happened.wait(_LOOK):
            pass
        while (left := self._last + _QUIET - time.monotonic()) > 0:
            time.sleep(left)
        self._happened.clear()
        return self._first
