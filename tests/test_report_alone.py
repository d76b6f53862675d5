"""A run of one branch: times with intervals, TFLOP/s, and where the time goes, on every page."""

from __future__ import annotations

import io
import re

from rich.console import Console

from abprof.records import Run
from abprof.report import terminal
from abprof.report.html import html
from abprof.report.lines import alone_table, phase_table
from abprof.report.markdown import markdown
from abprof.report.view import groups

from . import runs


def shown(run: Run, width: int = 150) -> str:
    out = io.StringIO()
    terminal.show(run, Console(file=out, width=width), runs.Path("runs/x"))
    return out.getvalue()


def test_times_have_intervals_and_rates():
    dense, _, ladder = groups(runs.single())
    table = alone_table(dense)
    assert table.header == ("mask_type", "direction", "time", "95 % interval", "TFLOP/s", "peak memory")
    assert table.rows[0] == ("full", "fwd", "3.586 ms", "3.583 to 3.590 ms", "613.2", "768.0 MiB")
    assert alone_table(ladder).header == ("variant", "time", "95 % interval", "peak memory")  # no work is declared


def test_bytes_alone_give_a_bandwidth():
    plain = runs.single()
    cells = tuple(runs.changed(cell, bytes=1e9) if cell.workload == "ladder" else cell for cell in plain.cells)
    *_, ladder = groups(runs.changed(plain, cells=cells))
    table = alone_table(ladder)
    assert table.header == ("variant", "time", "95 % interval", "GB/s", "peak memory")
    assert table.rows[0][3] == f"{1e9 / 41200:.0f}"


def test_phases_and_residual_add_up_to_the_passs_total():
    dense, *_ = groups(runs.single())
    table = phase_table(dense)
    assert table.header == ("mask_type", "direction", "prepare", "run", "cast", "residual", "total")
    assert len(table.rows) == 6
    for row in table.rows:
        *parts, total = map(float, row[table.left :])
        assert abs(sum(parts) - total) < 5e-4
    assert "range_merge" in table.never


def test_the_terminal_shows_all_of_it():
    text = shown(runs.single())
    full = [line for line in text.splitlines() if re.match(r" full +fwd", line)]
    assert [line.split() for line in full] == [
        ["full", "fwd", "3.586", "ms", "3.583", "to", "3.590", "ms", "613.2", "768.0", "MiB"],
        ["full", "fwd", "0.0153", "3.4247", "0.0032", "0.2146", "3.6578"],
    ]
    assert "never recorded: range_merge, sparse_load_preprocess, postprocess, preprocess" in text
    assert "controls" not in text


def test_a_narrow_terminal_cuts_no_figure():
    text = shown(runs.single(), 60)
    assert "…" not in text
    assert "full fwd: prepare 0.0153; run 3.4247; cast 0.0032; residual 0.2146; total 3.6578" in " ".join(text.split())
    assert "time 3.586 ms; 95 % interval 3.583 to 3.590 ms; TFLOP/s 613.2" in " ".join(text.split())


def test_the_pages_have_phases_in_the_open():
    run = runs.single()
    page = html(run, runs.blocks(run))
    before = page[: page.index("Phases in ms a call")]
    assert before.count("<details") == before.count("</details>")
    assert "0.2146" in page
    text = markdown(run, runs.blocks(run))
    before = text[: text.index("Phases in ms a call")]
    assert before.count("<details>") == before.count("</details>")
    assert "| full | fwd | 0.0153 | 3.4247 | 0.0032 | 0.2146 | 3.6578 |" in text


def test_nothing_is_said_of_verdicts():
    run = runs.single()
    for page in (html(run, ()), markdown(run, ()), shown(run)):
        assert "beyond the threshold, on the slow side" not in page
        assert "slower and faster beyond" not in page
        assert "% slower" not in page
    assert "<dt>trusted</dt>" not in html(run, ())
    assert "slower and faster beyond" in html(runs.run(), ())
    assert "<dt>trusted</dt><dd>yes</dd>" in html(runs.run(), ())


def test_a_run_without_controls_is_not_called_trusted():
    run = runs.run()
    counts = {**run.header.counts, "controls": 0}
    page = html(runs.changed(run, controls=(), header=runs.changed(run.header, counts=counts)), ())
    assert "<dd>nothing speaks against it, but no control was measured that could</dd>" in page
