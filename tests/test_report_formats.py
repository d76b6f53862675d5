"""`abprof report RUN --format ...`: output without files, errors, and two runs in one table."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from abprof.cli import run_command_line
from abprof.report import FORMATS, legacy, rendered
from abprof.report.terminal import compare
from abprof.system import checksummed

from . import declared, runs
from .programs import program


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return runs.write(tmp_path / "runs", runs.run())


@pytest.fixture
def abprof(capfdbinary) -> Callable[..., tuple[int, bytes, str]]:
    """The command line in this process: exit code, standard output, standard error."""

    def call(*args: object) -> tuple[int, bytes, str]:
        code = run_command_line([str(word) for word in args])
        out, err = capfdbinary.readouterr()
        return code, out, err.decode()

    return call


@pytest.mark.parametrize(
    ("format", "begins"),
    [
        ("html", b"<!DOCTYPE html>"),
        ("md", b"# abprof: "),
        ("csv", b"cell,workload,"),
        ("json", b"{\n"),
        ("png", b"\x89PNG\r\n"),
        ("junit", b"<?xml version='1.0' encoding='utf-8'?>\n<testsuites "),
    ],
)
def test_a_format_is_printed_and_nothing_is_written(abprof, folder, format, begins):
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    code, out, err = abprof("report", folder, "--format", format)
    assert (code, err) == (0, "")
    assert out.startswith(begins)
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_json_is_the_runs_own(abprof, folder):
    _, out, _ = abprof("report", folder, "--format", "json")
    printed = json.loads(out)
    assert printed["id"] == runs.run().id
    code, _, _ = abprof("report", folder)
    assert code == 0
    assert json.loads((folder / "run.json").read_text()) == printed


def test_formats_say_the_same(abprof, folder):
    """One object: the sentence of each is the run's."""
    sentence = json.loads(abprof("report", folder, "--format", "json")[1])["header"]["sentence"]
    assert f"<h1>{sentence}</h1>" in abprof("report", folder, "--format", "html")[1].decode()
    assert abprof("report", folder, "--format", "md")[1].decode().startswith(f"# abprof: {sentence}\n")
    assert ElementTree.fromstring(abprof("report", folder, "--format", "junit")[1]).get("name") == sentence


def test_junit_has_a_test_a_row():
    run = runs.run()
    root = ElementTree.fromstring(rendered(run, [], "junit"))
    dense, sparse, ladder = root
    assert (dense.get("tests"), dense.get("failures"), dense.get("errors"), dense.get("skipped")) == (
        "6", "1", "0", "1",
    )  # fmt: skip
    assert (sparse.get("errors"), sparse.get("skipped")) == ("7", "2")
    assert (ladder.get("failures"), ladder.get("errors")) == ("0", "0")
    failed = dense.find("testcase[failure]")
    assert failed.get("name") == "mask_type=full direction=bwd"
    assert failed.get("time") == "0.010220414"
    assert failed[0].get("message") == "slower; time 2.1 % slower (95 % interval: 1.8 to 2.4 % slower)"


def test_a_picture_without_numbers_says_so_and_still_is_one():
    from PIL import Image

    run = runs.single()
    for made in (run, runs.changed(runs.run(), header=None)):
        with Image.open(io.BytesIO(rendered(made, [], "png"))) as image:
            assert image.size == (1600, 700)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--format", "pdf"), "'pdf' is not one of html, md, csv, json, png, junit, bmf, action, legacy, artifact"),
        (("--format", "md", "--json"), "--format md with --json"),
        (("--format", "md", "--open"), "--format md with --open"),
        (("--format", "legacy"), "no workload of this run has files for --format legacy"),
    ],
)
def test_what_does_not_go_together_is_refused(abprof, folder, args, says):
    code, out, err = abprof("report", folder, *args)
    assert code == 2
    assert says in err
    assert err.count("\n") == 1
    assert out == b"" or "error" in json.loads(out)


