"""How soon a page of many cells stands in a browser, and how long a sort takes: `python -m tests.benchmarks.large_page`."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from abprof.report.html import html
from tests import large

PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
# From the event to the frame after it.
TIMED = """(act) => new Promise((done) => { const began = performance.now(); act();
  requestAnimationFrame(() => setTimeout(() => done(performance.now() - began))); })"""
SORT = f"({TIMED})(() => document.querySelectorAll('table.cells th button')[4].click())"
ALL = (
    f"({TIMED})(() => [...document.querySelectorAll('.tools button')].find(b => b.textContent === 'Show all').click())"
)


def main(cells: int) -> None:
    run = large.run(cells)
    text = html(run, large.blocks(run))
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        page_file = Path(folder) / "report.html"
        page_file.write_text(text, encoding="utf-8")
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(page_file.as_uri())
        page.wait_for_timeout(500)
        print(f"{cells} cells, {len(text.encode()) / 1e6:.1f} MB")
        print(f"first contentful paint {page.evaluate(PAINTED):.0f} ms")
        print(f"sort, {page.locator('table.cells tbody tr:visible').count()} rows shown: {page.evaluate(SORT):.0f} ms")
        print(f"show all: {page.evaluate(ALL):.0f} ms")
        print(f"sort, {page.locator('table.cells tbody tr:visible').count()} rows shown: {page.evaluate(SORT):.0f} ms")
        browser.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
