"""The page against axe-core's rules for WCAG 2.0, 2.1 and 2.2, levels A and AA: in light and dark, on a screen, a phone and
paper, as it opens and with everything opened."""

from __future__ import annotations

import pytest

from abprof.report import write_all
from tests import declared, runs, traced
from tests.reports import html

pytestmark = pytest.mark.slow  # axe-core takes some five seconds a page

TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
RULES = {
    "runOnly": {"type": "tag", "values": TAGS},
    "rules": {"target-size": {"enabled": True}},
}  # off unless given for
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 740}


def broken_rules(page) -> list[str]:
    """A line for each rule that axe-core finds broken, or cannot tell about, with the first elements that break it. It
    cannot tell what lies behind a picture's text: contrast there is not checked."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page, options=RULES).response
    assert "color-contrast" in {rule["id"] for rule in found["passes"]}
    rules = [(rule, [node["html"] for node in rule["nodes"]]) for rule in found["violations"] + found["incomplete"]]
    listed = [
        (rule, [one for one in nodes if (rule["id"], one[:5]) != ("color-contrast", "<text")]) for rule, nodes in rules
    ]
    return [f"{rule['id']}: {rule['help']}: {nodes[:3]} of {len(nodes)}" for rule, nodes in listed if nodes]


@pytest.mark.parametrize(
    ("make", "colours", "size"),
    [
        (runs.run, "light", WIDE), (runs.run, "dark", PHONE), (declared.run, "light", PHONE),
        (declared.run, "dark", WIDE), (runs.single, "light", WIDE), (traced.run, "light", WIDE), (traced.run, "dark", PHONE),
    ],
)  # fmt: skip
def test_with_everything_opened_no_rule_of_wcag_is_broken(visit, make, colours, size):
    run = make()
    page = visit(html(run, runs.blocks(run)), color_scheme=colours, viewport=size)
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    show = page.get_by_role("button", name="Show all")
    if show.count():
        show.click()
    assert broken_rules(page) == []


def test_as_it_opens_and_on_paper_no_rule_is_broken(visit):
    run = runs.run()
    page = visit(html(run, runs.blocks(run)))
    assert broken_rules(page) == []
    page.emulate_media(media="print")
    assert broken_rules(page) == []


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_the_page_of_traces_breaks_no_rule(browser, tmp_path, colours):
    [path] = [one for one in write_all(tmp_path, traced.traced(tmp_path), ()) if one.parent.name == "traces"]
    page = browser.new_page(color_scheme=colours)
    page.goto(path.as_uri())
    assert page.get_by_role("button").count() == 2
    assert broken_rules(page) == []
    page.close()