def test_open_starts_the_browser_on_the_page(abprof, folder, tmp_path, monkeypatch):
    seen = tmp_path / "seen"
    script = program(tmp_path / "browser", f'printf %s "$1" > {seen}')
    monkeypatch.setenv("BROWSER", f"{script} %s")
    monkeypatch.setattr("webbrowser._tryorder", None)
    code, _, err = abprof("report", folder, "--open")
    assert (code, err) == (0, "")
    assert seen.read_text() == (folder / "report.html").as_uri()


def test_legacy_files_are_written_and_named(abprof, tmp_path):
    folder = runs.write(tmp_path / "runs", declared.scripts())
    code, out, _ = abprof("report", folder, "--format", "legacy")
    assert code == 0
    written = [Path(line) for line in out.decode().splitlines()]
    assert {path.parent for path in written} == {folder / "legacy"}
    assert all(json.loads(path.read_text()) is not None for path in written)


def test_a_legacy_row_without_a_time_has_its_error():
    """tests/data/golden/legacy has all other keys and numbers."""
    run = declared.scripts()
    masked = json.loads(legacy.files(run, runs.blocks(run))["bubble_reduction_direction-bwd_feature-optimize-ffa.json"])
    assert masked["none"] == {"0.3": {"error": "RuntimeError: no"}}


def test_the_ladders_legacy_baseline_is_torchs_attention_where_it_was_measured():
    """Step 0 there; of a length where it did not run the first rung counts, as in a run without peers."""
    run = declared.scripts()
    cells = [cell for cell in run.cells if cell.workload == "fmha_scaling"]
    peers = [runs.observed(cells[0], "peer:sdpa", 0.04), runs.observed(cells[1], "peer:sdpa", 2.0)]
    peers += [runs.observed(cells[2], "peer:sdpa", None, "oom")]
    beside = runs.changed(run, observations=(*run.observations, *peers))
    made = json.loads(legacy.files(beside, [])["fmha_scaling_results_main.json"])["results"]
    steps = [{step["name"]: step["speedup_vs_baseline"] for step in one["steps"]} for one in made]
    assert steps[0] == pytest.approx({"sdpa": 1.0, "basic": 0.4, "exp2": 0.5, "approx": 0.8})
    assert (made[0]["best_step"], made[0]["best_speedup"]) == (0, 1.0), "the best may be the baseline"
    assert steps[1]["approx"] == pytest.approx(4.0)
    assert (made[1]["best_step"], made[1]["steps"][0]["step"]) == (3, 0)
    assert list(steps[2]) == ["basic", "exp2", "approx"]
    assert steps[2]["basic"] == 1.0


def test_two_runs_show_the_verdicts_that_differ(abprof, tmp_path):
    first = runs.run()
    moved = tuple(
        runs.changed(c, verdict="faster", pct=-3.0, low_pct=-3.4, high_pct=-2.6) if c.verdict == "slower" else c
        for c in first.comparisons
    )
    second = runs.changed(first, comparisons=moved[1:], machine=runs.changed(first.machine, host="node8"))
    table, notes, sentence = compare(first, second)
    assert sentence == "1 of 16 rows have another verdict: 1 slower → faster. 1 row only in one of the runs."
    assert notes == ["host: node7 → node8"]
    changed, alone = table.rows
    assert changed[1:] == (
        "slower", "2.1 % slower", "1.8 to 2.4 % slower", "faster", "3.0 % faster", "2.6 to 3.4 % faster",
    )  # fmt: skip
    assert alone[4:] == ("not in this run", "", "")
    assert compare(first, first)[2] == "0 of 17 rows have another verdict."


def test_two_runs_on_the_command_line(abprof, tmp_path):
    paths = [runs.write(tmp_path / "runs", run) for run in (runs.run(), runs.unchanged())]
    code, out, err = abprof("report", *paths)
    assert (code, err) == (0, "")
    assert "only in one of the runs." in out.decode()
    assert json.loads(abprof("report", *paths, "--json")[1])["rows"][0]["second"] == "not in this run"
    code, _, err = abprof("report", *paths, "--format", "html")
    assert code == 2
    assert "--format html shows one run, but two are given (leave it out for a table, or give --json)" in err
    assert abprof("report", *paths, paths[0])[0] == 2


