"""report.html: one file that needs nothing else. templates/report.html holds its words and order, report.css its looks,
report.js what a table does when scripts are on: nothing is said by it that is not in the page already."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Sequence

from markupsafe import Markup, escape

from abprof.records import Block, Run
from abprof.report import (
    beside,
    ceilings,
    counters,
    details,
    facts,
    failures,
    kernels,
    lines,
    overview,
    pictures,
    places,
    sampled,
    sections,
    surroundings,
    traces,
    view,
    words,
)
from abprof.report.pages import environment
from abprof.system.bundled import bundled
from abprof.verdict import guarantees

_PLAIN_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")
PHASES_UP_TO = 40  # rows of a group: above it phases stand in the rows' details alone


def html(run: Run, blocks: Sequence[Block]) -> str:
    """The whole report as one HTML document, whose only script is its own, and without references to anything outside."""
    made = environment(escape)
    made.filters["log"] = log_link
    groups = view.groups(run)
    every = {details.key(group): lines.lines(group) for group in groups}
    chosen = details.choose(groups, every)
    measured = details.by_cell(blocks)
    script, style = _part("report.js"), _part("report.css")
    axes = [pictures.Axis(pictures.reach((row.comparison for row in group.rows), run.options), run.options)
            for group in groups]  # fmt: skip
    return made.get_template("report.html").render(
        run=run,
        groups=groups,
        every=[every[details.key(group)] for group in groups],
        axes=axes,
        detail=lambda group: details.details(run, group, every[details.key(group)], chosen, measured),
        chosen=chosen,
        strip=pictures.strip([row.comparison for group in groups for row in group.rows if row.comparison], run.options),
        script=Markup(script),  # noqa: S704 - abprof's own
        script_hash=b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=Markup(style),  # noqa: S704
        large=len(chosen.left_out) > 0,
        phases_up_to=PHASES_UP_TO,
        blocks=blocks,
        beside=beside,
        ceilings=ceilings,
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
    )


def _part(name: str) -> str:
    """A file of the page without its indentation, which is a tenth of it."""
    text = (bundled("templates") / name).read_text(encoding="utf-8")
    return re.sub(r"^[ \t]+", "", text, flags=re.MULTILINE)


def log_link(path: str) -> Markup:
    """A log as a link inside the run folder; a name that is anything but a plain relative path stays text."""
    text = words.clean(path)
    shown = escape(text)
    if text == path and _PLAIN_PATH.fullmatch(path):
        return Markup(f'<a href="{shown}">{shown}</a>')  # noqa: S704
    return shown
