"""What things are called changes no report: names, values, messages and paths of any letters stay text where they stand.

A run in which every word is an odd one has the very shape of the same run with plain words: as many lines, the same elements,
the same columns. What is shown holds nothing that a terminal, a browser, GitHub or a spreadsheet would obey.
"""

import csv
import io
import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from hypothesis import strategies as st
from markdown_it import MarkdownIt

import abprof.report
from abprof.extras.bot import make_notice, render
from abprof.extras.bot.comment import MOST_BYTES
from abprof.records import Run
from abprof.report import csv_files, probes, suite_csv
from tests import runs
from tests.fuzz import rich
from tests.fuzz.mutations import hunt
from tests.reports import Parsed, footer, html, markdown, shown
from tests.test_bot_comment import ATTACKS

ODD = tuple(dict.fromkeys((*ATTACKS,
    "=1+1", "+1+1", "-2+3", "@SUM(1)", "\t=1", "\r=1", " =1", "'=1", "a|b", "a\\|b", "a\\", "|", "`", "``` a", "a`b``c", "~~~",
    "[x](javascript:alert(1))", "![x](http://evil.example)", "<http://evil.example>", "<script>alert(1)</script>", "<b>",
    "</td></table>", "</details>", "</code>", "<!-- ", "-->", "\"'><img src=x onerror=alert(1)>", "' onmouseover='alert(1)",
    "&lt;b&gt;", "&#64;torvalds", "</style></script><script>", "a\nb", "a\r\n\r\n# b", "a\n\n| b |\n", "\x1b[31m\x1b]0;x\x07",
    "\0", "\x7f\x9b31m", "\u202eabc", "\u2066x", "a\u200bb", "\ufeff", "\U000e0041", "\u2028x", "a\x85b", "\x0b\x0c", "\ud800",
    "\udcff\udcfe", "\ufffe\uffff", "\U0010ffff", "e\u0301" * 5, "\u00e9\U0001f525\U0001f469\u200d\U0001f469", "\u05d0\u05d1",
    "\uff1d1", "@torvalds", "#1", "https://evil.example", "www.evil.example", "$x$", "*a*", "_a_", "* a", "1. a", "# a", "---",
    "> a", "a,b;\"c\"", '"', "[bold]x[/bold]", "[/]", "{{ 7 * 7 }}", "{% raw %}", "%s%n{0}", "__proto__", "../../etc/passwd",
    "/etc/passwd", "x" * 300, "\U0001f525" * 100, "a b" * 100,
)))  # fmt: skip
SIGNS = st.text(st.characters(exclude_categories=()), min_size=1, max_size=12)
LETTERS = st.lists(st.sampled_from(ODD) | SIGNS, min_size=1, max_size=40)
BLANK = "the word "  # an ordinary name of several words in a report: no path, no number
RUNS = {"plain": rich.plain, "spread": rich.spread}
of_both = pytest.mark.parametrize("which", RUNS)
some = pytest.mark.parametrize("examples", [1, pytest.param(150, marks=pytest.mark.nightly)])


def odd(run: Run, letters: list[str]) -> Run:
    """Each word another of these, and no two the same."""
    return rich.with_words(run, lambda number, _: f"{letters[number % len(letters)]}{number}")


@cache
def right(which: str) -> Run:
    return rich.with_words(RUNS[which](), lambda number, _: f"{BLANK}{number}")


def hidden(text: str) -> str:
    """Return the first control or surrogate character."""
    found = [
        sign for sign in text if unicodedata.category(sign) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") and sign not in _OWN
    ]
    return ascii(found[0]) if found else ""


_OWN = "\n\u2060"  # ours: the end of a line, and what keeps a name in Markdown from becoming a mention
Shape = Callable[[Run], Any]


def tables(run: Run) -> dict[str, tuple[int, ...]]:
    """Return lines and columns of every CSV file. A cell's text stays in its cell."""
    found = {"cells.csv": csv_files.cells_csv(run)}
    for files in (suite_csv.files, probes.files):
        found |= {
            f"{files.__module__} {n}": text for n, (name, text) in enumerate(named(files(run))) if name.endswith(".csv")
        }
    for name, text in found.items():
        whole(name, text)
    return {name: (text.count("\n"), *map(len, csv.reader(io.StringIO(text)))) for name, text in found.items()}


