"""abprof from Python, for scripts and notebooks: `run`, `load`, `compare`, and the `Result` that they return.

Keyword options have the names of the command line's, with `_` for `-`, and are checked by the same code.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from abprof import report, session
from abprof.cli.app import warn
from abprof.cli.options import COMPARE, RUN, Given, one_of, options_from, past_of, values_of, view_of
from abprof.records import Block, Run
from abprof.records.errors import AbprofError, Exit
from abprof.records.visible import visible
from abprof.report import sentences

if TYPE_CHECKING:
    import pandas as pd

_SHOWN = 10  # rows of a printed result


class Result:
    """A judged run: `run` holds its records, `folder` its files (None: `compare` writes none)."""

    def __init__(self, run: Run, blocks: Sequence[Block], folder: Path | None = None) -> None:
        """Made by `run`, `load` and `compare`. `blocks`: the run's rounds."""
        self.run, self.folder, self._blocks = run, folder, blocks

    @property
    def comparisons(self) -> pd.DataFrame:
        """A row for each cell, variant and target, with the columns of cells.csv, and base_latency_ms: `verdict`, `pct`
        (change of time in per cent, negative is faster), its interval `low_pct` to `high_pct`, `latency_ms`, ..."""
        return report.frame(self.run)

    @property
    def verdict(self) -> str:
        """The gravest verdict: broken, slower, unclear, faster, slight or same; "" if nothing was compared."""
        found = {row.verdict for row in self.run.comparisons if not row.with_peer}
        return next((verdict for verdict in sentences.VERDICTS if verdict in found), "")

    @property
    def exit_code(self) -> int:
        """The command line's exit code: 0; 1 slower or broken; 4 not trustworthy; 2 nothing judged."""
        return self.run.header.exit_code if self.run.header else Exit.CANNOT_RUN

    def report(self, format: str = "md") -> str:
        """Return the report as text: md, html, csv, json, junit, bmf or action. Raises AbprofError for another format."""
        one_of("md", "html", "csv", "json", "junit", "bmf", "action")(format, "format")
        return report.rendered(self.run, self._blocks, format).decode()

    def __repr__(self) -> str:
        rows = [row for row in self.run.comparisons if not row.with_peer]
        judged = [f"{visible(row.cell)}: {sentences.verdict_and_change(row)}" for row in rows[:_SHOWN]]
        judged += [f"and {len(rows) - _SHOWN} more: .comparisons"] if len(rows) > _SHOWN else []
        failed = [sentences.warning(one) for one in self.run.warnings if one.kind in {"broken", "base_not_ok"}]
        unable = [visible(one.reason) for one in self.run.observations if one.status == "unsupported" and one.reason]
        failed += [f"Unsupported: {reason}" for reason in dict.fromkeys(unable[:_SHOWN])]
        start = (*sentences.incomplete(self.run), sentences.headline(self.run))
        return "\n".join((*start, *judged, *failed, *sentences.weaker(self.run)))

    def _repr_html_(self) -> str:
        return report.rendered(self.run, self._blocks, "notebook").decode()


def run(*refs: str, **options: Given) -> Result:
    """Compare refs (base, then targets) like `abprof run`, write the run's folder, and return the result.

    `abprof.run("main", ".", only="seqlen=8192", budget="5m")`. This process imports no torch. After ^C, returns the result
    of what was measured. Raises AbprofError for errors that the user can correct.
    """
    if not refs:
        raise AbprofError("no refs given", where="abprof.run", advice='abprof.run("main", ".")')
    values = values_of(RUN, options, "abprof.run")
    config = options_from(refs, values, devices=values["devices"] or None, arguments=())
    return load(session.run(config, view_of(values), past=past_of(values))[1])


def load(run: str | os.PathLike[str]) -> Result:
    """Judge the run in the folder `run` again from its rounds, and write nothing. Raises AbprofError if unreadable."""
    path = Path(run)
    return Result(*session.judged(path, warn), path.parent if path.is_file() else path)


def compare(
    base: Callable[..., Any],
    target: Callable[..., Any],
    inputs: Any = None,
    check: Callable[[Any, Any], Any] | None = None,
    *,
    reset: Callable[..., Any] | None = None,
    name: str = "",
    **options: Given,
) -> Result:
    """Compare two callables of this process: is `target` slower or faster than `base`, and do their outputs agree?

    They take turns in forks of this process, new ones for each epoch; once CUDA has started here (as by
    `torch.cuda.is_available()`), in this process. Prints which guarantee is missing, and writes no file.

    inputs: the arguments: a tuple, a mapping of keywords, or one value, whose tensors are copied for each side; or a
        function that returns one of these, called with torch's seed set.
    check: `check(outputs, outputs_of_base)`, with outputs on the CPU, a list if a call returns several tensors. It fails
        by an AssertionError or False, like `torch.testing.assert_close`. By default outputs must agree (docs/WRITING.md).
    reset: called untimed before each call with the same arguments, if a call changes them.
    options: threshold, margin, precision, budget (default "60s"), epochs, quick, timer, device, seed, timeout,
        allow_wrong, fail_on, no_wait, quiet, verbose, as on the command line. Without device, that of the inputs' tensors,
        else a GPU if there is one.

    This process must have torch. Raises AbprofError for errors that the user can correct.
    """
    if not (callable(base) and callable(target)):
        raise AbprofError("base and target must be functions", where="abprof.compare")
    values = values_of(COMPARE, {"budget": "60s", **options}, "abprof.compare")
    from abprof.extras.compare import Question, compared

    question = Question({"base": base, "target": target}, inputs, check, reset, name)
    return Result(*compared(question, options_from(("base", "target"), values, arguments=()), view_of(values)))
