"""What a run of many cells takes of its parent, step by step: `python -m tests.benchmarks.parent_memory [CELLS] [EPOCHS]`.

A `Record` is fed with blocks of 20 rounds of two arms, which are made one at a time, and asked after each epoch which cells go
on; then it ends as every run does. Of each step are printed the processor's seconds and the resident memory: after it, and the
most while it lasted (of Linux, which forgets the former peak when asked). Nothing is forced to the disk.
"""

from __future__ import annotations

import gc
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from abprof import report
from abprof.report import beside, cell_table, html, markdown, seed_tables
from abprof.store import runfolder
from abprof.store.record import Record
from abprof.store.runfolder import RunFolder
from abprof.system.console import View
from tests import large

STATUS, FORGET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Steps:
    """Prints a line a step; a step within another belongs to both."""

    def __init__(self) -> None:
        self.peak = 0.0
        self._peaks: list[float] = []

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        self._seen()
        depth = len(self._peaks)
        self._peaks.append(0.0)
        began = time.process_time()
        try:
            yield
        finally:
            took = time.process_time() - began
            self._seen()
            peak = self._peaks.pop()
            print(f"{'  ' * depth + name:<46} {took:8.2f} s {_mb('VmRSS'):6.0f} MB {peak:6.0f} MB", flush=True)

    def _seen(self) -> None:
        """What was the most since the last look counts for every step that is open."""
        most = _mb("VmHWM")
        self.peak = max(self.peak, most)
        self._peaks = [max(peak, most) for peak in self._peaks]
        FORGET.write_text("5")

    def around(self, place: Any, name: str, shown: str | Callable[..., str]) -> None:
        """Make a step of every call of this function. `shown`: its name, or what makes it of the call's arguments."""
        inner: Callable[..., Any] = getattr(place, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.step(shown if isinstance(shown, str) else shown(*args)):
                return inner(*args, **kwargs)

        setattr(place, name, timed)


def _mb(field: str) -> float:
    found = re.search(rf"^{field}:\s+(\d+) kB", STATUS.read_text(), re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0


def main(cells: int, epochs: int) -> None:
    os.fsync = lambda _: None
    head, chance, steps = large.head(cells), random.Random(1), Steps()
    for place, name, shown in (
        (Record, "note", "rounds.jsonl read again"),
        (Record, "judged", "verdicts"),
        (RunFolder, "write_run", "run.json"),
        (report, "write_all", "reports"),
        (cell_table, "cells_csv", "cells.csv"),
        (beside, "comparisons_csv", "comparisons.csv"),
        (seed_tables, "files", "the suites' tables"),
        (html, "html", "report.html"),
        (markdown, "markdown", "report.md"),
        (RunFolder, "write_text", lambda _, name, text: f"{name} on the disk"),
    ):
        steps.around(place, name, shown)
    with tempfile.TemporaryDirectory() as scratch:
        folder = runfolder.create(Path(scratch), head.id)
        view = View(quiet=True)
        view.attach(folder.path / "output.txt")
        record = Record(folder, head, [], view)
        print(f"{cells} cells, {epochs} epochs; {_mb('VmRSS'):.0f} MB before anything is measured")
        print(f"{'step':<46} {'processor':>9} {'after':>9} {'most':>9}")
        for epoch in range(1, epochs + 1):
            with steps.step(f"epoch {epoch}: blocks made and added"):
                for i in range(cells):
                    record.add(large.block(head, i, epoch, chance))
            with steps.step(f"epoch {epoch}: which cells go on"):
                record.wanted()
        record.add(large.block(head, 0, epochs + 1, chance))
        with steps.step("one cell's news: which cells go on"):
            record.wanted()
        record.folder.write_run(record.judged("running"))  # as it is now and then
        measuring = steps.peak
        with steps.step("the end, whole"):
            record.finish()
        for file in sorted(folder.path.iterdir()):
            if file.is_file():
                print(f"{file.name:<46} {file.stat().st_size / 1e6:7.1f} MB")
    print(f"peak while measuring {measuring:.0f} MB, in all {steps.peak:.0f} MB")


if __name__ == "__main__":
    gc.collect()
    main(*(int(text) for text in sys.argv[1:]) if len(sys.argv) > 2 else (10_000, 4))
