"""Everything that is made from a run: tables, pages, the end of the log. Heavy imports wait until it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from abprof.records import Block, Run
from abprof.records.errors import AbprofError
from abprof.store.runfolder import RunFolder
from abprof.system.files import content, refusals

LOG = "output.txt"
File = tuple[str, str | Iterator[str]]  # its name, and what is in it


def write_all(folder: Path, run: Run, blocks: Sequence[Block]) -> list[Path]:
    """Write (again) cells.csv, comparisons.csv, the suites' CSVs, report.html, report.md and the end of output.txt.

    Works on any run: finished, interrupted, or of one branch. One that cannot be made or written costs no other: all are tried,
    and then the first error is raised, with the names of what failed. Raises AbprofError when the disk refuses.
    """
    written: list[Path] = []
    failed: list[tuple[str, Exception]] = []
    for name, make in _makers(folder, run, blocks):
        try:
            for file, text in make():
                written.append(RunFolder(folder).write_text(file, text))
                del text  # of ten thousand cells tens of megabytes: before the next is made
        except Exception as error:  # noqa: BLE001 - told below, when the others are there
            failed.append((name, error))
    if failed:
        raise _told(failed)
    return written


def _makers(folder: Path, run: Run, blocks: Sequence[Block]) -> Iterator[tuple[str, Callable[[], Iterator[File]]]]:
    from abprof.report import (
        beside,
        cell_table,
        closing,
        counters,
        html,
        markdown,
        profiled,
        sampled,
        seed_tables,
        traces,
    )

    def one(name: str, make: Callable[[], str | Iterator[str]]) -> tuple[str, Callable[[], Iterator[File]]]:
        return name, lambda: iter([(name, make())])

    def log() -> Iterator[str]:
        there = folder / LOG
        with refusals(there):
            before = content(there).decode(errors="replace") if there.exists() else ""
        return closing.with_closing(before, run)

    yield one("cells.csv", lambda: cell_table.cells_csv(run))
    yield one("comparisons.csv", lambda: beside.comparisons_csv(run))
    for title, files in (
        ("the suites' tables", seed_tables.files),
        ("traces.csv", traces.files),
        ("memory.csv", profiled.files),
        ("samples.csv", sampled.files),
        ("profiles.csv", counters.files),
    ):
        yield title, lambda files=files: iter(files(run).items())  # type: ignore[misc]
    yield one("report.html", lambda: html.html(run, blocks))
    yield one("report.md", lambda: markdown.markdown(run, blocks))
    yield one(LOG, log)


def _told(failed: Sequence[tuple[str, Exception]]) -> Exception:
    """The first of these errors, with the names of all that could not be made."""
    error, names = failed[0][1], ", ".join(name for name, _ in failed)
    if isinstance(error, AbprofError):
        return AbprofError(
            error.what, where=error.where, advice="; ".join(filter(None, (error.advice, f"not written: {names}")))
        )
    for name, other in failed:
        error.add_note(f"not written: {name} ({type(other).__name__}: {other})")
    return error
