"""`abprof history`: nights read from run folders, queries, changes and the page."""

import csv
import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from abprof.cli import run_command_line
from abprof.extras.nightly import history_page, read_history
from tests import runs
from tests.nights import MACHINE, Nights, commit

CELL, OTHER = "w/n=1,mask=a", "w/n=2,mask=b"
HOSTILE = "w/x=</title><script>alert(1)</script>\"'><img src=x onerror=alert(1)>|`@you\u202e"


@pytest.fixture
def made(tmp_path: Path) -> Nights:
    nights = Nights(tmp_path / "runs")
    nights.add({CELL: (None, 100.0), OTHER: (None, 50.0)}, kind="first")
    nights.add({CELL: (101.0, 103.02), OTHER: (50.0, 50.0)}, verdicts={CELL: "slower"})
    nights.add({CELL: (103.0, 103.0), OTHER: (50.0, 49.0)})
    return nights


def values(nights: Nights, **query: Any) -> list[tuple[int, str, float | None, float | None, str]]:
    found = read_history(nights.runs_dir).values(**query)
    return [(n.number, v.cell, v.base, v.head, v.verdict) for n, v in found]


def edit(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a run.json."""
    run = json.loads((folder / "run.json").read_text())
    changed = change(run)
    (folder / "run.json").write_text(changed if isinstance(changed, str) else json.dumps(run))


def test_nights_in_order_with_base_and_head(made: Nights) -> None:
    assert values(made, cells=(CELL,)) == [
        (1, CELL, None, 100.0, ""),
        (2, CELL, 101.0, 103.02, "slower"),
        (3, CELL, 103.0, 103.0, "same"),
    ]
    assert {cell for _, cell, *_ in values(made, cells=("*mask=b",))} == {OTHER}
    assert [number for number, *_ in values(made, cells=(CELL,), since="2026-01-03")] == [2, 3]
    assert [base for _, _, base, *_ in values(made, cells=(CELL,), metric="wall")] == [None, 9101.0, 9103.0]
    assert values(made, series="release") == []
    history = read_history(made.runs_dir)
    assert [(n.base, n.head) for n in history.nights()] == [
        ("", commit(1)), (commit(1), commit(2)), (commit(2), commit(3)),
    ]  # fmt: skip
    assert (history.cells(), history.notes) == ([CELL, OTHER], ())


def test_a_night_of_an_older_version_has_fields_that_went(made: Nights) -> None:
    before = values(made)
    for file in made.runs_dir.glob("*/run.json"):
        edit(file.parent, lambda run: [row.update(graph_pct=1.0) for row in run["comparisons"]] and None)
    assert values(made) == before


def test_folders_that_come_change_and_go_are_followed(made: Nights) -> None:
    assert len(values(made)) == 6
    made.at = made.at.replace(year=2020)  # the clock goes back; numbers order the nights
    folder = made.add({CELL: (103.0, 99.0)})
    assert values(made, cells=(CELL,))[-1] == (4, CELL, 103.0, 99.0, "same")
    edit(folder, lambda run: run["comparisons"][0].update(verdict="faster"))
    assert values(made, cells=(CELL,))[-1][-1] == "faster"
    edit(folder, lambda run: run.update(status="running"))
    assert len(values(made)) == 6
    shutil.rmtree(folder)
    runs.write(made.runs_dir, runs.run())  # not a night
    assert len(values(made)) == 6


def test_identical_code_is_a_change_of_nothing(tmp_path: Path) -> None:
    nights = Nights(tmp_path / "runs")
    folder = nights.add({CELL: (1.0, 1.0)})
    edit(folder, lambda run: run["comparisons"][0].update(pct=None, low_pct=None, reasons=["identical_code"]))
    edit(folder, lambda run: [seen.update(status="identical", metrics={}) for seen in run["observations"]])
    ((_, value),) = read_history(nights.runs_dir).values()
    assert (value.pct, value.base, value.head, value.head_status) == (0.0, None, None, "identical")


@pytest.mark.parametrize(
    ("spoil", "note"),
    [
        (lambda run: '{"status": "complete"', "cannot be read"),
        (lambda run: json.dumps({**run, "sides": []}), "the run has no commit"),
        (lambda run: json.dumps(run)[:-1] + ', "more": ' + "[" * 3000 + "]" * 3000 + "}", "recursion"),
    ],
)
def test_a_folder_that_cannot_be_read_is_left_out(made: Nights, spoil: Callable[..., str], note: str) -> None:
    folder = made.add({CELL: (103.0, 99.0)})
    edit(folder, spoil)
    assert len(values(made)) == 6
    (said,) = read_history(made.runs_dir).notes
    assert folder.name in said
    assert note in said.lower()


def test_query(made: Nights, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--runs-dir", str(made.runs_dir)]
    assert run_command_line(["history", "query", "--cell", CELL, *place]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["night"], row["base"], row["head"], row["verdict"]) for row in rows] == [
        ("1", "", "100.0", ""), ("2", "101.0", "103.02", "slower"), ("3", "103.0", "103.0", "same"),
    ]  # fmt: skip
    assert run_command_line(["history", "query", "--json", "--since", "2026-01-04T02:00+02:00", *place]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["cell"] for line in lines] == [CELL, OTHER]
    assert list(lines[0]) == list(rows[0])


def test_a_text_that_a_spreadsheet_would_calculate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nights = Nights(tmp_path / "runs")
    nights.series_of("=cmd|' /C calc'!A0", [1.0])
    assert run_command_line(["history", "query", "--runs-dir", str(nights.runs_dir)]) == 0
    assert "'=cmd" in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["query", "changes"])
def test_an_unknown_name_is_refused(made: Nights, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--runs-dir", str(made.runs_dir)]
    assert run_command_line(["history", verb, "--series", "mian", *place]) == 2
    assert "--series: no series 'mian' (there are main)" in capsys.readouterr().err
    assert run_command_line(["history", verb, "--cell", "w/n=3*", *place]) == 2
    assert f"no cell matches 'w/n=3*' (there are {CELL}, {OTHER})" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["query", "--metric", "speed"], "unknown metric 'speed'"),
        (["query", "--since", "soon"], "invalid date 'soon'"),
        (["query", "--runs-dir", "/nowhere/at/all"], "no such folder"),
        (["changes", "--repo", "/nowhere/at/all"], "no such folder"),
    ],
)
def test_bad_options_are_refused(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["history", *words]) == 2
    assert says in capsys.readouterr().err


def test_without_nights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["history", "query", "--json", "--cell", CELL, "--runs-dir", str(tmp_path)]) == 0
    assert capsys.readouterr() == ("", "abprof: no nights yet\n")
    assert "No nights yet" in history_page(read_history(tmp_path), "")


def test_changes_are_searched_in_all_cells_and_nights_and_then_selected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The machine is 8 % slower from night 21 on, which two cells alone do not show; one cell's code is from night 31 on."""
    nights = Nights(tmp_path / "runs")
    cells = [f"w/n={number}" for number in range(6)]
    for night in range(1, 41):
        slow, code = (1.08 if night >= 21 else 1.0), (1.1 if night > 31 else 1.0)
        base = {cell: slow * 1e6 * (code if cell == cells[0] else 1) for cell in cells}
        head = base | {cells[0]: slow * 1e6 * (1.1 if night >= 31 else 1.0)}
        nights.add({cell: (None if night == 1 else base[cell], head[cell]) for cell in cells},
                   kind="first" if night == 1 else "step")  # fmt: skip
    place = ["--runs-dir", str(nights.runs_dir)]

    def changes(*words: str) -> tuple[list[tuple[str, int]], list[int]]:
        assert run_command_line(["history", "changes", "--json", *words, *place]) == 0
        said = json.loads(capsys.readouterr().out)
        return [(it["trend"], it["night"]) for it in said["changes"]], [it["night"] for it in said["shifts"]]

    assert changes() == changes("--cell", cells[0]) == ([(cells[0], 31)], [21])
    assert changes("--cell", cells[1], "--cell", cells[2]) == ([], [21])
    assert changes("--since", "2026-01-31") == ([(cells[0], 31)], [])
    assert changes("--since", "2026-02-08") == ([], [])
    assert run_command_line(["history", "changes", "--cell", cells[1], "--since", "2026-02-08", *place]) == 0
    assert capsys.readouterr() == ("", "no change\n")
    assert run_command_line(["history", "changes", *place]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "main night 21: machine shift, 8.0 % slower in all 6 cells",
        "main night 31: 10.0 % slower (code), confirmed on night 33 w/n=0",
    ]


def thirty_nights(folder: Path) -> Nights:
    """Two cells: a step on night 21, another driver on 11."""
    nights = Nights(folder / "runs")
    nights.add({"w/n=1": (None, 1e6), HOSTILE: (None, 2e6)}, kind="first")
    for number in range(2, 31):
        if number == 11:
            nights.machine = MACHINE | {"driver": "590.2"}
        wobble = 1 + 0.004 * (number % 3 - 1)
        before, after = (1e6 * (1.1 if number > 21 else 1)), 1e6 * (1.1 if number > 20 else 1)
        nights.add({"w/n=1": (before * wobble, after * wobble), HOSTILE: (2e6 * wobble, 2e6 * wobble)})
    return nights


def test_the_page_shows_changes_and_machines_and_fetches_nothing(tmp_path: Path) -> None:
    text = history_page(read_history(thirty_nights(tmp_path).runs_dir), "main")
    assert "main: 30 nights, 2 cells" in text
    assert re.search(r"<td>w/n=1</td><td class=\"number\">21 ", text)
    assert "driver 580.1 to 590.2" in text
    assert text.count("<svg") == 2
    (level, *_) = re.findall(r'<path class="level" d="([^"]*)"', text)
    assert level.count("M") == 2, "the line is cut at the other machine"
    assert "default-src 'none'; style-src 'unsafe-inline'" in text
    assert "<script" not in text
    assert "<img" not in text
    assert not re.search(r"(src|href)=|url\((?!#|\"?data:)|@import|https?://", re.sub(r"&lt;.*?&gt;", "", text))
