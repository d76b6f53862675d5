"""The page of a row's traces, opened from disk, against a local HTTP page that stands in for Perfetto's."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from abprof.report import write_all
from tests import runs, traced

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


@pytest.fixture
def serve() -> Iterator[Any]:
    """Serve one page at a port of this machine; return its origin."""
    servers = []

    def serve(body: bytes) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        Thread(target=partial(servers[-1].serve_forever, 0.05), daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def traces(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """Open the page that the first row of a written report links, with this Perfetto."""
    contexts = []

    def open_(perfetto: str, **is_: Any) -> Any:
        run = traced.traced(tmp_path)
        write_all(tmp_path, run, runs.blocks(run))
        contexts.append(browser.new_context(**is_))
        page = contexts[-1].new_page()
        page.goto((tmp_path / "report.html").as_uri() + "#c1")
        [link] = page.locator("details.cell a", has_text="Traces").all()
        page.goto((tmp_path / str(link.get_attribute("href"))).as_uri() + f"#perfetto={perfetto}")
        return page

    yield open_
    for context in contexts:
        context.close()


def until(page: Any, words: str) -> None:
    page.locator("#said", has_text=words).wait_for(timeout=20_000)


@pytest.mark.parametrize("side", ["base", "target"])
def test_one_click_sends_a_sides_trace_to_perfetto(traces, serve, side):
    page = traces(serve(PERFETTO))
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


def test_the_keyboard_alone_sends_both_one_after_the_other(traces, serve):
    page = traces(serve(PERFETTO))
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


def test_a_perfetto_that_does_not_answer_is_named_with_what_to_do(traces, serve):
    page = traces(serve(b"<title>another page</title>"))
    page.get_by_role("button", name="Open base in Perfetto").click()
    until(page, "Perfetto does not answer")
    by_hand = page.locator("section", has_text="By hand").inner_text()
    assert "chrome://tracing" in by_hand
    assert "traces/dense-full.target.json" in by_hand
    assert "python3 -m http.server 8000 --bind 127.0.0.1 --directory runs/20261120T021700Z-main-optimize_ffa" in by_hand


def test_a_closed_window_is_not_waited_for(traces, serve):
    page = traces(serve(b"<title>another page</title>"))
    with page.expect_popup() as opened:
        page.get_by_role("button", name="Open base in Perfetto").click()
    opened.value.close()
    until(page, "closed before it answered")


def test_a_trace_goes_to_perfetto_or_to_this_machine_alone(traces):
    page = traces("http://127.0.0.1.example.com")
    page.context.route("**/*", lambda route: route.abort())
    with page.context.expect_event("request") as asked:
        page.get_by_role("button", name="Open base in Perfetto").click()
    assert asked.value.url == "https://ui.perfetto.dev/"


def test_without_scripts_the_files_and_the_command_are_there(traces):
    page = traces("", java_script_enabled=False)
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
