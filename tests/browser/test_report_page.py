"""report.html and certificate.html in a real browser: filters, sorting, the address, the keyboard, print; nothing foreign runs."""

import functools
from typing import Any

import pytest

from abprof.extras import selfcheck
from tests import declared, runs
from tests.reports import html
from tests.test_selfcheck import compared

WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 740}


@functools.cache
def page_of(make=runs.run) -> str:
    run = make()
    return html(run, runs.blocks(run))


def shown(page, workload: str = "dense") -> list[str]:
    """The verdicts of the rows that can be seen, in their order."""
    rows = page.locator(f'table.cells[data-workload="{workload}"] tbody tr:visible')
    return [row.split(" ")[0] for row in rows.evaluate_all("rows => rows.map(row => row.className)")]


def column(page, at: int, workload: str = "dense") -> list[str]:
    rows = page.locator(f'table.cells[data-workload="{workload}"] tbody tr:visible td:nth-child({at})')
    return [text.strip() for text in rows.all_inner_texts()]


def until(page, what: str) -> None:
    """Wait for a script's condition. Playwright's own wait evaluates text, which the page's policy refuses."""
    for _ in range(100):
        if page.evaluate(what):
            return
        page.wait_for_timeout(20)
    raise AssertionError(f"never: {what}")


def sort_by(page, label: str):
    return page.locator('table.cells[data-workload="dense"] thead th').filter(has_text=label).locator("button")


def test_what_did_not_change_is_hidden_and_counted(visit):
    page = visit(page_of())
    assert shown(page) == ["slower", "unclear", "faster", "slight"]
    assert page.locator("#said").inner_text() == "12 of 17 rows shown, 5 hidden"
    assert not page.get_by_role("heading", name="Every change").is_hidden()
    page.get_by_role("button", name="Show all").click()
    assert shown(page) == ["slower", "unclear", "faster", "slight", "same", "same"]
    assert page.locator("#said").inner_text() == "17 of 17 rows shown, 0 hidden"


def test_search_and_filters_narrow_down_and_the_address_keeps_them(visit):
    text = page_of()
    page = visit(text)
    page.get_by_role("searchbox").fill("causal")
    until(page, "location.hash.includes('causal')")
    assert shown(page) == ["slight"]
    page.get_by_label("same (4)").check()
    page.get_by_label("direction").select_option("bwd")
    assert shown(page) == ["same", "same"]
    sort_by(page, "base").click()
    page.locator("details.cell summary:visible").first.click()
    until(page, "location.hash.includes('open')")
    again = visit(text, page.evaluate("location.hash"))
    assert shown(again) == ["same", "same"]
    assert again.get_by_label("direction").input_value() == "bwd"
    assert again.locator("details.cell[open]").count() == 1
    assert again.locator("th[aria-sort]").inner_text().strip() == "base"


def test_sorting_goes_up_down_and_back_by_number_and_unit(visit):
    page = visit(page_of(), "#v=slower,unclear,faster,slight,same")
    first = column(page, 6)
    sort_by(page, "base").click()
    assert column(page, 6) == ["1.020 ms", "1.500 ms", "1.900 ms", "3.586 ms", "5.200 ms", "10.01 ms"]
    head = sort_by(page, "base").locator("..")
    assert head.get_attribute("aria-sort") == "ascending"
    assert page.locator("#heard").inner_text() == "dense sorted by base, ascending"
    sort_by(page, "base").click()
    assert column(page, 6)[0] == "10.01 ms"
    sort_by(page, "base").click()
    assert column(page, 6) == first
    assert head.get_attribute("aria-sort") is None
    sort_by(page, "change of time").click()
    changes = column(page, 4)
    assert changes[0] == "6.2 % faster"
    assert changes[-2:] == ["2.1 % slower", "identical code"], "what has no number stands last"


def test_a_cell_has_an_address_with_and_without_scripts(visit):
    text = page_of()
    for scripts in (True, False):
        page = visit(text, "#c1", java_script_enabled=scripts)
        cell = page.locator("#c1")
        assert cell.is_visible()
        assert "abprof rerun runs/" in cell.inner_text()
    page = visit(text)
    page.locator("table.cells a.v").first.click()
    assert page.locator("#c1").is_visible()


def test_without_scripts_every_row_and_number_is_there(visit):
    page = visit(page_of(), java_script_enabled=False)
    assert page.locator("table.cells tbody tr:visible").count() == 17
    assert not page.locator("#tools").is_visible()
    assert page.get_by_role("heading", level=1).inner_text() == "1 slower, 1 faster, 7 broken of 16"


def test_the_keyboard_alone_will_do(visit):
    page = visit(page_of())
    page.get_by_role("searchbox").focus()
    page.keyboard.type("full")
    page.keyboard.press("Enter")
    until(page, "location.hash.includes('full')")
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('th')?.textContent.startsWith('change')"):
            break
    page.keyboard.press("Enter")
    assert page.locator("th[aria-sort=ascending]").count() == 1
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.tagName") == "SUMMARY":
            break
    page.keyboard.press("Enter")
    assert page.locator("details[open]").count() == 1


def test_nothing_foreign_runs(visit):
    page = visit(page_of(runs.hostile))
    assert "<script>alert(1)</script>" in page.get_by_role("heading", level=1).inner_text()
    assert page.locator("script").count() == 1
    assert page.locator("img, iframe").count() == 0
    page.evaluate("location.hash = 'q=<img src=x onerror=alert(1)>&v=<b>&a.mask_type=\"><script>&s0=99u&open=c1,<img>'")
    until(page, "document.getElementById('said').textContent.startsWith('0 of')")


def test_print_opens_what_is_folded_and_leaves_the_controls_out(visit):
    page = visit(page_of())
    page.emulate_media(media="print")
    assert not page.locator("#tools").is_visible()
    assert page.locator("#c1 table").is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


@pytest.mark.parametrize("make", [runs.run, declared.run])
def test_a_phone_scrolls_tables_and_not_the_page(visit, make):
    page = visit(page_of(make), viewport=PHONE)
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") == 360


def text() -> str:
    return selfcheck.pages(compared())["certificate.html"]


def test_bars_are_as_long_as_their_shares_and_a_phone_scrolls_only_tables(visit: Any) -> None:
    page = visit(text(), java_script_enabled=False)
    assert page.locator("section").first.locator("td.bar.alarms").all_inner_texts() == ["0 of 4", "2 of 4"]
    assert "50%" in page.locator("td.bar.alarms").nth(1).get_attribute("style")
    phone = visit(text(), viewport=PHONE)
    assert phone.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