@pytest.mark.parametrize(("lost", "line"), [
    ("cells", "rounds.jsonl: 32 blocks are of cells that run.json does not have, dropped"),
    ("results", ""),
    ("rounds", "rounds.jsonl: no round can be read, so the results are those of run.json"),
    ("half a line", "rounds.jsonl line 32: torn (the run was killed while writing it), dropped"),
    ("workloads", "rounds.jsonl: 32 blocks are of cells that run.json does not have, dropped"),
    ("a turn", "rounds.jsonl line 1: not a block of this abprof: Number out of range - at `$.rounds[0][0][3]`, dropped"),
])  # fmt: skip
def test_what_can_be_shown_of_a_poor_run_is_shown(abprof, folder, lost, line):
    """Pages of a run without cells, workloads or results are shown in every format."""
    spoil(folder, lost)
    for format in FORMATS if lost in ("cells", "results", "workloads") else ("md", "csv"):
        code, out, err = abprof("report", folder, "--format", format)
        assert (code, bool(out)) == (0, True), format
        assert err.splitlines() == ([f"warning: {line}"] if line else []), "a clear line of what was dropped"
        assert b"NaN" not in out


def spoil(folder: Path, lost: str) -> None:
    """Take something from the run folder, or put something into it that is no number."""
    loose = json.loads((folder / "run.json").read_text())
    if lost == "cells":
        loose.update(cells=[], observations=[], comparisons=[], controls=[])
    if lost == "results":
        loose.update(
            observations=[], comparisons=[], controls=[], warnings=[], proofs=[], header=None, status="running"
        )
    if lost == "workloads":
        loose.update(workloads=[], cells=[], observations=[], comparisons=[], controls=[], arms=[])
    (folder / "run.json").write_text(json.dumps(loose))
    rounds = (folder / "rounds.jsonl").read_bytes()
    first, rest = rounds.split(b"\n", 1)
    block = {key: value for key, value in json.loads(first).items() if key != "sum"}
    block["rounds"][0][0][3] = 0.25
    infinite = checksummed.seal(json.dumps(block, separators=(",", ":")).replace("0.25", "1e999", 1).encode())
    spoilt = {"rounds": b"", "half a line": rounds[:-200], "a turn": infinite + rest}
    (folder / "rounds.jsonl").write_bytes(spoilt.get(lost, rounds))


def test_a_run_without_its_rounds_keeps_the_results_it_has(abprof, folder):
    """The run is written again unchanged, not as a run without measurements."""
    before = json.loads((folder / "run.json").read_text())
    (folder / "rounds.jsonl").unlink()
    code, out, err = abprof("report", folder)
    assert code == 0
    assert err == "warning: rounds.jsonl: no round can be read, so the results are those of run.json\n"
    assert json.loads((folder / "run.json").read_text()) == before
    assert "2.1 % slower" in (folder / "report.md").read_text()
    assert b"2.1 % slower" in out


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ('{"schema": 3, "header": {"sentence": "Act."}}', "by a newer abprof (schema 3, this one reads 2)"),
        ('{"schema": 1, "id": "cut he', "damaged after abprof wrote it: not JSON: Input data was truncated (copy the run folder"),
        ('{"schema": 1}', "damaged after abprof wrote it: "),
        ("[]", "damaged after abprof wrote it: "),
        ("\udcff", "not JSON"),
        ('{"schema": 1, "settings": {"threshold": NaN}}', "invalid character"),
        ("", "not JSON: Input data was truncated"),
        (None, "no run here (a run folder holds run.json)"),
    ],
)  # fmt: skip
def test_a_run_that_cannot_be_read_is_one_clear_line(abprof, folder, data, says):
    kept = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name != "run.json"}
    if data is None:
        (folder / "run.json").unlink()
    else:
        (folder / "run.json").write_text(data, errors="surrogateescape")
    for args in ([], ["--format", "html"], ["--open"]):
        code, out, err = abprof("report", folder, *args)
        assert (code, out) == (2, b"")
        assert err.count("\n") == 1
        assert says in err
        assert str(folder) in err
    left = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name != "run.json"}
    assert left == kept, "nothing was written"
