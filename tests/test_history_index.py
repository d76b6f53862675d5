"""The index over run folders: made from them, followed as they come and go, and made again when it is lost or spoilt."""

from __future__ import annotations

import csv
import io
import json
import multiprocessing
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from abprof.cli import run_command_line
from abprof.extras.history import table
from abprof.extras.history.index import FILE, Question, opened
from abprof.extras.history.night import read
from abprof.extras.history.places import since
from abprof.records.errors import AbprofError
from tests import runs
from tests.nights import Nights, commit

CELL, OTHER = "w/n=1,mask=a", "w/n=2,mask=b"


@pytest.fixture
def made(tmp_path: Path) -> Nights:
    nights = Nights(tmp_path / "runs")
    nights.add({CELL: (None, 100.0), OTHER: (None, 50.0)}, kind="first")
    nights.add({CELL: (101.0, 103.02), OTHER: (50.0, 50.0)}, verdicts={CELL: "slower"})
    nights.add({CELL: (103.0, 103.0), OTHER: (50.0, 49.0)})
    return nights


def values(nights: Nights, **asked: object) -> list[tuple[int, str, float | None, float | None, str]]:
    with opened(nights.runs_dir) as index:
        return [
            (night.number, value.cell, value.base, value.head, value.verdict)
            for night, value in index.values(Question(**asked))  # type: ignore[arg-type]
        ]


def test_nights_in_order_with_base_and_head(made: Nights) -> None:
    assert values(made, cells=(CELL,)) == [
        (1, CELL, None, 100.0, ""),
        (2, CELL, 101.0, 103.02, "slower"),
        (3, CELL, 103.0, 103.0, "same"),
    ]
    with opened(made.runs_dir) as index:
        assert [(night.base[:6], night.head) for night in index.nights()] == [
            ("", commit(1)), (commit(1)[:6], commit(2)), (commit(2)[:6], commit(3)),
        ]  # fmt: skip
        assert index.cells() == [CELL, OTHER]
        assert index.notes == ()


def test_a_night_whose_files_changed_has_no_values_and_is_no_answer(made: Nights) -> None:
    folder = made.add({CELL: (103.0, 400.0)})
    run = json.loads((folder / "run.json").read_text())
    run["header"] |= {"counts": {"tampered": 1}, "exit_code": 4}
    (folder / "run.json").write_text(json.dumps(run))
    with opened(made.runs_dir) as index:
        assert [(night.settled, night.heads) for night in index.nights()][-2:] == [(1, 2), (0, 0)]
    assert 4 not in {number for number, *_ in values(made)}


def test_questions_choose(made: Nights) -> None:
    assert {cell for _, cell, *_ in values(made, cells=("*mask=b",))} == {OTHER}
    assert [number for number, *_ in values(made, cells=(CELL,), since="2026-01-03")] == [2, 3]
    assert [base for _, _, base, *_ in values(made, cells=(CELL,), metric="wall")] == [None, 9101.0, 9103.0]
    assert values(made, series="release") == []
    assert values(made, kinds=("against",)) == []


def test_a_cell_whose_id_is_a_pattern_is_found_by_its_id(tmp_path: Path) -> None:
    nights = Nights(tmp_path / "runs")
    nights.series_of("w/shape=[1, 2]", [1.0, 2.0])
    assert len(values(nights, cells=("w/shape=[1, 2]",))) == 2


def test_folders_that_come_change_and_go_are_followed(made: Nights) -> None:
    assert len(values(made)) == 6
    folder = made.add({CELL: (103.0, 99.0)})
    assert values(made, cells=(CELL,))[-1] == (4, CELL, 103.0, 99.0, "same")
    run = json.loads((folder / "run.json").read_text())
    run["comparisons"][0]["verdict"] = "faster"
    (folder / "run.json").write_text(json.dumps(run))
    assert values(made, cells=(CELL,))[-1][-1] == "faster"
    shutil.rmtree(folder)
    assert len(values(made)) == 6


def test_nights_stand_by_their_number_though_the_clock_jumped_back(made: Nights) -> None:
    made.at = made.at.replace(year=2020)
    made.add({CELL: (103.0, 90.0)})
    assert [number for number, *_ in values(made, cells=(CELL,))] == [1, 2, 3, 4]


def spoil_nothing(file: Path) -> None:
    file.unlink()


def spoil_all(file: Path) -> None:
    file.write_bytes(b"no database" * 400)


def spoil_pages(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[1024:] = b"\xa5" * (len(data) - 1024)
    file.write_bytes(data)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:5000])


def of_another_abprof(file: Path) -> None:
    with sqlite3.connect(file) as database:
        database.execute("PRAGMA user_version = 99")
        database.execute("DROP TABLE value")


