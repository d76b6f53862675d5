"""Everything that is made from a judged run: a run and its blocks in; tables, pages, the end of the log and of the terminal out.

`write_all` writes every file of a run folder anew; `rendered` is one format as bytes; `print_run` prints the run on standard
output. All three print one model (page.py), whose wording comes from sentences.py. Heavy imports wait until they are used.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from abprof.records import Block, Run
from abprof.records.errors import AbprofError
from abprof.system import files as disk

LOG = "output.txt"
FORMATS = ("html", "md", "csv", "json", "png", "junit")


def rendered(run: Run, blocks: Sequence[Block], format: str) -> bytes:
    """The run in one of FORMATS; nothing is written."""
    from abprof.report import render
    from abprof.report.page import page

    made = render.FORMATS[format](page(run, blocks))
    return made.encode(errors="replace") if isinstance(made, str) else made


def print_run(run: Run, folder: Path, *, everything: bool = False) -> None:
    """The run on standard output: the rows that need a person, headline, trust, the report's path. `everything`: all rows."""
    from abprof.report import terminal

    terminal.print_run(run, folder, everything=everything)


def write_all(folder: Path, run: Run, blocks: Sequence[Block]) -> list[Path]:
    """Write (again) cells.csv, comparisons.csv, the suites' CSVs, those of probes, report.html, report.md and the end of
    output.txt, of a run in any state. All are tried; then the first error is raised with the names of the files that failed.

    Raises AbprofError when the disk refuses.
    """
    from abprof.report import csv_files, log_footer, page, probes, render, rows, suite_csv

    groups = rows.groups(run)
    model = functools.cache(lambda: page.page(run, blocks, groups))  # one for both formats

    def log() -> Iterator[str]:
        with disk.refusals(folder / LOG):
            before = disk.content(folder / LOG).decode(errors="replace") if (folder / LOG).exists() else ""
        return log_footer.with_footer(before, run, groups)

    makers: dict[str, Callable[[], Mapping[str, str | Iterable[str]]]] = {
        "cells.csv": lambda: {"cells.csv": csv_files.cells_csv(run)},
        "comparisons.csv": lambda: {"comparisons.csv": csv_files.comparisons_csv(run)},
        "the suites' tables": lambda: suite_csv.files(run),
        "the probes' tables": lambda: probes.files(run),
        "report.html": lambda: {"report.html": render.html(model())},
        "report.md": lambda: {"report.md": render.markdown(model())},
        LOG: lambda: {LOG: log()},
    }
    written: list[Path] = []
    failed: dict[str, Exception] = {}
    for name, make in makers.items():
        try:
            for file, text in make().items():
                pieces = [text] if isinstance(text, str) else text
                written.append(disk.replace(folder / file, (piece.encode(errors="replace") for piece in pieces)))
                del text, pieces  # of ten thousand cells tens of megabytes: before the next is made
        except Exception as error:  # noqa: BLE001 - raised below, when the others are there
            failed[name] = error
    for first in failed.values():
        if isinstance(first, AbprofError):
            advice = "; ".join(filter(None, (first.advice, f"not written: {', '.join(failed)}")))
            raise AbprofError(first.what, where=first.where, advice=advice)
        first.add_note("not written: " + "; ".join(f"{name} ({type(e).__name__}: {e})" for name, e in failed.items()))
        raise first
    return written
