"""Everything that is made from a run: tables, pages, the end of the log. Heavy imports wait until it is made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from abprof.model import Block, Run
from abprof.runfolder import RunFolder

LOG = "output.txt"


def write_all(folder: Path, run: Run, blocks: Sequence[Block]) -> list[Path]:
    """Write (again) cells.csv, comparisons.csv, the suites' CSVs, report.html, report.md and the end of output.txt.

    Works on any run: finished, interrupted, or of one branch. Raises AbprofError when the disk refuses.
    """
    from . import beside, cell_table, closing, counters, html, markdown, profiled, sampled, seed_tables, traces

    made = {"cells.csv": cell_table.cells_csv(run), "comparisons.csv": beside.comparisons_csv(run)}
    made |= seed_tables.files(run) | traces.files(run) | profiled.files(run) | sampled.files(run) | counters.files(run)
    made |= {"report.html": html.html(run, blocks), "report.md": markdown.markdown(run, blocks)}
    log = folder / LOG
    before = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    made[LOG] = closing.with_closing(before, run)
    return [RunFolder(folder).write_text(name, text) for name, text in made.items()]