@pytest.mark.parametrize("spoil", [spoil_nothing, spoil_all, spoil_pages, cut, of_another_abprof])
def test_an_index_that_is_lost_or_spoilt_is_made_again(made: Nights, spoil: object) -> None:
    whole = values(made)
    spoil(made.runs_dir / FILE)  # type: ignore[operator]
    assert values(made) == whole
    with opened(made.runs_dir) as index:
        assert index.notes == ()


def test_that_it_was_made_again_is_said(made: Nights) -> None:
    values(made)
    spoil_all(made.runs_dir / FILE)
    with opened(made.runs_dir) as index:
        assert "made again from the run folders" in index.notes[0]


def test_an_index_that_cannot_be_written_is_made_in_memory(made: Nights) -> None:
    (made.runs_dir / FILE).mkdir()  # nobody can open a folder as a database, not even root
    with opened(made.runs_dir) as index:
        assert len(index.nights()) == 3
        assert "in memory" in index.notes[0]


def test_a_folder_that_cannot_be_read_is_left_out_and_said(made: Nights) -> None:
    broken = made.runs_dir / "20260101T000000Z-broken"
    broken.mkdir()
    (broken / "run.json").write_text('{"status": "complete"')
    (made.runs_dir / "20260101T000001Z-empty").mkdir()
    assert len(values(made)) == 6
    with opened(made.runs_dir) as index:
        assert len(index.notes) == 1
        assert index.notes[0].startswith("20260101T000000Z-broken: not a run of this abprof")


def test_runs_that_are_no_nights_or_did_not_end_have_no_row(made: Nights, tmp_path: Path) -> None:
    runs.write(made.runs_dir, runs.run())
    folder = made.add({CELL: (1.0, 2.0)})
    run = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**run, "status": "running"}))
    assert len(values(made)) == 6


def test_identical_code_is_a_change_of_nothing(tmp_path: Path) -> None:
    nights = Nights(tmp_path / "runs")
    folder = nights.add({CELL: (1.0, 1.0)})
    run = json.loads((folder / "run.json").read_text())
    run["comparisons"][0] |= {"pct": None, "low_pct": None, "high_pct": None, "reasons": ["identical_code"]}
    for seen in run["observations"]:
        seen |= {"status": "identical", "metrics": {}}
    (folder / "run.json").write_text(json.dumps(run))
    told = read(folder / "run.json")
    assert told
    (value,) = told.values
    assert (value.pct, value.base, value.head, value.head_status) == (0.0, None, None, "identical")


