"""What a person sees while a run goes on, and the run's log. Progress goes to standard error, results to standard output."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from abprof.records.visible import visible, visible_lines

# What compilers write around their words on a terminal: colours, and an end of the line wiped for them.
_COLOURS = re.compile(r"\x1b\[[0-9;:]*[mK]")


_OPEN_SHOWN = 3  # labels of open cells in the live block


class _TimeLeft(ProgressColumn):
    """The time until the budget is spent."""

    def __init__(self, end: float) -> None:
        super().__init__()
        self._end = end

    def render(self, task: Task) -> Text:  # noqa: ARG002 - rich passes it
        """At most `4:10 left`."""
        minutes, seconds = divmod(max(0, round(self._end - time.monotonic())), 60)
        return Text(f"at most {minutes}:{seconds:02} left")


class View:
    """Says what happens. `log`, once attached, gets every line too; without a terminal nothing is redrawn."""

    def __init__(self, *, quiet: bool = False, verbose: bool = False, stream: IO[str] | None = None) -> None:
        self.console = Console(file=stream, stderr=stream is None, highlight=False, soft_wrap=True)
        self.quiet = quiet
        self.verbose = verbose
        self._log: IO[str] | None = None
        self._lock = threading.Lock()
        self._live: Live | None = None
        self._bar: Progress | None = None
        self._last: dict[str, list[str]] = {}

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
            with contextlib.suppress(OSError, ValueError):  # the writer of results reports a full disk
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
    def measuring(self, budget: float) -> Iterator[None]:
        """On a terminal one live block: a bar of decided cells, the time left of `budget` seconds, and the open cells."""
        if not self.console.is_terminal or self.quiet:
            yield
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("cells decided,"))
        left = _TimeLeft(time.monotonic() + budget)
        with Progress(*columns, left, TextColumn("{task.fields[open]}"), console=self.console, transient=True) as bar:
            bar.add_task("starting workers", total=None, open="")
            self._bar = bar
            try:
                yield
            finally:
                self._bar = None

    def progress(self, text: str, decided: int, cells: int, open: Sequence[str]) -> None:
        """Update the live block: the number of `decided` cells, and the labels of the `open` ones."""
        if self._bar is not None:
            more = f" and {len(open) - _OPEN_SHOWN} more" if len(open) > _OPEN_SHOWN else ""
            shown = escape(visible(", ".join(open[:_OPEN_SHOWN]))) + more
            self._bar.update(self._bar.task_ids[0], description=text, completed=decided, total=cells, open=shown)

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
            elif self._bar is not None and not self.verbose:
                self._bar.update(self._bar.task_ids[0], open=escape(text[:80]))
            elif not self.quiet:
                self.console.print(Text(text, style="dim"))
