"""What comes from a branch, case, log or path is text: the page, and what a Markdown renderer makes of report.md, in a real
browser in which anything that ran would open a dialog, ask for a file or speak to the console."""

import re

import pytest
from markdown_it import MarkdownIt

from tests import declared, runs
from tests.reports import html, markdown
from tests.simulated.lab import Lab
from tests.simulated.scenario import Scenario, Time, Workload

NAMES = (
    "<img src=x onerror=alert(1)>|`@everyone",
    "</code></td></table><script>alert(1)</script>",
    "\"'><svg/onload=alert(1)>",
    "--><iframe src=javascript:alert(1)>",
    "</style></script><script>alert(1)</script>",
    "`` ` ```<b onmouseover=alert(1)>x</b>",
    "[x](javascript:alert(1)) ![x](http://example.invalid/x.png) <http://example.invalid>",
    "{{ 7 * 7 }} ${7*7} <%= 7 %> &lt;script&gt; &#60;img&#62;",
    "\x1b]8;;http://example.invalid\x07click\x1b]8;;\x07\x1b[2J\u202e\u2066\u200b",
)
EVERYTHING = " ".join(NAMES)


def both() -> list:
    """Runs whose every foreign text is all of these: one with failures and warnings, one with charts and facts."""
    hostile = runs.hostile(EVERYTHING)
    plain = declared.run()
    cells = tuple(
        runs.changed(cell, params={**cell.params, EVERYTHING: EVERYTHING, "seqlen": cell.params.get("seqlen", 1)})
        for cell in plain.cells
    )
    loads = tuple(
        runs.changed(load, name=EVERYTHING, text=EVERYTHING, axes=(*load.axes, EVERYTHING)) if load.ladder else load
        for load in plain.workloads
    )
    cells = tuple(runs.changed(cell, workload=EVERYTHING) if cell.workload == "fmha" else cell for cell in cells)
    facts = {EVERYTHING: EVERYTHING, "autotuned": EVERYTHING}
    seen = tuple(runs.changed(one, facts={**one.facts, **facts}) for one in plain.observations)
    return [hostile, runs.changed(plain, cells=cells, workloads=loads, observations=seen)]


@pytest.mark.parametrize("which", [0, 1])
def test_the_page_has_no_element_that_is_not_its_own(visit, which):
    run = both()[which]
    page = visit(html(run, runs.blocks(run)))
    assert page.locator("script").count() == 1
    assert (
        page.locator("img, iframe, object, embed, link, base, b[onmouseover], body > :not(main, svg, script)").count()
        == 0
    )
    links = page.locator("a").evaluate_all("links => links.map(link => link.getAttribute('href'))")
    assert all(link.startswith("#c") for link in links)
    page.get_by_role("button", name="Show all").click()


@pytest.mark.parametrize("which", [0, 1])
def test_markdown_that_is_rendered_has_no_element_that_is_not_ours(visit, which):
    run = both()[which]
    _rendered_is_harmless(visit, markdown(run, runs.blocks(run)))


def _rendered_is_harmless(visit, text: str) -> None:
    rendered = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
    page = visit(f"<!DOCTYPE html><meta charset=utf-8><link rel=icon href=data:,>{rendered}")
    tags = page.evaluate("[...document.body.querySelectorAll('*')].map(one => one.tagName)")
    ours = {
        "H1", "H2", "H3", "P", "TABLE", "THEAD", "TBODY", "TR", "TH", "TD", "CODE", "DETAILS", "SUMMARY", "STRONG",
        "UL", "LI",
    }  # fmt: skip
    assert set(tags) <= ours
    assert not page.evaluate(
        "[...document.querySelectorAll('*')].some(one => [...one.attributes].some(a => /^on/.test(a.name)))"
    )


BRANCH = "<img/src=x/onerror=alert(1)>|`@everyone"  # as far as git lets it: no blanks


@pytest.mark.slow
def test_a_branch_of_that_name_from_the_command_line_to_the_browser(visit, tmp_path):
    load = Workload(kernel="k", suite="dense", presets={"default": {"n": [1, 2]}}, seed_columns=["n", "direction"])
    slow = Time(factor=1.3, cell="*n=2*", side="target")
    lab = Lab(tmp_path, Scenario(workloads={"dense": load}, times=[Time(ns=20e6), slow]))
    lab.repo.git("branch", BRANCH, "fast")
    done = lab.abprof("main", BRANCH, "--epochs", "4")
    assert done.code == 1, done
    assert done.folder is not None
    page = visit((done.folder / "report.html").read_text())
    assert page.locator(".sides .name").nth(1).inner_text() == BRANCH
    assert page.locator("img").count() == 0
    _rendered_is_harmless(visit, (done.folder / "report.md").read_text())
    assert all(re.fullmatch(r"[\w.-]+", path.name) for path in done.folder.iterdir())