def test_one_that_is_spoilt_within_is_told_when_it_is_read(made: Nights) -> None:
    values(made)
    with sqlite3.connect(made.runs_dir / FILE) as database:
        (page,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'value'").fetchone()
        (size,) = database.execute("PRAGMA page_size").fetchone()
    data = bytearray((made.runs_dir / FILE).read_bytes())
    data[(page - 1) * size : page * size] = b"\xa5" * size
    (made.runs_dir / FILE).write_bytes(data)
    with pytest.raises(AbprofError, match="abprof history rebuild"):
        values(made)


def _ask(runs_dir: str) -> int:
    with opened(Path(runs_dir)) as index:
        return len(list(index.values(Question())))


def test_several_processes_make_it_at_once(made: Nights) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        assert pool.map(_ask, [str(made.runs_dir)] * 6) == [6] * 6


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(AbprofError, match="no such folder"), opened(tmp_path / "nowhere"):
        pass


def test_since() -> None:
    assert since("") == ""
    assert since("2026-11-20") == "2026-11-20T00:00:00+00:00"
    assert since("2026-11-20T02:00+02:00") == "2026-11-20T00:00:00+00:00"
    assert len(since("30d")) == len("2026-11-20T00:00:00+00:00")
    with pytest.raises(AbprofError, match="--since"):
        since("yesterday")


# ---------------------------------------------------------------- the verb


def test_query_and_export_have_the_same_rows(made: Nights, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--runs-dir", str(made.runs_dir)]
    assert run_command_line(["history", "query", "--cell", CELL, *place]) == 0
    out = capsys.readouterr().out
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [(row["night"], row["base"], row["head"], row["verdict"]) for row in rows] == [
        ("1", "", "100.0", ""), ("2", "101.0", "103.02", "slower"), ("3", "103.0", "103.0", "same"),
    ]  # fmt: skip
    assert run_command_line(["history", "query", "--json", "--since", "2026-01-04", *place]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["cell"] for line in lines] == [CELL, OTHER]
    assert set(lines[0]) == set(table.COLUMNS)


def test_rebuild_says_what_it_found(made: Nights, capsys: pytest.CaptureFixture[str]) -> None:
    spoil = made.runs_dir / FILE
    spoil.write_bytes(b"x")
    assert run_command_line(["history", "rebuild", "--runs-dir", str(made.runs_dir)]) == 0
    assert capsys.readouterr().out == "3 nights, 2 cells\n"


@pytest.mark.parametrize("verb", ["query", "changes", "page"])
def test_a_name_that_nothing_bears_is_refused(
    made: Nights, verb: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = ["--runs-dir", str(made.runs_dir)]
    assert run_command_line(["history", "page", *place]) == 0
    good = (made.runs_dir / "history.html").read_text()
    assert run_command_line(["history", *verb.split(), "--series", "mian", *place]) == 2
    assert "--series: no series 'mian' (there are main)" in capsys.readouterr().err
    assert (made.runs_dir / "history.html").read_text() == good
    if verb != "page":
        assert run_command_line(["history", *verb.split(), "--cell", "w/n=3*", *place]) == 2
        assert f"no cell is or fits 'w/n=3*' (there are {CELL}, {OTHER})" in capsys.readouterr().err


def test_where_there_is_no_night_nothing_is_misspelt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["history", "query", "--json", "--cell", CELL, "--runs-dir", str(tmp_path)]) == 0
    assert capsys.readouterr() == ("", "abprof: there is no night here yet\n")


def test_changes_are_searched_in_all_cells_and_nights_and_then_chosen(
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
    place = ["--json", "--runs-dir", str(nights.runs_dir)]

    def asked(*words: str) -> tuple[list[tuple[str, int]], list[int]]:
        assert run_command_line(["history", "changes", *words, *place]) == 0
        said = json.loads(capsys.readouterr().out)
        return [(it["trend"], it["night"]) for it in said["changes"]], [it["night"] for it in said["shifts"]]

    assert asked() == ([(cells[0], 31)], [21])
    assert asked("--cell", cells[1], "--cell", cells[2]) == ([], [21])
    assert asked("--cell", cells[0]) == ([(cells[0], 31)], [21])
    assert asked("--since", "2026-01-31") == ([(cells[0], 31)], [])
    assert asked("--since", "2026-02-08") == ([], [])
    assert run_command_line(["history", "changes", "--cell", cells[1], "--since", "2026-02-08", *place[1:]]) == 0
    assert capsys.readouterr() == ("", "no change that was asked for\n")


@pytest.mark.parametrize(("status", "settled"), [("build_failed", 1), ("crash", 0), ("timeout", 0), ("wrong", 1)])
def test_a_night_on_which_nothing_could_run_is_known(made: Nights, status: str, settled: int) -> None:
    folder = made.add({CELL: (None, 99.0)}, kind="first")
    run = json.loads((folder / "run.json").read_text())
    for seen in run["observations"]:
        seen |= {"status": status, "metrics": {}}
    run["header"]["exit_code"] = 2
    (folder / "run.json").write_text(json.dumps(run))
    with opened(made.runs_dir) as index:
        night = index.nights()[-1]
    assert (night.heads, night.settled) == (0, settled)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["query", "--metric", "speed"], "no metric 'speed'"),
        (["query", "--since", "soon"], "'soon' is no date"),
        (["query", "--runs-dir", "/nowhere/at/all"], "no such folder"),
    ],
)
def test_what_cannot_be_asked(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["history", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_text_that_a_spreadsheet_would_calculate(tmp_path: Path) -> None:
    nights = Nights(tmp_path / "runs")
    nights.series_of("=cmd|' /C calc'!A0", [1.0])
    out = io.StringIO()
    with opened(nights.runs_dir) as index:
        table.write_csv(index.values(Question()), out)
    assert "'=cmd" in out.getvalue()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda run: json.dumps({**run, "sides": []}), "without a side"),
        (lambda run: json.dumps(run)[:-1] + ', "more": ' + "[" * 3000 + "]" * 3000 + "}", "recursion"),
        (lambda run: json.dumps({**run, "night": {**run["night"], "number": 10**19}}), "too large"),
    ],
)
def test_one_run_that_cannot_be_believed_costs_no_other_night(
    made: Nights, spoil: Callable[[dict[str, object]], str], said: str
) -> None:
    folder = made.add({CELL: (103.0, 99.0)})
    (folder / "run.json").write_text(spoil(json.loads((folder / "run.json").read_text())))
    for _ in range(2):
        with opened(made.runs_dir) as index:
            assert [night.number for night in index.nights()] == [1, 2, 3]
            (note,) = index.notes
            assert said in note
