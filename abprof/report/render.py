"""Render a run's report as HTML or Markdown (from templates/), CSV, JSON, PNG, JUnit XML, or a service's format."""

from __future__ import annotations

import gzip
import hashlib
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from abprof.records import Arm, Block, Run
from abprof.records.errors import AbprofError
from abprof.report import code_pages, exports, probes, sentences, suite_csv, text
from abprof.report.csv_files import cells_csv
from abprof.report.layouts import asset, environment
from abprof.report.model import Page
from abprof.report.rows import Row
from abprof.system import checksummed, doorway
from abprof.system import files as disk


def html(page: Page) -> str:
    """Return the report as one HTML document that loads no other file."""
    return _scripted("report", "report.css", page=page, run=page.run, large=bool(page.left_out))


def _scripted(name: str, *styles: str, **values: Any) -> str:
    """Return the page of the template `name` with its script and its style sheets inside."""
    script = asset(f"{name}.js")
    return environment(escape).get_template(f"{name}.html").render(
        script=Markup(script),  # noqa: S704 - abprof's own
        script_hash=b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=Markup("".join(map(asset, styles))),  # noqa: S704
        **values,
    )  # fmt: skip


_EMBEDDED = 4_000_000  # bytes of a compressed trace within its page; a larger file is loaded by hand


def _trace_documents(folder: Path, run: Run) -> Iterator[tuple[str, str]]:
    """Yield (path, HTML) of a page for each traced row, which holds its traces: a page from disk may not load files."""
    for path, traces in probes.trace_pages(run).items():
        sides = []
        for one in traces:
            with suppress(OSError, AbprofError):
                data = gzip.compress(doorway.read(folder / one.file, one.bytes, folder), mtime=0)
                packed = b64encode(data).decode() if len(data) <= _EMBEDDED else ""
                sides.append((Arm.of(one.arm).side, one.file.rpartition("/")[2], Markup(packed)))  # noqa: S704 - base64
        if sides:
            about = {"run": run, "cell": traces[0].cell, "arm": Arm.of(traces[0].arm)}
            yield path, _scripted("trace", "report.css", sides=sides, path=path, **about)


def markdown(page: Page) -> str:
    """Return the report as GitHub-flavoured Markdown."""
    return environment(text.markdown).get_template("report.md").render(page=page, run=page.run)


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
    "png": lambda page: page.strip.png(
        page.headline, f"{', '.join(f'{n} {name}' for name, n in page.counts)}   {page.where}"
    ),
    "junit": _junit,
    "bmf": lambda page: exports.bmf(page.run),
    "action": lambda page: exports.action(page.run),
}


def rendered(run: Run, blocks: Sequence[Block], format: str) -> bytes:
    """Return the report of a run in `format`, a key of FORMATS, or `notebook`: a part of a page, in HTML."""
    page = Page(run, blocks)
    if format == "notebook":
        return environment(escape).get_template("notebook.html").render(page=page, run=run).encode(errors="replace")
    made = FORMATS[format](page)
    return made.encode(errors="replace") if isinstance(made, str) else made


def write_all(folder: Path, run: Run, blocks: Sequence[Block]) -> list[Path]:
    """Write all reports into `folder`. Return their paths. Raises AbprofError if a file cannot be read or written."""
    model, output = Page(run, blocks), folder / "output.txt"
    with disk.refusals(output):
        log = output.read_bytes().decode(errors="replace") if output.exists() else ""
    made = {"cells.csv": cells_csv(run)} | suite_csv.files(run) | probes.files(run)
    made[output.name] = suite_csv.with_footer(log, model)
    made |= {"report.md": markdown(model), "report.html": html(model), **dict(_trace_documents(folder, run))}
    code = code_pages.write(run, folder, lambda values: _scripted("code", "report.css", "code.css", **values))
    return [*(disk.replace(folder / name, text_.encode(errors="replace")) for name, text_ in made.items()), *code]
