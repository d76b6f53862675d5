"""The page against axe-core's rules for WCAG 2.0, 2.1 and 2.2, levels A and AA: in light and dark, on a screen, a phone and
paper, as it opens and with everything opened."""

import pytest

from abprof.extras.nightly import history_page, read_history
from abprof.report import write_all
from tests import runs, traced
from tests.browser.test_code_page import page_of as code_page
from tests.browser.test_report_page import PHONE, WIDE
from tests.browser.test_report_page import text as certificate
from tests.fuzz import rich
from tests.reports import html
from tests.test_history import thirty_nights

pytestmark = pytest.mark.slow  # axe-core takes some five seconds a page

TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
RULES = {
    "runOnly": {"type": "tag", "values": TAGS},
    "rules": {"target-size": {"enabled": True}},
}  # off unless given for


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
        (rich.plain, "light", WIDE), (rich.plain, "dark", PHONE), (runs.single, "light", WIDE),
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


def traces_page(folder):
    [path] = [one for one in write_all(folder, traced.traced(folder), ()) if one.parent.name == "traces"]
    return path.read_text()


def history(folder):
    return history_page(read_history(thirty_nights(folder).runs_dir), "main")


PAGES = [traces_page, code_page, history, lambda _: certificate()]


@pytest.mark.parametrize(("colours", "size"), [("light", WIDE), ("dark", PHONE)])
@pytest.mark.parametrize("make", PAGES, ids=["traces", "code", "history", "certificate"])
def test_no_other_page_breaks_a_rule(visit, tmp_path, make, colours, size):
    page = visit(make(tmp_path), color_scheme=colours, viewport=size)
    if make is code_page:
        page.locator("html[data-ready]").wait_for()
    assert broken_rules(page) == []
