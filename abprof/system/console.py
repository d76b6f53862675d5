"""What a person sees while a run goes on, and the run's log. Progress goes to standard error, results to standard output."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.live import Live
from rich.status import Status
from rich.text import Text

from abprof.records.visible import visible, visible_lines

# What compilers write around their words on a terminal: colours, and an end of the line wiped for them.
_COLOURS = re.compile(r"\x1b\[[0-9;:]*[mK]")


class View:
    """Says what happens. `log`, once attached, gets every line too; without a terminal nothing is redrawn."""

    def __init__(self, *, quiet: bool = False, verbose: bool = False, stream: IO[str] | None = None) -> None:
        self.console = Console(file=stream, stderr=stream is None, highlight=False, soft_wrap=True)
        self.quiet = quiet
        self.verbose = verbose
        self._log: IO[str] | None = None
        self._lock = threading.Lock()
        self._live: Live | None = None
        self._status: Status | None = None
        self._progress = ""
        self._last: dict[str, list[str]] = {}
        self._began = time.monotonic()

    def attach(self, path: Path) -> None:
        """Keep the log in this file from now on."""
        self._log = path.open("a", encoding="utf-8", errors="replace")

    def detach(self) -> None:
        """Close the log, so that the report's closing part can be appended."""
        if self._log:
            self._log.close()
            self._log = None

    def _write(self, line: str) -> None:
        if self._log:
            with contextlib.suppress(OSError, ValueError):  # a full disk is told by who writes results
                self._log.write(f"{line}\n")
                self._log.flush()

    def say(self, line: str, style: str = "") -> None:
        """A line of progress. Names and reasons in it are others' text: nothing of it steers the terminal or the log's reader."""
        line = visible_lines(line)
        with self._lock:
            self._write(line)
            if not self.quiet:
                self.console.print(Text(line, style=style))

    def warn(self, line: str) -> None:
        """A line that is shown with --quiet too."""
        line = visible_lines(line)
        with self._lock:
            self._write(f"warning: {line}")
            self.console.print(Text(f"warning: {line}", style="yellow"))

    # ------------------------------------------------------------ measuring

    @contextlib.contextmanager
    def measuring(self) -> Iterator[None]:
        """On a terminal one line at the bottom says how far the epochs are, and what is built meanwhile; elsewhere nothing is
        redrawn."""
        if not self.console.is_terminal or self.quiet:
            yield
            return
        with self.console.status("starting workers") as status:
            self._status = status
            try:
                yield
            finally:
                self._status = None

    def progress(self, line: str) -> None:
        """What is being done now."""
        with self._lock:
            self._progress = f"[{time.monotonic() - self._began:.0f} s] {visible(line)}"
            self._redraw("")

    def _redraw(self, built: str) -> None:
        if self._status is not None:
            self._status.update(Text("  ".join(filter(None, (self._progress, built)))[:200]))

    # ------------------------------------------------------------ builds

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """On a terminal a live view of each build's last lines; all lines with -v; the log gets all of them."""
        live = self.console.is_terminal and not self.quiet and not self.verbose
        if not live:
            yield
            return
        with Live(console=self.console, refresh_per_second=8, transient=True) as shown:
            self._live = shown
            try:
                yield
            finally:
                self._live = None
                self._last.clear()

    def build_line(self, job: str, line: str) -> None:
        """One line of a build's output, from whichever thread reads it. It may be hostile: its colours are dropped, and what else
        would steer a terminal is shown as U+FFFD. logs/ keeps it as it came."""
        line = visible(_COLOURS.sub("", line))
        text = f"[{job}] {line}"
        with self._lock:
            self._write(text)
            if self._live is not None:
                self._last.setdefault(job, []).append(line)
                del self._last[job][:-3]
                rows = [Text(f"[{name}] {row}"[:200]) for name, last in self._last.items() for row in last]
                self._live.update(Text("\n").join(rows))
            elif self._status is not None and not self.verbose:
                self._redraw(text)
            elif not self.quiet:
                self.console.print(Text(text, style="dim"))
