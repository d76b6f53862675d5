"""report.html: one well-formed file that needs nothing else, and into which nothing foreign gets as markup."""

import re
from base64 import b64encode
from hashlib import sha256

import pytest

from abprof.records import Advice
from abprof.report.text import log_link
from tests.reports import Parsed, html, markdown

from . import runs

REFERENCES = {"href", "src", "srcset", "action", "data", "xlink:href", "poster", "background", "formaction"}


def page(make) -> Parsed:
    return Parsed(html(make(), runs.blocks(make())))


@pytest.mark.parametrize("make", [runs.run, runs.hostile, runs.single, runs.unchanged, runs.two_targets])
def test_every_kind_of_run_is_a_page_that_needs_nothing_else_and_runs_its_own_script_alone(make):
    parsed, text = page(make), html(make(), runs.blocks(make()))
    names = [tag for tag, _ in parsed.tags]
    assert names.count("script") == 1
    assert not set(names) & {"iframe", "object", "embed", "link", "img", "base"}
    for tag, attributes in parsed.tags:
        assert not any(name.startswith("on") for name in attributes), tag
        for name in REFERENCES & attributes.keys():
            assert re.fullmatch(r"#c\d+|[\w][\w./-]*", attributes[name] or ""), (tag, attributes)
    assert set(re.findall(r"url\(.*?\)", parsed.style)) == {f"url(#{name})" for name in ("dot", "up", "down", "ring")}
    assert "@import" not in parsed.style
    assert "http" not in parsed.style + parsed.script
    (policy,) = [attributes["content"] for tag, attributes in parsed.tags if attributes.get("http-equiv")]
    digest = b64encode(sha256(parsed.script.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert "{{" not in parsed.script
    assert parsed.tables
    for widths in parsed.tables:
        assert len(set(widths)) == 1, widths
    for region in re.findall(r"<div class=\"wide\".*?>", text):
        assert re.search(r'aria-label="[^"]', region)


def test_what_a_report_must_hold():
    run, parsed = runs.run(), page(runs.run)
    ids = [has["id"] for _, has in parsed.tags if "id" in has]
    assert len(ids) == len(set(ids))
    links = {has["href"][1:] for tag, has in parsed.tags if tag == "a" and (has["href"] or "").startswith("#")}
    assert set() < links <= set(ids)
    text = " ".join("".join(parsed.text).split())
    assert html(run, ()).partition("<h2>")[0].count("<h1>1 slower, 1 faster, 7 broken of 16</h1>") == 1, (
        "the sentence comes first"
    )
    for said in (
        "slower", "2.1 % slower", "1.8 to 2.4 % slower", "10.01 ms", "10.22 ms", "549.2 → 537.9",
        "6 of 6 controls within 0.5 %", "2 per cell",
        "16 discarded (power brake)",
        "each worker loaded its own side's files and its environment's only, after timing (4 checks of 2 workers)",
        "RuntimeError: invalid argument | grid (0, 1, 1)", "failed: error: no member named 'tile' in 'Params'",
        "the data show only: within 2.3 %", "residual", "not recorded", "GITHUB_TOKEN",
        "2 cells ran at the power limit", "rerun them with --protocol sustained",
        "the sign is certain, the size is inside the threshold", run.sides[1].commit[:10],
        "NVIDIA H200", "main feature/optimize ffa",
    ):  # fmt: skip
        assert said in text, said
    assert "-1.0" not in text
    assert "None" not in text
    assert not re.search(r"\bnan\b", text, re.I)


def test_a_warning_shows_its_command_and_the_chart_shows_the_largest_change():
    run = runs.run()
    advice = Advice(kind="undecided", text="1 row undecided", advice="`abprof rerun RUN --only unclear`: <b>")
    large = runs.compared(run.cells[0], "slower", 900.0)
    text = html(runs.changed(run, warnings=(advice,), comparisons=(large, *run.comparisons[1:])), ())
    assert f"<code>abprof rerun runs/{run.id} --only unclear</code>: &lt;b&gt;" in text
    assert "+945.0 %" in text
    command = f"`abprof rerun runs/{run.id} --only unclear`"
    assert f"- 1 row undecided ({command}: &lt;b&gt;)" in markdown(runs.changed(run, warnings=(advice,)), ())


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
