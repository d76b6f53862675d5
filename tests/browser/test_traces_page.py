"""The page of a row's traces, opened from disk, against a page that stands in for Perfetto's."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from abprof.report import write_all
from tests import runs, traced

ORIGIN = "http://127.0.0.1:8123"
# As ui/src/frontend/post_message_handler.ts of Perfetto: it answers its opener, but only once its page is complete.
PERFETTO = b"""<!DOCTYPE html><title>empty</title><script>
let pings = 0;
addEventListener("message", async ({ source, data }) => {
  if (source !== opener) return;
  if (data === "PING") { if (++pings > 2) source.postMessage("PONG", "*"); return; }
  const { buffer, title, fileName } = data.perfetto;
  const text = await new Response(new Blob([buffer]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  document.body.textContent = JSON.stringify({ whole: buffer instanceof ArrayBuffer, title, fileName, text });
  document.title = "loaded";
});
</script><body></body>"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a report with traces."""
    folder = tmp_path_factory.mktemp("traces")
    run = traced.traced(folder)
    write_all(folder, run, runs.blocks(run))
    return folder


@pytest.fixture
def traces(browser: Any, written: Path) -> Iterator[Any]:
    """Open the page that the first row of a written report links, where this is Perfetto's page."""
    contexts = []

    def open_(body: bytes = PERFETTO, perfetto: str = ORIGIN, **is_: Any) -> Any:
        contexts.append(browser.new_context(**is_))
        contexts[-1].route(f"{ORIGIN}/**", lambda route: route.fulfill(body=body, content_type="text/html"))
        page = contexts[-1].new_page()
        page.goto((written / "report.html").as_uri() + "#c1")
        [link] = page.locator("details.cell a", has_text="Traces").all()
        page.goto((written / str(link.get_attribute("href"))).as_uri() + f"#perfetto={perfetto}")
        return page

    yield open_
    for context in contexts:
        context.close()


def until(page: Any, words: str) -> None:
    page.locator("#said", has_text=words).wait_for(timeout=20_000)


@pytest.mark.parametrize("side", ["base", "target"])
def test_one_click_sends_a_sides_trace_to_perfetto(traces, side):
    page = traces()
    with page.expect_popup() as opened:
        page.get_by_role("button", name=f"Open {side} in Perfetto").click()
    until(page, f"Sent {side} to Perfetto")
    loaded = opened.value
    loaded.wait_for_function("document.title === 'loaded'")
    got = json.loads(loaded.inner_text("body"))
    assert got["whole"] is True
    assert got["title"] == f"20261120T021700Z-main-optimize_ffa {side}"
    assert got["fileName"] == f"dense-full.{side}.json.gz"
    assert json.loads(got["text"])["traceEvents"][0]["name"] == f"kernel of {side}"


def test_the_keyboard_alone_sends_both_one_after_the_other(traces):
    page = traces()
    for side in ("base", "target"):
        for _ in range(10):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.dataset.trace") == side:
                break
        with page.expect_popup() as opened:
            page.keyboard.press("Enter")
        opened.value.wait_for_function("document.title === 'loaded'")
        until(page, f"Sent {side}")
        page.bring_to_front()


def test_a_perfetto_that_does_not_answer_is_named_with_what_to_do(traces):
    page = traces(b"<title>another page</title>")
    page.get_by_role("button", name="Open base in Perfetto").click()
    until(page, "Perfetto does not answer")
    by_hand = page.locator("section", has_text="By hand").inner_text()
    assert "chrome://tracing" in by_hand
    assert "traces/dense-full.target.json" in by_hand
    assert "python3 -m http.server 8000 --bind 127.0.0.1 --directory runs/20261120T021700Z-main-optimize_ffa" in by_hand


def test_a_closed_window_is_not_waited_for(traces):
    page = traces(b"<title>another page</title>")
    with page.expect_popup() as opened:
        page.get_by_role("button", name="Open base in Perfetto").click()
    opened.value.close()
    until(page, "closed before it answered")


def test_a_trace_goes_to_perfetto_or_to_this_machine_alone(traces):
    page = traces(perfetto="http://127.0.0.1.example.com")
    page.context.route("**/*", lambda route: route.abort())
    with page.context.expect_event("request") as asked:
        page.get_by_role("button", name="Open base in Perfetto").click()
    assert asked.value.url == "https://ui.perfetto.dev/"


def test_without_scripts_the_files_and_the_command_are_there(traces):
    page = traces(java_script_enabled=False)
    assert page.get_by_role("button").count() == 0
    assert page.get_by_role("link", name="traces/dense-full.base.json").get_attribute("href") == "dense-full.base.json"


def test_the_page_holds_whole_traces_and_a_side_without_one_has_no_button(tmp_path):
    run = traced.traced(tmp_path, ("target",))
    [page] = [path for path in write_all(tmp_path, run, ()) if path.parent.name == "traces"]
    text = page.read_text()
    assert "Open target in Perfetto" in text
    assert "Open base in Perfetto" not in text
    (tmp_path / "traces" / "dense-full.target.json").unlink()
    page.unlink()
    assert page not in write_all(tmp_path, run, ()), "the file is gone"


def test_a_large_trace_is_loaded_by_hand(tmp_path):
    run = traced.traced(tmp_path)
    noise = f'{{"traceEvents": ["{os.urandom(5_000_000).hex()}"]}}'
    (tmp_path / run.traces[0].file).write_text(noise)
    run = runs.changed(run, traces=(runs.changed(run.traces[0], bytes=len(noise)), run.traces[1]))
    [page] = [path for path in write_all(tmp_path, run, ()) if path.parent.name == "traces"]
    text = page.read_text()
    assert len(text) < 100_000
    assert "Open base in Perfetto" not in text
    assert 'href="dense-full.base.json"' in text
