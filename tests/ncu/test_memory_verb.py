"""`abprof memory`: tables, files, standard output, exit codes."""

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from abprof.cli import run_command_line
from abprof.records.errors import Exit

from .recorded import RAW, two_sides

ROOT = Path(__file__).parents[2]
A_CALL = ["dram_bytes_a_call", "l2_bytes_a_call", "l1_bytes_a_call"]


@pytest.fixture
def two(tmp_path: Path) -> list[str]:
    """`abprof memory` of two files."""
    files = [word for file in two_sides(tmp_path) for word in ("--from", str(file))]
    return ["memory", *files, "--warmup", "10", "--runs", "50"]


@pytest.fixture(autouse=True)
def _no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset the width of the terminal: output to a pipe has none."""
    monkeypatch.delenv("COLUMNS", raising=False)


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_the_pages_example_is_what_is_printed() -> None:
    """Run the command as on a wide terminal."""
    page = (ROOT / "docs" / "NCU.md").read_text()
    example = re.search(r"^\$ abprof (.*)\n((?:.*\n)*?)```", page, re.M)
    assert example
    argv, env = [sys.executable, "-m", "abprof", *example[1].split()], {**os.environ, "COLUMNS": "130"}
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.rstrip() for line in done.stdout.splitlines()] == [line.rstrip() for line in example[2].splitlines()]


def test_the_csv_has_every_kernel_of_every_file(tmp_path: Path, two: list[str]) -> None:
    assert run_command_line([*two, "--out", str(tmp_path / "t.csv")]) == Exit.OK
    lines = rows((tmp_path / "t.csv").read_text())
    by = {(Path(line["file"]).name, line["kernel"], line["kind"]): line for line in lines}
    a_call = [float(by["a.csv", "attn_fwd", "compute"][name]) for name in A_CALL]
    assert a_call == [201326592.0, 402653184.0, 603979776.0]
    assert by["b.csv", "attn_fwd", "compute"]["dram_change_pct"] == "2.0829"  # 205.52 Mbyte, as ncu rounds it
    assert by["b.csv", "attn_fwd", "compute"]["in_files"] == "both"
    gone = by["b.csv", "scale_kernel", "compute"]
    assert (gone["launches"], gone["in_files"]) == ("0", "base only")
    assert gone["dram_bytes_a_call"] == gone["dram_change_pct"] == ""
    assert by["a.csv", "", "all"]["launches_a_call"] == "2"
    outside = [line for line in lines if line["kind"] == "outside"]
    assert [(Path(line["file"]).name, line["launches"]) for line in outside] == [("a.csv", "3"), ("b.csv", "3")]


def test_files_are_written_by_their_suffix(tmp_path: Path, two: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    names = [tmp_path / "new" / f"t.{suffix}" for suffix in ("csv", "json")]
    assert run_command_line([*two, "--json", *(word for name in names for word in ("--out", str(name)))]) == Exit.OK
    printed = capsys.readouterr().out
    assert names[1].read_text() == printed
    content = json.loads(printed)
    assert len(content["rows"]) == len(rows(names[0].read_text()))
    assert content["rows"][0]["dram_bytes_a_call"] == 201326592.0
    assert content["rows"][0]["dram_change_pct"] is None


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--warmup", "2", "--runs", "4"], "raw_h200.csv: the number of launches is no multiple of 6 (2 warm-up + 4 runs): add_kernel"),
        (["--warmup", "2", "--runs", "3", "--kernel", "MiddleRows"], "no kernel matches 'MiddleRows' (recorded: add_kernel)"),
        (["--warmup", "-1", "--runs", "6"], "--warmup: "),
        (["--warmup", "2", "--runs", "3", "--out", "t.txt"], "--out: 't.txt' does not end in .csv or .json"),
        (["--warmup", "two", "--runs", "3"], "--warmup: "),
        (["--runs", "3"], "--warmup"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], words: list[str], line: str
) -> None:
    assert run_command_line(["memory", "--from", str(RAW), *words]) == Exit.CANNOT_RUN
    printed = capsys.readouterr()
    assert printed.out == ""
    assert line in printed.err
    assert printed.err.count("\n") == 1