def named(files: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, text in files.items():
        assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}", name), name
        yield name, text if isinstance(text, str) else "".join(text)


def whole(name: str, text: str) -> None:
    header, *rows = csv.reader(io.StringIO(text))
    assert len(set(header)) == len(header), f"{name}: a column stands twice"
    for row in (header, *rows):
        assert len(row) == len(header), f"{name}: {len(row)} columns, the header {len(header)}"
        for column, cell in zip(header, row, strict=True):
            assert not hidden(cell.replace("\n", "\0")), f"{name}, {column}: {ascii(cell)[:80]}"
            assert cell[:1] not in ("=", "+", "-", "@") or number(cell), f"{name}, {column}: a formula: {cell[:80]}"


def number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def lines(run: Run) -> dict[str, int]:
    """How many lines a terminal and the log get. A narrow terminal wraps them."""
    made = {"terminal": shown(run, 1_000_000, everything=True), "log": footer(run)}
    assert not hidden(shown(run, 40))
    for name, text in made.items():
        assert not hidden(text), f"{name}: {hidden(text)}"
    return {name: text.count("\n") for name, text in made.items()}


def page(run: Run) -> list[object]:
    """Elements with the names of their attributes, but for classes, which say how long a text is, too. A log called like a file is
    a link, and what a warning has between backticks is code."""
    text = html(run, runs.blocks(run, 1, 1))
    assert not hidden(text.replace("\u2060", "")), hidden(text)
    tags = Parsed(text).tags
    for tag, has in tags:
        for name, value in has.items():
            assert name not in ("src", "href") or re.fullmatch(r"#[a-z0-9-]+|[\w.-]+(/[\w.-]+)*", value or ""), (
                tag,
                value,
            )
            assert not name.startswith("on"), (tag, name)
    return [(tag, *(name for name in has if name != "class")) for tag, has in tags if tag not in ("a", "code")]


RENDERER = MarkdownIt("commonmark", {"html": True}).enable("table").enable("strikethrough")


def rendered(text: str) -> list[object]:
    """Return GitHub's rendering without the texts."""
    assert not hidden(text), hidden(text)
    seen: list[object] = []
    for token in RENDERER.parse(text):
        raw = re.findall(r"<[^>]*>", token.content) if token.type == "html_block" else token.info
        seen.append((token.type, token.tag, token.level, str(raw)))
        for part in token.children or ():
            if part.type in ("text", "text_special", "softbreak"):
                assert not re.search(r"[@#]\w|://|www\.", part.content), part.content
            else:
                seen.append((part.type, part.content if part.type == "html_inline" else ""))
    return seen


def report(run: Run) -> list[object]:
    return rendered(markdown(run, runs.blocks(run, 1, 1)))


def posted(run: Run) -> list[object]:
    """The comment. A command that cannot be shown letter for letter is left out, so it is the same here in every run."""
    options = msgspec.structs.replace(run.options, arguments=("abprof", "a|b", "`x`", "main"))
    text = render(make_notice(msgspec.structs.replace(run, options=options)))
    assert len(text.encode()) <= MOST_BYTES
    return rendered(text)


def junit(run: Run) -> list[str]:
    return [one.tag for one in ElementTree.fromstring(abprof.report.rendered(run, (), "junit")).iter()]


SHAPES: dict[str, Shape] = {
    "tables": tables, "lines": lines, "page": page, "report": report, "comment": posted, "junit": junit,
}  # fmt: skip


@cache
def shape(which: str, kind: str) -> Any:
    return SHAPES[kind](right(which))


@some
@of_both
@pytest.mark.parametrize("kind", SHAPES)
def test_odd_words_change_no_shape(which: str, kind: str, examples: int) -> None:
    def ask(letters: list[str]) -> None:
        same(SHAPES[kind](odd(RUNS[which](), letters)), shape(which, kind))

    ask(list(ODD))
    hunt(LETTERS, ask, examples)


def same(found: Any, wanted: Any) -> None:
    """Assert that both are equal; report the first difference."""
    if isinstance(wanted, list) and found != wanted:
        place = next((n for n, (one, other) in enumerate(zip(found, wanted, strict=False)) if one != other), -1)
        raise AssertionError(
            f"{len(found)} for {len(wanted)}; at {place}: {found[place - 2 : place + 3]} for {wanted[place - 2 : place + 3]}"
        )
    assert found == wanted
