"""A selfcheck's tables as Markdown: on the terminal, in its run folder, and for docs/MEASUREMENT.md."""

from __future__ import annotations

from pathlib import Path

from abprof import stats
from abprof.report import pages
from abprof.selfcheck.result import Selfcheck


def markdown(found: Selfcheck, folder: Path) -> str:
    """The page, by templates/selfcheck.md."""
    from abprof.report.markdown import escape

    template = pages.environment(escape).get_template("selfcheck.md")
    return template.render(found=found, folder=folder, rate=rate, bound=stats.false_alarm_bound)


def rate(count: int, of: int) -> str:
    """ "3 of 40 (7.5 %)"."""
    return f"{count} of {of} ({100 * count / of:.3g} %)" if of else "none"
