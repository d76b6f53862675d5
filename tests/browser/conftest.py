"""A headless Chromium of the system's own, driven by Playwright. Where there is none the tests are skipped and say so;
with CI or BROWSER_TESTS set, as .ci/run does, they fail instead: there nothing is skipped."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
Open = Callable[..., Any]


def _missing(why: str) -> None:
    if os.environ.get("BROWSER_TESTS"):
        pytest.fail(f"{why}; CI runs the browser tests")
    pytest.skip(f"{why}; `apt-get install chromium` and `pip install abprof[dev]` make these tests run")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _missing("Playwright is not installed")
    found = os.environ.get("ABPROF_TEST_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        _missing("no Chromium on this machine")
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])  # a container's root has none
        yield started
        started.close()


@pytest.fixture
def visit(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Open a page from disk: its text, a fragment, and what the browser is. Any request, error or dialog fails the test."""
    contexts: list[Any] = []
    seen: list[str] = []

    def open_(text: str, fragment: str = "", **is_: Any) -> Any:
        file = tmp_path / f"report-{len(contexts)}.html"
        file.write_text(text, encoding="utf-8")
        contexts.append(browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **is_}))
        page = contexts[-1].new_page()
        page.on("console", lambda said: seen.append(f"console: {said.text}"))
        page.on("pageerror", lambda error: seen.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (seen.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on(
            "request", lambda given: given.url.split("#")[0] == file.as_uri() or seen.append(f"request: {given.url}")
        )
        page.goto(file.as_uri() + fragment)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert seen == []
