"""docs/TUTORIAL.md: its files are written and its commands run, in the page's order, on a CPU."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.gitrepo import ENVIRONMENT
from tests.tinyrepo import ROOT, abprof

PAGE = (ROOT / "docs" / "TUTORIAL.md").read_text()
BLOCKS = re.findall(r"^```(sh|python)\n(.*?)^```$", PAGE, re.M | re.S)
ENV = {"ABPROF_DEVICE": "cpu", "CUDA_VISIBLE_DEVICES": ""}


def test_the_tutorial_is_one_page() -> None:
    assert len(PAGE.split()) < 700


@pytest.mark.slow
def test_the_tutorials_commands_run(tmp_path: Path) -> None:
    """Any verdict is right here, for it depends on the machine; the budgets are shorter than the page's."""
    repo, home = tmp_path / "repo", tmp_path / "home"
    repo.mkdir()
    home.mkdir()
    for language, text in BLOCKS:
        if language == "python":
            first, _, rest = text.partition("\n")
            (repo / first.removeprefix("# ")).write_text(rest)
            continue
        for line in text.splitlines():
            if not line.startswith("abprof "):
                subprocess.run(shlex.split(line), cwd=repo, env={"PATH": "/usr/bin:/bin", **ENVIRONMENT}, check=True)
                continue
            quicker = re.sub(r"--budget \d+m", "--budget 4s", line)
            run = max((repo / "runs").glob("*"), default=repo)
            words = [str(run) if word == "RUN" else word for word in shlex.split(quicker)[1:]]
            done = abprof(*words, cwd=repo, home=home, **ENV)
            assert done.code in {0, 1, 4}, (line, done)
    (compared,) = (repo / "runs").glob("*-main-faster")
    assert (compared / "report.html").exists()
    statuses = {row["status"] for row in json.loads((compared / "run.json").read_text())["observations"]}
    assert statuses == {"ok"}
