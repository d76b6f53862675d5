"""Everything that is made from a judged run: a run and its blocks in; tables, pages, the end of the log and of the terminal out.

`write_all` writes every file of a run folder anew; `rendered` is one format as bytes; `print_run` prints the run on standard
output. All three print one model (page.py), whose wording comes from sentences.py. Heavy imports wait until they are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from abprof.records import Block, Run
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
    """Write (again) cells.csv, the suites' CSVs, memory.csv, the end of output.txt, report.md and report.html,
    of a run in any state.

    Raises AbprofError when the disk refuses.
    """
    from abprof.report import csv_files, page, probes, render, rows, suite_csv

    written: list[Path] = []

    def put(name: str, text: str) -> None:
        written.append(disk.replace(folder / name, text.encode(errors="replace")))

    put("cells.csv", csv_files.cells_csv(run))
    for name, text in (suite_csv.files(run) | probes.files(run)).items():
        put(name, text)
    groups = rows.groups(run)
    with disk.refusals(folder / LOG):
        log = (folder / LOG).read_bytes().decode(errors="replace") if (folder / LOG).exists() else ""
    put(LOG, suite_csv.with_footer(log, run, groups))
    model = page.page(run, blocks, groups)
    put("report.md", render.markdown(model))
    put("report.html", render.html(model))
    return written
