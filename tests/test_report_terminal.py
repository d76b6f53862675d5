"""The table on the terminal: important rows first, readable if narrow, no colour if unwanted."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reports import shown

from . import runs


def verdicts(text: str) -> list[str]:
    return re.findall(r"^ ?[✖▲?▼△=] (\w+)", text, re.M)


def test_rows_that_need_a_person_and_a_count_of_the_rest():
    text = shown(runs.run())
    assert verdicts(text) == ["slower", "unclear", "faster", "slight", *["broken"] * 7, "unclear"]
    assert text.count("2 unchanged not shown (abprof report RUN --all)") == 2
    assert "1 unsupported not shown (abprof report RUN --all)" in text
    assert text.count("ratios of neighbouring turns; base and target are each side's own times") == 1
    assert text.splitlines()[-4:] == [
        "1 slower, 1 faster, 7 broken of 16",
        "Trusted: 6 of 6 controls within 0.5 % (6 with a second build); each worker loaded its own side's files",
        "For trusted code, without a sandbox: a kernel that falsifies its own times or checks may pass; --untrusted guards against that",
        "Report: runs/x/report.html",
    ]
    assert "false alarms" not in text
    assert "q_block_size=64: crash: RuntimeError: invalid argument | grid (0, 1, 1) [logs/target-ffa.log]" in text
    row = next(line for line in text.splitlines() if "▲ slower" in line)
    assert [
        part for part in ("2.1 % slower", "1.8 to 2.4 % slower", "10.01 ms", "549.2 → 537.9") if part not in row
    ] == []
    everything = shown(runs.run(), everything=True)
    assert (verdicts(everything).count("same"), "hidden" in everything) == (4, False)


def test_controls_with_fewer_epochs_than_an_interval_takes_are_not_called_unmeasured():
    run = runs.run()
    short = runs.changed(
        run, header=runs.changed(run.header, counts={**run.header.counts, "controls": 0, "controls_inside": 0})
    )
    assert "No control has an interval; each worker" in shown(short)
    assert "No control was measured; each worker" in shown(runs.changed(short, controls=()))


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_a_narrow_terminal_keeps_verdict_case_and_change(width):
    text = shown(runs.run(), width)
    tables = text[text.index("dense seqlen") : text.index("\n1 slower, ")]
    assert max(len(line) for line in tables.splitlines() if "not shown" not in line) <= width
    words = " ".join(tables.split())
    assert verdicts(text)[:2] == ["slower", "unclear"]
    assert "2.1 %" in words


def test_markup_in_a_label_is_text():
    run = runs.run(target=runs.changed(runs.TARGET, label="[red]x[/red]"))
    assert "[red]x[/red], block_sparse" in shown(run)


def test_one_branch_alone():
    text = shown(runs.single())
    assert "3.586 ms   3.583 to 3.590 ms" in text
    assert "slower" not in text


PRINT = """
from pathlib import Path
from abprof.report import print_run
from tests import runs
print_run(runs.run(), Path("x"))
"""


@pytest.mark.parametrize(
    ("environment", "colour"), [({"FORCE_COLOR": "1"}, True), ({"NO_COLOR": "1"}, False), ({}, False)]
)
def test_colour_only_where_it_is_wanted(environment, colour):
    plain = {"PATH": "/usr/bin:/bin", "PYTHONIOENCODING": "utf-8", "TERM": "xterm-256color"}
    command = [sys.executable, "-c", PRINT]
    root = Path(__file__).resolve().parent.parent
    text = subprocess.check_output(command, cwd=root, env=plain | environment, text=True, encoding="utf-8")
    assert ("\x1b[" in text) is colour
    assert "▲ slower" in text


def test_a_terminal_without_those_letters_gets_question_marks():
    root = Path(__file__).resolve().parent.parent
    environment = {"PATH": "/usr/bin:/bin", "PYTHONIOENCODING": "ascii"}
    text = subprocess.check_output(
        [sys.executable, "-c", PRINT], cwd=root, env=environment, text=True, encoding="ascii"
    )
    assert "? slower" in text
