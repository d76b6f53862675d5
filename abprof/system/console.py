"""Print the progress of a run on standard error, and write it to the run's log. Results go to standard output."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from abprof.records.visible import visible, visible_lines

_COLOURS = re.compile(r"\x1b\[[0-9;:]*[mK]")  # escape sequences of compilers: colours, and clearing the rest of a line
_LEAKS = re.compile(r"nanobind: |\s*- (leaked|\.\.\. skipped) |See https://nanobind")  # Triton at its end
_ROWS = 8  # of undecided cells in the live block


class View:
    """Prints progress on standard error and to a log file, with a live block if standard error is a terminal."""

    def __init__(self, *, quiet: bool = False, verbose: bool = False, stream: IO[str] | None = None) -> None:
        self.console = Console(file=stream, stderr=stream is None, highlight=False, soft_wrap=True)
        self.quiet = quiet
        self.verbose = verbose
        self._log: IO[str] | None = None
        self._lock = threading.Lock()
        self._live: Live | None = None  # a block at the bottom of a terminal
        self._text, self._cells = "", 0  # what goes on, and of how many cells
        self._end = 0.0  # end of the budget, by time.monotonic()
        self._open: Sequence[str] = ()  # labels of the undecided cells
        self._changes: dict[str, dict[str, tuple[str, int, int]]] = {}  # label -> pair -> change, epochs, next look

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
        live = self._live is not None and not self.verbose
        noise = _LEAKS.match(line) is not None
        self._print(text, "dim", shown=not (self.quiet or live or noise))
        if live and not noise:
            self._text = text[:200]

    def _print(self, text: str, style: str, *, shown: bool) -> None:
        with self._lock:
            if self._log:
                with contextlib.suppress(OSError, ValueError):  # a full disk is reported where results are written
                    self._log.write(f"{text}\n")
                    self._log.flush()
            if shown:
                self.console.print(Text(text, style=style))

    # ------------------------------------------------------------ the live block

    @contextlib.contextmanager
    def working(self, text: str, budget: float = 0.0) -> Iterator[None]:
        """Show the live block, at first a moving bar and `text`. `budget`: seconds that measuring may take."""
        self._text, self._cells, self._open, self._changes = text, 0, (), {}
        self._end = time.monotonic() + budget
        # With FORCE_COLOR rich takes a CI log for a terminal.
        if self.quiet or not (self.console.is_interactive and self.console.file.isatty()):
            yield
            return
        live = Live(console=self.console, get_renderable=self._block, refresh_per_second=4, transient=True)
        with live:
            self._live = live
            try:
                yield
            finally:
                self._live = None

    def progress(self, text: str, cells: int, open: Sequence[str]) -> None:
        """Show how many of `cells` cells are decided. `open`: labels of the undecided cells."""
        self._text, self._cells, self._open = text, cells, open

    def change(self, cell: str, pair: str, change: str, epochs: int, looks: Sequence[int]) -> None:
        """Show a cell's change so far in the live block; print it after the first epoch and at `looks`."""
        look = next((look for look in looks if look >= epochs), looks[-1])
        self._changes[cell] = {**self._changes.get(cell, {}), pair: (change, epochs, look)}
        if epochs in {1, look}:
            line = visible_lines(f"  {cell}  {pair}: {change} so far ({epochs} of {look} epochs)")
            self._print(line, "", shown=not (self.quiet or self._live))

    def _block(self) -> Group:
        known = [(cell, self._changes.get(cell, {"": ("", 0, 1)})) for cell in self._open]
        done, text = float(self._cells - len(known)), self._text
        if self._cells:
            minutes, seconds = divmod(max(0, round(self._end - time.monotonic())), 60)
            text += f": {done:.0f} of {self._cells} cells decided, at most {minutes}:{seconds:02} left"
        done += sum(min(epochs / look for _, epochs, look in pairs.values()) for _, pairs in known)
        bar = ProgressBar(self._cells or None, done, 20, complete_style="cyan", pulse_style="cyan")
        head, rows = Table.grid(padding=(0, 2)), Table.grid(padding=(0, 2))
        head.add_row(bar, _cut(text))
        several = len({pair for _, pairs in known for pair in pairs if pair}) > 1
        found = [(cell, pair, *row) for cell, pairs in known for pair, row in pairs.items()]
        for cell, pair, change, epochs, look in found[:_ROWS]:
            so_far = f"{pair}: {change}" if several and pair else change
            rows.add_row(_cut(cell), _cut(so_far), f"{epochs} of {look} epochs" if epochs else "")
        more = len(found) - _ROWS
        return Group(head, rows, f"and {more} more" if more > 0 else "")  # a short line, so that an echoed ^C fits


def _cut(text: str) -> Text:
    return Text(visible(text), no_wrap=True, overflow="ellipsis")
