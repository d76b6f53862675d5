"""report.md: the run for people who read it where code is reviewed. templates/report.md holds its words and order."""

from __future__ import annotations

from collections.abc import Sequence

from abprof.records import Block, Run
from abprof.report import (
    beside,
    counters,
    facts,
    failures,
    kernels,
    lines,
    overview,
    places,
    sampled,
    sections,
    surroundings,
    traces,
    view,
    words,
)
from abprof.report.pages import environment
from abprof.report.plain_markdown import code, escape
from abprof.verdict import guarantees


def markdown(run: Run, blocks: Sequence[Block]) -> str:
    """The whole report as GitHub-flavoured Markdown."""
    made = environment(escape)
    made.filters["code"] = code
    groups = view.groups(run)
    return made.get_template("report.md").render(
        run=run,
        beside=beside,
        groups=groups,
        facts=facts,
        kernels=kernels,
        failures=failures,
        guarantees=guarantees,
        lines=lines,
        overview=overview,
        places=places,
        sections=sections,
        surroundings=surroundings,
        counters=counters,
        sampled=sampled,
        traces=traces,
        words=words,
        blocks=blocks,
    )
