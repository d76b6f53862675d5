"""Everything that is made from a run: tables, pages, the end of the log. Heavy imports wait until it is made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from abprof.model import Block, Run
from abprof.runfolder import RunFolder

LOG = "output.txt"


def write_all(folder: Path, run: Run, blocks: Sequence[Block]) -> list[Path]:
    """Write (again) cells.csv, comparisons.csv, the suites' CSVs, report.html, report.md and the end of output.txt.

    Works on any run: finished, interrupted, or of one branch. Raises AbprofError when the disk refuses.
    """
    from . import beside, cell_table, closing, counters, html, markdown, profiled, sampled, seed_tables, traces

    def made() -> Iterator[tuple[str, str | Iterator[str]]]:
        yield "cells.csv", cell_table.cells_csv(run)
        yield "comparisons.csv", beside.comparisons_csv(run)
        for files in (seed_tables.files, traces.files, profiled.files, sampled.files, counters.files):
            yield from files(run).items()
        yield "report.html", html.html(run, blocks)
        yield "report.md", markdown.markdown(run, blocks)
        log = folder / LOG
        yield LOG, closing.with_closing(log.read_text(encoding="utf-8", errors="replace") if log.exists() else "", run)

    written = []
    for name, text in made():
        written.append(RunFolder(folder).write_text(name, text))
        del text  # of ten thousand cells tens of megabytes: before the next is made
    return written
