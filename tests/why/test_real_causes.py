"""Causes in a run that measures real kernels on the CPU. Has the machine for itself (`make test-slow`)."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

import pytest

from tests.planted import cpu
from tests.tinyrepo import abprof

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or not shutil.which("objdump"), reason="reads x86-64 by objdump"
)


@pytest.mark.slow
def test_a_real_run_names_what_was_planted(tmp_path: Path) -> None:
    """Three branches against main, measured: each row is slower, and says why; the decoy's row blames no function."""
    repo = cpu.repository(tmp_path / "repo")
    names = list(cpu.BRANCHES)
    asked = ("--device", "cpu", "--no-peers", "--json", "--epochs", "4")
    done = abprof("main", *names, "decoy", *asked, cwd=repo.path, home=tmp_path)
    assert done.code == 1, done.err
    rows = {row["to"]: row for row in done.run["comparisons"] if row["from"] == "base"}
    *sides, decoy = done.run["sides"][1:]
    assert (rows[decoy["id"]]["verdict"], rows[decoy["id"]]["causes"]) == ("slower", [])
    for side in sides:
        _, kind, said = cpu.BRANCHES[side["label"]]
        row = rows[side["id"]]
        assert row["verdict"] == "slower", side["label"]
        assert kind in [cause["kind"] for cause in row["causes"]], row["causes"]
        assert said in row["causes"][0]["text"]
