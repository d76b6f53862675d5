"""The suite has the same tests by the same names in every process: xdist's workers refuse to begin where two differ."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def collected(seed: int, folder: Path) -> list[str]:
    """Names of all tests, gathered with this seed of hashes and in this folder for temporary files.

    Raises:
        CalledProcessError: a file of the suite cannot be gathered.
    """
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "", "-p", "no:cacheprovider", "tests"]
    folder.mkdir()
    asked = {**os.environ, "PYTHONHASHSEED": str(seed), "TMPDIR": str(folder)}
    told = subprocess.run(command, cwd=ROOT, env=asked, capture_output=True, text=True, check=True).stdout
    return [line for line in told.splitlines() if "::" in line]


@pytest.mark.slow
def test_every_process_gathers_the_same_tests(tmp_path: Path) -> None:
    first = collected(1, tmp_path / "a")
    time.sleep(2.1)  # an archive's time has steps of two seconds
    assert len(first) > 1000
    assert collected(2, tmp_path / "b") == first
