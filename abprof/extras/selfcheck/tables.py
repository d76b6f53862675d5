"""A selfcheck's tables as Markdown: on the terminal, in its run folder, and for docs/MEASUREMENT.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from abprof.extras.selfcheck.result import Detection, Selfcheck
from abprof.report.render import environment
from abprof.report.text import code, duration
from abprof.report.text import markdown as escape
from abprof.verdict import stats


def markdown(found: Selfcheck, folder: Path) -> str:
    """The page, by templates/selfcheck.md."""
    columns = list(dict.fromkeys((row.protocol, row.threshold) for row in found.detection))
    return (
        environment(escape)
        .get_template("selfcheck.md")
        .render(
            found=found,
            command=code(" ".join(("abprof", *found.arguments))),
            folder=code(folder),
            heads=[f"{protocol} {threshold:g} %" if threshold else protocol for protocol, threshold in columns],
            detected=list(_detected(found.detection, columns)),
            thresholds=sorted({row.threshold for row in found.alarms if row.protocol == "abprof"}, reverse=True),
            duration=duration,
            rate=rate,
            bound=stats.false_alarm_bound,
        )
    )


def _detected(
    rows: Sequence[Detection], columns: Sequence[tuple[str, float]]
) -> Iterable[tuple[str, str, str, list[str]]]:
    """(injected, time of a call, measured, called slower by each column)."""
    for how, percent, name in dict.fromkeys((row.how, row.inject, row.duration_class) for row in rows):
        here = {(row.protocol, row.threshold): row for row in rows if (row.how, row.inject) == (how, percent)
                and row.duration_class == name}  # fmt: skip
        mean = next(iter(here.values())).mean_pct
        called = [_called(here[column]) if column in here else "-" for column in columns]
        yield f"{how} +{percent:g} %", name, f"{mean:+.2f} %", called


def _called(row: Detection) -> str:
    wrong = f", {row.faster} faster" if row.faster else ""
    return f"{row.slower} of {row.cells}{wrong}"


def rate(count: int, of: int) -> str:
    """ "3 of 40 (7.5 %)"."""
    return f"{count} of {of} ({100 * count / of:.3g} %)" if of else "none"
