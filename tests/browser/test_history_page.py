"""history.html in a real browser: it opens from disk, asks for nothing, fits, and holds to the rules for everybody."""

from typing import Any

import pytest

from abprof.extras.nightly import history_page, read_history
from tests.test_history import HOSTILE, thirty_nights


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    return history_page(read_history(thirty_nights(tmp_path_factory.mktemp("nights")).runs_dir), "main")


def test_it_opens_without_scripts_and_draws_every_line(visit: Any, text: str) -> None:
    opened_page = visit(text, java_script_enabled=False)
    assert opened_page.title() == "abprof history: main"
    assert opened_page.locator("svg.trend").count() == 2
    boxes = [path.bounding_box() for path in opened_page.locator("svg.trend path.level").all()]
    assert all(box and box["width"] > 300 for box in boxes)


def test_foreign_text_is_text_and_a_phone_scrolls_only_tables(visit: Any, text: str) -> None:
    phone = visit(text, viewport={"width": 360, "height": 740})
    assert HOSTILE.split("|")[0] in phone.locator("table.trends").inner_text()
    assert phone.evaluate("document.documentElement.scrollWidth") <= 360
