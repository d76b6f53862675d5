"""Everything that is made from a judged run: a run and its blocks in; tables, pages, the end of the log and of the terminal out.

`write_all` writes every file of a run folder anew; `rendered` is one format as bytes; `print_run` prints the run on standard
output. All three print one model (page.py), whose wording comes from sentences.py. Heavy imports wait until they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
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
    written: list[Path] = []
    failed: list[tuple[str, Exception]] = []
    for name, make in _makers(folder, run, blocks):
        try:
            for file, text in make():
                pieces = [text] if isinstance(text, str) else text
                written.append(disk.replace(folder / file, (piece.encode(errors="replace") for piece in pieces)))
                del text, pieces  # of ten thousand cells tens of megabytes: before the next is made
        except Exception as error:  # noqa: BLE001 - raised below, when the others are there
            failed.append((name, error))
    if failed:
        raise _failure(failed)
    return written


def _makers(
    folder: Path, run: Run, blocks: Sequence[Block]
) -> Iterator[tuple[str, Callable[[], Iterable[tuple[str, str | Iterable[str]]]]]]:
    from abprof.report import csv_files, log_footer, page, probes, render, rows, suite_csv

    groups = rows.groups(run)
    made: list[page.Page] = []  # one page for both formats, made by the first

    def model() -> page.Page:
        if not made:
            made.append(page.page(run, blocks, groups))
        return made[0]

    def log() -> Iterator[str]:
        with disk.refusals(folder / LOG):
            before = disk.content(folder / LOG).decode(errors="replace") if (folder / LOG).exists() else ""
        return log_footer.with_footer(before, run, groups)

    yield "cells.csv", lambda: [("cells.csv", csv_files.cells_csv(run))]
    yield "comparisons.csv", lambda: [("comparisons.csv", csv_files.comparisons_csv(run))]
    yield "the suites' tables", lambda: suite_csv.files(run).items()
    yield "the probes' tables", lambda: probes.files(run).items()
    yield "report.html", lambda: [("report.html", render.html(model()))]
    yield "report.md", lambda: [("report.md", render.markdown(model()))]
    yield LOG, lambda: [(LOG, log())]


def _failure(failed: Sequence[tuple[str, Exception]]) -> Exception:
    """The first of these errors, with the names of all that could not be made."""
    error, names = failed[0][1], ", ".join(name for name, _ in failed)
    if isinstance(error, AbprofError):
        advice = "; ".join(filter(None, (error.advice, f"not written: {names}")))
        return AbprofError(error.what, where=error.where, advice=advice)
    for name, other in failed:
        error.add_note(f"not written: {name} ({type(other).__name__}: {other})")
    return error
