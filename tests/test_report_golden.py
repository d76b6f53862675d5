"""The formats of the five original systems, a page and a log, byte for byte; and every format is the same bytes each time."""

import os
import subprocess
import sys

import pytest

from abprof.report import FORMATS, rendered

from . import golden_files, runs

SAVED = sorted(str(path.relative_to(golden_files.HERE)) for path in golden_files.HERE.rglob("*.*"))
HASHES = """
import hashlib
from abprof.report import FORMATS, rendered
from tests import runs
for format in FORMATS:
    print(format, hashlib.sha256(rendered(runs.hostile(), runs.blocks(runs.hostile()), format)).hexdigest())
"""


def test_golden() -> None:
    made = golden_files.rendered()
    assert sorted(made) == SAVED
    for name in SAVED:
        saved = (golden_files.HERE / name).read_bytes()
        assert made[name].decode().splitlines() == saved.decode().splitlines(), (
            f"{name}: python -m tests.golden_files, and read the diff"
        )
        assert made[name] == saved


def test_the_same_run_is_the_same_bytes_with_other_hashes() -> None:
    made = {
        subprocess.check_output(
            [sys.executable, "-c", HASHES], env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": "."}
        )
        for seed in ("1", "2")
    }
    assert len(made) == 1


@pytest.mark.parametrize("format", FORMATS)
def test_nothing_of_the_clock_or_the_place_gets_in(format, monkeypatch, tmp_path) -> None:
    run = runs.run()
    first = rendered(run, runs.blocks(run), format)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("COLUMNS", "40")
    assert rendered(run, runs.blocks(run), format) == first
