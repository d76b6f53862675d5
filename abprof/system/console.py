"""Print the progress of a run on standard error, and write it to the run's log. Results go to standard output."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.text import Text

from abprof.records.visible import visible, visible_lines

_COLOURS = re.compile(r"\x1b\[[0-9;:]*[mK]")  # escape sequences of compilers: colours, and clearing the rest of a line
_LEAKS = re.compile(r"nanobind: |\s*- (leaked|\.\.\. skipped) |See https://nanobind")  # Triton at its end
_OPEN_SHOWN = 3  # labels of undecided cells in the status line


class View:
    """Prints progress on standard error and to a log file, with a status line if standard error is a terminal."""

    def __init__(self, *, quiet: bool = False, verbose: bool = False, stream: IO[str] | None = None) -> None:
        self.console = Console(file=stream, stderr=stream is None, highlight=False, soft_wrap=True)
        self.quiet = quiet
        self.verbose = verbose
        self._log: IO[str] | None = None
        self._lock = threading.Lock()
        self._status: Status | None = None  # a line at the bottom of a terminal
        self._end = 0.0  # end of the budget, by time.monotonic()

    def attach(self, path: Path) -> None:
        """From now on, append every printed line also to the log file `path`."""
        self._log = path.open("a", encoding="utf-8", errors="replace")

    def detach(self) -> None:
        """Close the log file."""
        if self._log:
            self._log.close()
            self._log = None

    def say(self, line: str, style: str = "") -> None:
        """Print a line of progress, with control characters made visible. `style`: a colour, or "" for none."""
        self._print(visible_lines(line), style, shown=not self.quiet)

    def warn(self, line: str) -> None:
        """Print a warning, also with --quiet."""
        self._print(f"warning: {visible_lines(line)}", "yellow", shown=True)

    def build_line(self, job: str, line: str) -> None:
        """Print a line of a build's output, with control characters made visible. Any thread may call this."""
        text = f"[{job}] {visible(_COLOURS.sub('', line))}"
        live = self._status is not None and not self.verbose
        noise = _LEAKS.match(line) is not None
        self._print(text, "dim", shown=not (self.quiet or live or noise))
        if live and not noise:
            self._show(text[:200])

    def _print(self, text: str, style: str, *, shown: bool) -> None:
        with self._lock:
            if self._log:
                with contextlib.suppress(OSError, ValueError):  # a full disk is reported where results are written
                    self._log.write(f"{text}\n")
                    self._log.flush()
            if shown:
                self.console.print(Text(text, style=style))

    # ------------------------------------------------------------ the status line

    @contextlib.contextmanager
    def working(self, text: str, budget: float = 0.0) -> Iterator[None]:
        """Show a status line, at first `text`, during the block. `budget`: seconds that measuring may take."""
        self._end = time.monotonic() + budget
        if not self.console.is_terminal or self.quiet:
            yield
            return
        with self.console.status(text) as status:
            self._status = status
            try:
                yield
            finally:
                self._status = None

    def progress(self, text: str, decided: int, cells: int, open: Sequence[str]) -> None:
        """Show in the status line how many cells are decided. `open`: labels of the undecided cells."""
        minutes, seconds = divmod(max(0, round(self._end - time.monotonic())), 60)
        more = f" and {len(open) - _OPEN_SHOWN} more" if len(open) > _OPEN_SHOWN else ""
        names = visible(", ".join(open[:_OPEN_SHOWN])) + more
        self._show(f"{text}: {decided} of {cells} cells decided, at most {minutes}:{seconds:02} left  {names}")

    def _show(self, text: str) -> None:
        if self._status is not None:
            self._status.update(escape(text))
