"""The run folder: atomic, strict, readable after a crash; it reports dropped lines."""

import hashlib
import json
import math
import re
import resource
import subprocess
import threading
from pathlib import Path

import jsonschema
import msgspec
import pytest

from abprof.records.errors import AbprofError
from abprof.store import runfolder
from abprof.store.runfolder import RunFolder
from tests import schemas

from . import runs

ROOT = Path(__file__).resolve().parent.parent
OLD = Path(__file__).parent / "data" / "run_schema1"


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return runfolder.create(tmp_path / "runs", "20261120T021700Z-a-b")


@pytest.mark.parametrize("make", [runs.run, runs.hostile])
def test_what_is_written_is_what_is_read(tmp_path, make):
    run = make()
    path = runs.write(tmp_path, run)
    assert runfolder.read(path) == (run, runs.blocks(run), [])
    assert runfolder.read(path / "run.json")[0] == run


def test_an_old_run_folder_stays_readable():
    run, blocks, notes = runfolder.read(OLD)
    assert (run.schema, run.options.threshold, run.options.all) == (2, 1.5, True)
    assert {(w.scaled, w.ladder, w.sweep) for w in run.workloads} == {("", (), None)}, "older than what drives sections"
    assert all(not o.facts for o in run.observations)
    assert run.header.counts["slower"] == 1
    assert [c.verdict for c in run.comparisons].count("broken") == 1
    assert len(blocks) == 2 * len(run.cells) == 8
    assert notes == []


def test_two_runs_never_share_a_folder(tmp_path):
    made: list[RunFolder] = []
    threads = [
        threading.Thread(target=lambda: made.append(runfolder.create(tmp_path / "runs", "same"))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(folder.id for folder in made) == ["same", *(f"same-{i}" for i in range(2, 9))]


def test_runs_never_show_in_git_status(tmp_path):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    runs.write(tmp_path / "runs", runs.run())
    kept = tmp_path / "kept"  # a folder of the user's: nothing in it may be hidden
    kept.mkdir()
    (kept / "notes.txt").write_text("mine")
    runs.write(kept, runs.run())
    status = subprocess.check_output(["git", "status", "--porcelain", "-uall"], cwd=tmp_path, text=True)
    assert status == "?? kept/notes.txt\n"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_is_refused_and_the_old_file_stays(folder, value):
    run = runs.run()
    folder.write_run(run)
    before = (folder.path / "run.json").read_bytes()
    bad = msgspec.structs.replace(run, options=msgspec.structs.replace(run.options, precision=value))
    with pytest.raises(ValueError, match="JSON compliant"):
        folder.write_run(bad)
    block = msgspec.structs.replace(runs.blocks(run)[0], seconds=value)
    with pytest.raises(ValueError, match="JSON compliant"):
        folder.append_block(block)
    assert (folder.path / "run.json").read_bytes() == before
    assert not (folder.path / "rounds.jsonl").exists()


def test_a_torn_last_line_is_dropped_and_written_over(folder):
    run = runs.run()
    folder.write_run(run)
    first, second, third = runs.blocks(run)[:3]
    folder.append_block(first)
    folder.append_block(second)
    file = folder.path / "rounds.jsonl"
    whole = file.read_bytes()
    for cut in (1, 2, 20, 400):
        file.write_bytes(whole[:-cut])
        _, blocks, notes = runfolder.read(folder.path)
        assert blocks == [first]
        assert notes == ["rounds.jsonl line 2: torn (the run was killed while writing it), dropped"]
    folder.append_block(third)
    assert runfolder.read(folder.path)[1:] == ([first, third], [])


def test_a_changed_byte_costs_one_block_and_says_which(folder):
    run = runs.run()
    folder.write_run(run)
    kept = runs.blocks(run)[:3]
    for block in kept:
        folder.append_block(block)
    file = folder.path / "rounds.jsonl"
    data = bytearray(file.read_bytes())
    middle = data.index(b"\n") + data[data.index(b"\n") + 1 :].index(b'"seconds":1.5') + len(b'"seconds":1.5')
    assert data[middle : middle + 1] == b"5"
    data[middle] = ord("6")
    file.write_bytes(data)
    _, blocks, notes = runfolder.read(folder.path)
    assert blocks == [kept[0], kept[2]]
    assert notes == ["rounds.jsonl line 2: checksum does not match, dropped"]


def test_no_run_here(tmp_path):
    (tmp_path / "notice.json").write_text("{}")
    for given in (tmp_path, tmp_path / "notice.json"):
        with pytest.raises(AbprofError, match="no run here"):
            runfolder.read(given)


def test_a_full_disk_is_one_line_and_nothing_is_half_written(folder):
    """The limit on a file's size stands in for the full disk: the same write, refused at the same place."""
    run, usual = runs.run(), resource.getrlimit(resource.RLIMIT_FSIZE)
    first, second = runs.blocks(run)[:2]
    folder.write_run(run)
    folder.append_block(first)
    before = {path.name: path.read_bytes() for path in folder.path.iterdir() if path.is_file()}
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before["rounds.jsonl"]) + 100, usual[1]))  # a line is cut there
    for name, write in (
        ("run.json", lambda: folder.write_run(run)),
        ("rounds.jsonl", lambda: folder.append_block(second)),
    ):
        with pytest.raises(AbprofError) as full:
            write()
        assert full.value.line.startswith(f"{folder.path / name}: File too large (make room there, or")
    resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert {path.name: path.read_bytes() for path in folder.path.iterdir() if path.is_file()} == before


def test_the_schemas_in_docs_are_up_to_date():
    for name, schema in schemas.schemas().items():
        stored = (ROOT / "docs" / "schemas" / name).read_text()
        assert stored == schemas.text(schema), f"{name} is old: run `python -m tests.schemas`"


def test_a_run_folder_validates_against_the_schemas(tmp_path):
    path = runs.write(tmp_path, runs.run())
    made = schemas.schemas()
    validator = jsonschema.Draft202012Validator(made["run.schema.json"])
    document = json.loads((path / "run.json").read_text())
    validator.validate(document)
    line = jsonschema.Draft202012Validator(made["rounds.schema.json"])
    for text in (path / "rounds.jsonl").read_text().splitlines():
        line.validate(json.loads(text))
    for spoiled in ({**document, "schema": 3}, {**document, "surprise": 1}, {k: document[k] for k in ("id", "schema")}):
        assert not validator.is_valid(spoiled)


def test_the_documented_checksum_is_the_real_one():
    """docs/RUN_FOLDER.md tells others how to check a line; they must come to the same sum."""
    line = (OLD / "rounds.jsonl").read_bytes().splitlines()[0]
    head, _, tail = line.rpartition(b',"sum":')
    assert json.loads(tail[:-1]) == hashlib.blake2b(head + b"}", digest_size=8).hexdigest()


def test_the_documented_reader_runs(capsys, monkeypatch):
    page = (ROOT / "docs" / "RUN_FOLDER.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(ROOT)
    exec(example, {})
    assert len(capsys.readouterr().out.splitlines()) == 2
