"""certificate.html in a real browser: it opens from disk without scripts, asks for nothing, fits, and anybody can read it."""

from __future__ import annotations

from typing import Any

import pytest

from abprof.extras import selfcheck
from tests.browser.test_accessibility import PHONE, WIDE, broken_rules
from tests.test_selfcheck import compared


def text() -> str:
    return selfcheck.pages(compared())["certificate.html"]


def test_bars_are_as_long_as_their_shares_and_a_phone_scrolls_only_tables(visit: Any) -> None:
    page = visit(text(), java_script_enabled=False)
    assert page.locator("section").first.locator("td.bar.alarms").all_inner_texts() == ["0 of 4", "2 of 4"]
    assert "50%" in page.locator("td.bar.alarms").nth(1).get_attribute("style")
    phone = visit(text(), viewport=PHONE)
    assert phone.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "size"), [("light", WIDE), ("dark", PHONE)])
def test_accessible(visit: Any, scheme: str, size: dict[str, int]) -> None:
    assert broken_rules(visit(text(), color_scheme=scheme, viewport=size)) == []
