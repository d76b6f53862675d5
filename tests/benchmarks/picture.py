"""A picture of a run's page, for the README: `python -m tests.benchmarks.picture RUN OUT.png`, where RUN was reported."""

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

WIDTH = 1280
# The first workload's table, without the cells one by one, other workloads and what comes after.
CUT = """() => {
  const sections = [...document.querySelectorAll("main > section")];
  const first = sections.findIndex((one) => one.querySelector("table.cells"));
  sections.slice(first + 1).forEach((one) => one.remove());
  sections[0].querySelectorAll("dl div").forEach((one, at) => { if (at > 3) one.remove(); });
  const last = [...sections[first].children].findIndex((one) => one.querySelector("table.cells") || one.matches("table.cells"));
  [...sections[first].children].slice(last + 1).forEach((one) => one.remove());
  document.querySelectorAll("footer").forEach((one) => one.remove());
}"""


def main(run: Path, out: Path) -> None:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 600})
        page.goto((run / "report.html").resolve().as_uri())
        page.evaluate(CUT)
        taken = page.screenshot(full_page=True)
        browser.close()
    with Image.open(io.BytesIO(taken)) as image:
        image.convert("RGB").quantize(96).save(out, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
