"""Small runs in every format, byte for byte; the same run made twice, in processes that hash differently, is the same."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from abprof.report.formats import FORMATS

from . import golden_files, runs

SAVED = sorted(str(path.relative_to(golden_files.HERE)) for path in golden_files.HERE.rglob("*.*"))


@pytest.fixture(scope="module")
def made() -> dict[str, bytes]:
    return golden_files.rendered()


def test_no_format_is_missing(made):
    assert sorted(made) == SAVED


@pytest.mark.parametrize("name", SAVED)
def test_golden(made, name):
    saved = (golden_files.HERE / name).read_bytes()
    assert made[name].decode().splitlines() == saved.decode().splitlines(), (
        "python -m tests.golden_files, and read the diff"
    )
    assert made[name] == saved


HASHES = """
import hashlib
from tests import declared, golden_files, runs
from abprof.report.formats import FORMATS
for name, content in golden_files.rendered().items():
    print(name, hashlib.sha256(content).hexdigest())
for format, make in FORMATS.items():
    print(format, hashlib.sha256(make(runs.hostile(), runs.blocks(runs.hostile()))).hexdigest())
"""


def test_the_same_run_twice_is_the_same_bytes():
    said = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": "."}
        done = subprocess.run(
            [sys.executable, "-c", HASHES], env=environment, capture_output=True, text=True, check=True
        )
        said.append(done.stdout)
    assert said[0] == said[1]
    assert len(said[0].splitlines()) == len(SAVED) + len(FORMATS)


@pytest.mark.parametrize("format", FORMATS)
def test_nothing_of_the_clock_or_the_place_gets_in(format, monkeypatch, tmp_path):
    run = runs.run()
    first = FORMATS[format](run, runs.blocks(run))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("COLUMNS", "40")
    assert FORMATS[format](run, runs.blocks(run)) == first
