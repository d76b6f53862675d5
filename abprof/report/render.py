"""Render a run's report as HTML or Markdown (from templates/), CSV, JSON, PNG, JUnit XML, or a service's format."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Callable, Sequence
from pathlib import Path

from markupsafe import Markup, escape

from abprof.records import Block, Run
from abprof.report import exports, probes, sentences, suite_csv, text
from abprof.report.csv_files import cells_csv
from abprof.report.layouts import asset, environment
from abprof.report.model import Page
from abprof.report.rows import Row
from abprof.system import checksummed
from abprof.system import files as disk


def html(page: Page) -> str:
    """Return the report as one HTML document that loads no other file."""
    script = asset("report.js")
    return environment(escape).get_template("report.html").render(
        page=page,
        run=page.run,
        script=Markup(script),  # noqa: S704 - abprof's own
        script_hash=b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=Markup(asset("report.css")),  # noqa: S704
        large=bool(page.left_out),
    )  # fmt: skip


def markdown(page: Page) -> str:
    """Return the report as GitHub-flavoured Markdown."""
    return environment(text.markdown).get_template("report.md").render(page=page, run=page.run)


def _png(page: Page) -> bytes:
    counts = ", ".join(f"{count} {name}" for name, count in page.counts)
    return page.strip.png(page.headline, f"{counts}   {page.where}")


def _notebook(page: Page) -> str:
    return environment(escape).get_template("notebook.html").render(page=page, run=page.run)


def _junit(page: Page) -> str:
    def kind(row: Row) -> str:
        if row.comparison and (row.apart or "waived" in row.comparison.reasons):
            return "skipped"
        kinds = {"broken": "error", "slower": "failure", "unclear": "skipped"}
        return kinds.get(row.verdict or "", "") if row.comparison else ""

    made = environment(escape)
    made.filters |= {"junit": kind, "verdict_and_change": sentences.verdict_and_change}
    return made.get_template("report.xml").render(page=page)


FORMATS: dict[str, Callable[[Page], str | bytes]] = {
    "html": html,
    "md": markdown,
    "csv": lambda page: cells_csv(page.run),
    "json": lambda page: checksummed.text(page.run, 1).decode() + "\n",
    "png": _png,
    "junit": _junit,
    "bmf": lambda page: exports.bmf(page.run),
    "action": lambda page: exports.action(page.run),
}


def rendered(run: Run, blocks: Sequence[Block], format: str) -> bytes:
    """Return the report of a run in `format`, a key of FORMATS, or `notebook`: a part of a page, in HTML."""
    made = _notebook(Page(run, blocks)) if format == "notebook" else FORMATS[format](Page(run, blocks))
    return made.encode(errors="replace") if isinstance(made, str) else made


def write_all(folder: Path, run: Run, blocks: Sequence[Block]) -> list[Path]:
    """Write all reports into `folder`. Return their paths. Raises AbprofError if a file cannot be read or written."""
    model, output = Page(run, blocks), folder / "output.txt"
    with disk.refusals(output):
        log = output.read_bytes().decode(errors="replace") if output.exists() else ""
    made = {"cells.csv": cells_csv(run)} | suite_csv.files(run) | probes.files(run)
    made[output.name] = suite_csv.with_footer(log, model)
    made |= {"report.md": markdown(model), "report.html": html(model)}
    return [disk.replace(folder / name, content.encode(errors="replace")) for name, content in made.items()]
