"""A run as each format shows it, for tests."""

import io
from collections.abc import Sequence
from html.parser import HTMLParser
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


VOID = {"meta", "rect", "line", "circle", "br"}


class Parsed(HTMLParser):
    """A page as a browser reads it, whose elements are nested: tags with attributes, the widths of tables' rows, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[list[int]] = []
        self.text: list[str] = []
        self.style = self.script = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        has = dict(attrs)
        self.tags.append((tag, has))
        self._imply({"tr": ("td", "th", "tr"), "td": ("td", "th"), "th": ("td", "th")}.get(tag, ()))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append(0)
        elif tag in ("td", "th"):
            self.tables[-1][-1] += int(has.get("colspan") or 1)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        rows = ("td", "th", "tr", "tbody") if tag in ("table", "thead") else ()
        self._imply({"tr": ("td", "th"), "div": ("p",)}.get(tag, rows))
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> out of place"

    def handle_comment(self, data):
        self.tags.append(("a comment", {}))

    def _imply(self, ends: tuple[str, ...]) -> None:
        """HTML lets these end tags be left out."""
        while self.open and self.open[-1] in ends:
            self.open.pop()

    def handle_data(self, data):
        if self.open and self.open[-1] == "style":
            self.style += data
        elif self.open and self.open[-1] == "script":
            self.script += data
        else:
            self.text.append(data)
