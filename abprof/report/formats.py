"""A judged run in any one format, as bytes: what `abprof report RUN --format NAME` prints. Nothing is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from xml.etree import ElementTree

import msgspec

from abprof.records import Block, Run
from abprof.report import numbers, words
from abprof.report.view import Group, Row, groups

Make = Callable[[Run, Sequence[Block]], bytes]


def _html(run: Run, blocks: Sequence[Block]) -> bytes:
    from abprof.report.html import html

    return html(run, blocks).encode(errors="replace")


def _markdown(run: Run, blocks: Sequence[Block]) -> bytes:
    from abprof.report.markdown import markdown

    return markdown(run, blocks).encode(errors="replace")


def _csv(run: Run, blocks: Sequence[Block]) -> bytes:  # noqa: ARG001 - one shape for all formats
    from abprof.report.cell_table import cells_csv

    return cells_csv(run).encode(errors="replace")


def _json(run: Run, blocks: Sequence[Block]) -> bytes:  # noqa: ARG001
    text = json.dumps(msgspec.to_builtins(run), allow_nan=False, ensure_ascii=False, indent=1)
    return text.encode(errors="replace") + b"\n"


def _png(run: Run, blocks: Sequence[Block]) -> bytes:  # noqa: ARG001
    from abprof.report.png import png

    return png(run)


def _junit(run: Run, blocks: Sequence[Block]) -> bytes:  # noqa: ARG001
    """A test suite per workload and target, a test per row: `broken` is an error, `slower` a failure, `unclear` skipped."""
    root = ElementTree.Element(
        "testsuites", name=words.clean(run.header.sentence if run.header else "Nothing was judged")
    )
    for group in groups(run):
        name = words.clean(group.workload.name) + (
            f" against {words.clean(group.target.label, 60)}" if group.target else ""
        )
        suite = ElementTree.SubElement(root, "testsuite", name=name, tests=str(len(group.rows)))
        for row in group.rows:
            _test(suite, group, row)
        for count, tag in (("errors", "error"), ("failures", "failure"), ("skipped", "skipped")):
            suite.set(count, str(len(suite.findall(f"testcase/{tag}"))))
    ElementTree.indent(root)
    text: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def _test(suite: ElementTree.Element, group: Group, row: Row) -> None:
    ns = numbers.time_ns(row.target if group.target else row.base, row.metric)
    case = ElementTree.SubElement(
        suite, "testcase", classname=f"abprof.{words.clean(group.workload.name)}", name=group.name(row)
    )
    if ns is not None:
        case.set("time", f"{ns / 1e9:.9f}")
    kind = (
        "skipped"
        if row.apart or (row.comparison and "waived" in row.comparison.reasons)
        else {"broken": "error", "slower": "failure", "unclear": "skipped"}.get(row.verdict or "")
    )
    if kind and row.comparison:
        said = words.verdict(row.comparison)
        moved = "" if row.comparison.pct is None else f"; time {words.change(row.comparison)}"
        ElementTree.SubElement(case, kind, message=words.clean(said + moved, 1000))


FORMATS: dict[str, Make] = {
    "html": _html, "md": _markdown, "csv": _csv, "json": _json, "png": _png, "junit": _junit,
}  # fmt: skip
