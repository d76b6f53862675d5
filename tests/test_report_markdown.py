"""report.md: complete, and safe for any name of a branch or machine and any message."""

import re

import pytest
from markdown_it import MarkdownIt

from abprof.report.text import code
from abprof.report.text import markdown as escape
from tests.reports import html, markdown

from . import runs

MADE = [runs.run, runs.hostile, runs.single, runs.unchanged, runs.two_targets]


def page(make) -> str:
    run = make()
    return markdown(run, runs.blocks(run))


def tables(text: str) -> list[list[str]]:
    found: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.startswith("|"):
            found[-1].append(line)
        elif found[-1]:
            found.append([])
    return [rows for rows in found if rows]


def columns(row: str) -> int:
    """Cells of a table row: pipes that no backslash escapes, as GitHub counts them (also inside code spans)."""
    return len(re.findall(r"(?<!\\)\|", row.strip())) - 1


@pytest.mark.parametrize("make", MADE)
def test_every_row_of_a_table_has_as_many_cells(make):
    found = tables(page(make))
    assert len(found) > 8
    for rows in found:
        assert len({columns(row) for row in rows}) == 1, rows[0]
        assert re.fullmatch(r"\|( -+:? \|)+\s?", rows[1]), rows[1]


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("main", "`main`"), ("a`b", "``a`b``"), ("`a``", "``` `a`` ```"), ("a|b\nc", "`a\\|b c`"), ("", ""),
        ("x" * 300, "`" + "x" * 119 + "…`"), ("`" * 90 + "x", "`" * 20 + " " + "`" * 19 + "…x " + "`" * 20),
    ],
)  # fmt: skip
def test_code_spans(text, span):
    assert code(text) == span


def test_escaped_text():
    assert escape("a_b *c* <i> [d](e) @f #1 https://g") == (
        "a\\_b \\*c\\* &lt;i&gt; \\[d\\](e) @\u2060f #\u20601 https:\u2060//g"
    )


def test_one_branch_alone_has_times_and_no_verdicts():
    text = page(runs.single)
    assert "| mask\\_type | direction | time | 95 % interval | TFLOP/s | peak memory |" in text
    assert "| full | fwd | 3.586 ms | 3.583 to 3.590 ms | 613.2 | 768.0 MiB |" in text
    assert "▲" not in text
    assert "% slower" not in text


def test_a_working_tree_is_called_one_whether_it_was_changed_or_not():
    run = runs.run(target=runs.changed(runs.TARGET, kind="worktree", label="working-tree"))
    text = markdown(run, [])
    assert f"| target | `working-tree` | working tree on `{runs.TARGET.commit[:10]}` |" in text
    assert f"| base | `main` | `{runs.MAIN.commit[:10]}` |" in text
    assert f"working tree on <code>{runs.TARGET.commit[:10]}</code>" in html(run, [])
    assert "uncommitted" not in text + html(run, [])


@pytest.mark.parametrize("text", ["1. a", "12) a", "- a", "+ a", "---", "- - -", "# a", "> a", "* a", "***"])
def test_a_text_that_stands_alone_is_a_paragraph(text):
    rendered = MarkdownIt("commonmark").render(f"a line\n\n{escape(text)}\n")
    assert rendered.replace("\u2060", "") == f"<p>a line</p>\n<p>{text.replace('>', '&gt;')}</p>\n"
