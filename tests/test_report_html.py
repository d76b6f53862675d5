"""report.html: one well-formed file that needs nothing else, and into which nothing foreign gets as markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from abprof.model import Settings
from abprof.report import facts
from abprof.report.html import html, log_link, picture, scale
from abprof.report.view import groups

from . import runs

MADE = [runs.run, runs.hostile, runs.single, runs.unchanged, runs.two_targets]
RULES = Settings(threshold=1.5, margin=0.5)
VOID = {"meta", "rect", "line", "circle", "br"}
REFERENCES = {"href", "src", "srcset", "action", "data", "xlink:href", "poster", "background", "formaction"}


class Page(HTMLParser):
    """Checks nesting while it reads; keeps tags, attributes and the text outside <style>."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.style = ""

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> out of place"

    def handle_data(self, data):
        if self.open and self.open[-1] == "style":
            self.style += data
        else:
            self.text.append(data)


def page(make) -> Page:
    run = make()
    parsed = Page()
    parsed.feed(html(run, runs.blocks(run)))
    parsed.close()
    assert parsed.open == []
    return parsed


@pytest.mark.parametrize("make", MADE)
def test_well_formed_and_self_contained(make):
    parsed = page(make)
    names = {tag for tag, _ in parsed.tags}
    assert not names & {"script", "iframe", "object", "embed", "link", "img", "form", "base"}
    for tag, attributes in parsed.tags:
        assert not any(name.startswith("on") for name in attributes), tag
        for name in REFERENCES & attributes.keys():
            assert re.fullmatch(r"[\w][\w./-]*", attributes[name] or ""), (tag, attributes)
    assert "url(" not in parsed.style
    assert "@import" not in parsed.style
    policies = [attributes["content"] for tag, attributes in parsed.tags if attributes.get("http-equiv")]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]


@pytest.mark.parametrize("make", MADE)
def test_tables_are_even_and_named(make):
    run = make()
    text = html(run, runs.blocks(run))
    found = re.findall(r"<table>(.*?)</table>", text, re.S)
    assert found
    for table in found:
        assert "<caption>" in table
        wide = {len(re.findall(r"<t[hd][ >]", row)) for row in re.findall(r"<tr>(.*?)</tr>", table, re.S)}
        assert len(wide) == 1, table[:300]


def test_the_sentence_comes_first():
    run = runs.run()
    text = html(run, ())
    assert re.search(r"<h1>1 slower, 1 faster, 7 broken of 16</h1>", text)
    assert text.index("<h1>") < text.index("<h2>")


def test_foreign_text_is_shown_and_does_nothing():
    parsed = page(runs.hostile)
    text = "".join(parsed.text)
    assert "<script>alert(1)</script>" in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    logs = [attributes["href"] for tag, attributes in parsed.tags if tag == "a"]
    assert logs == []  # a log's name that is no plain path is no link


def test_what_a_report_must_hold():
    run = runs.run()
    text = " ".join("".join(page(runs.run).text).split())
    for said in (
        "▲ slower", "2.1 % slower", "1.8 to 2.4 % slower", "10.01 ms", "10.22 ms", "549.2 → 537.9",
        "6 of 6 inside the margin of 0.5 %, 0 beyond it", "at most 39 % of cells", "2 per cell",
        "16 dropped by a rule fixed beforehand (power brake)", "1950 to 1965 MHz",
        "every worker had loaded its own side's files and its environment's, and no others, before and after timing",
        "(4 looks at 2 workers, epoch by epoch)",
        "RuntimeError: invalid argument | grid (0, 1, 1)", "failed: error: no member named 'tile' in 'Params'",
        "a margin of 2.3 % could have been certified", "residual", "not recorded", "GITHUB_TOKEN",
        "2 cells ran at the power limit", "rerun them with --protocol sustained",
        "the sign is certain, the size is inside the threshold", run.sides[1].commit[:10],
        "aaaaaaaa", "NVIDIA H200", "abprof main feature/optimize ffa",
    ):  # fmt: skip
        assert said in text, said
    assert "-1.0" not in text
    assert "None" not in text
    assert not re.search(r"\bnan\b", text, re.I)


def test_logs_are_links_inside_the_folder():
    assert log_link("logs/target-ffa.log") == '<a href="logs/target-ffa.log">logs/target-ffa.log</a>'
    for foreign in ("/etc/passwd", "../x", "logs/../../x", "javascript:alert(1)", "//host/x", "http://x", "a b", ""):
        assert "<a" not in log_link(foreign)


def test_an_untrusted_or_interrupted_run_says_so_at_once():
    run = runs.run()
    untrusted = runs.changed(run, header=runs.changed(run.header, trusted=False), status="interrupted")
    text = html(untrusted, ())
    assert text.index("This run cannot be trusted") < text.index("<h2>")
    assert text.index("This run is interrupted") < text.index("<h2>")
    assert "Nothing was judged" in html(runs.changed(run, header=None), ())


def test_the_interval_is_drawn_where_it_is():
    row = runs.compared(runs.dense_cell("full", "fwd"), "slower", 5.0, 1.0)
    drawn = picture(row, 10.0, RULES)
    width, half = 168, 168 / 2 - 5
    assert f'cx="{width / 2 + 0.5 * half:.1f}"' in drawn
    assert f'x1="{width / 2 + 0.4 * half:.1f}" x2="{width / 2 + 0.6 * half:.1f}"' in drawn
    assert 'aria-label="5.0 % slower (95 % interval: 4.0 to 6.0 % slower)"' in drawn
    assert picture(runs.compared(runs.dense_cell("full", "fwd"), "broken"), 10.0, RULES) == ""


def test_the_axis_is_never_narrower_than_twice_the_threshold():
    dense, sparse, _ = groups(runs.run())
    assert scale(dense, RULES) == pytest.approx(6.5 * 1.05)
    assert scale(dense, runs.changed(RULES, thresholds=(("dense/*", 5.0),))) == pytest.approx(10.5)
    assert scale(sparse, RULES) == 0.0


def test_cells_that_never_took_a_turn_are_no_way_of_measuring():
    run = runs.run()
    blocks = runs.blocks(run)
    bare = {"rounds": (), "rejected": (), "timer": "", "calls": 0, "rule": "not measured", "metric": ""}
    lost = [runs.changed(block, epoch=epoch, **bare) for epoch in (3, 4, 5) for block in blocks[:1]]
    text = html(run, (*blocks, *lost))
    assert "0 calls a turn" not in text
    assert "<dt>epochs</dt><dd>2 per cell</dd>" in text
    assert "<dt>judged by</dt><dd>GPU time</dd>" in text


@pytest.mark.parametrize("first", [(), ("abprof",)])
def test_the_footer_has_the_command(first):
    run = runs.changed(runs.run(), arguments=(*first, "main", "optimize_ffa"))
    assert "<code>abprof main optimize_ffa </code></footer>" in html(run, ())


def test_a_control_is_inside_the_margin_of_its_own_cell():
    """The header's rule: a cell's own threshold narrows its margin. Without a header's counts the page counts itself."""
    run = runs.run()
    strict = runs.changed(run.settings, thresholds=(("*", 0.05),))
    alone = runs.changed(run, header=None)
    assert facts.controls(alone)[0][1].startswith("6 of 6 inside")
    assert facts.controls(runs.changed(alone, settings=strict))[0][1].startswith("0 of 6 inside")
