"""A run as each format shows it, for tests."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from abprof.records import Block, Run
from abprof.report import Page, rendered, suite_csv, terminal


def html(run: Run, blocks: Sequence[Block] = ()) -> str:
    return rendered(run, blocks, "html").decode()


def markdown(run: Run, blocks: Sequence[Block] = ()) -> str:
    return rendered(run, blocks, "md").decode()


def footer(run: Run, log: str = "") -> str:
    """output.txt with this log before it."""
    return suite_csv.with_footer(log, Page(run, ()))


def shown(run: Run, width: int = 150, *, everything: bool = False) -> str:
    """Return the output on a terminal of this width."""
    out = io.StringIO()
    terminal.show(Page(run, ()), Console(file=out, width=width), Path("runs/x"), everything=everything)
    return out.getvalue()
