"""`abprof demo`: ordinary commits on the bundled kernels, with a real optimisation and a real slip that the run finds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from abprof.extras import demo
from tests.gitrepo import GitRepo

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> GitRepo:
    return GitRepo(demo.make(tmp_path_factory.mktemp("demo") / "abprof-demo"))


def test_a_device_that_is_not_there_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    places = {"ABPROF_CACHE_DIR": str(tmp_path / "cache"), "ABPROF_STATE_DIR": str(tmp_path / "state")}
    (tmp_path / "here").mkdir()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "abprof", "demo", "--device", "bogus"],
        cwd=tmp_path / "here",
        env={**os.environ, **places, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("abprof: --device: unknown device 'bogus'")
    assert list((tmp_path / "here").iterdir()) == []


def test_two_branches_of_ordinary_commits(made: GitRepo) -> None:
    assert made.git("branch", "--format=%(refname:short)").split() == ["main", "optimize_ffa"]
    assert made.git("branch", "--show-current") == "main"
    assert made.git("status", "--porcelain") == ""
    assert made.git("rev-list", "--count", "main") == "1"
    assert made.git("rev-list", "--count", "main..optimize_ffa") == "2"
    for commit in ("optimize_ffa~1", "optimize_ffa"):
        assert made.git("diff", "--name-only", f"{commit}~1", commit) == demo.EDITED
        assert made.git("log", "-1", "--format=%s", commit)
    tracked = made.git("ls-files").splitlines()
    assert "workloads/dense.py" in tracked
    assert "workloads/block_sparse.py" in tracked
    assert not [name for name in tracked if "__pycache__" in name or name.endswith(".so")]


def test_a_folder_that_is_not_empty_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine\n")
    done = command("-m", "abprof", "demo", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == f"abprof: {tmp_path}: not an empty folder (name another: abprof demo FOLDER)"
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("cache", "state")] == ["mine.txt"]


def test_after_a_plain_install_away_from_the_checkout(tmp_path: Path) -> None:
    """The wheel carries kernels, workloads and templates: laid out as pyproject.toml says, they are found there."""
    included = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    site = tmp_path / "site"
    ignore = shutil.ignore_patterns("__pycache__", "_bundled")
    shutil.copytree(ROOT / "abprof", site / "abprof", ignore=ignore)
    for source, target in included["force-include"].items():
        shutil.copytree(ROOT / source, site / target, ignore=ignore)
    code = """
from pathlib import Path
from abprof.extras import demo
from abprof.system import paths
print(paths.bundled("templates"))
demo.make(Path("made"))
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, "PYTHONPATH": str(site)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(site / "abprof" / "_bundled" / "templates")
    assert (tmp_path / "made" / "kernels" / "ffa" / "autograd.py").exists()
    assert (tmp_path / "made" / "workloads" / "dense.py").exists()


PATIENT = """
import sys
from pathlib import Path
import msgspec
from abprof import session
from abprof.extras import demo
from abprof.system.console import View
path = demo.make(Path("abprof-demo"))
config = msgspec.structs.replace(demo.config(path, ("cpu",)), budget=900.0, epochs=8)
session.run(config, View(quiet=True))
"""


def command(*args: str, cwd: Path, cache: Path | None = None) -> subprocess.CompletedProcess[str]:
    """`python ARGS` with abprof at hand, a state of its own, and a cache of its own or this one."""
    places = {"ABPROF_CACHE_DIR": str(cache or cwd / "cache"), "ABPROF_STATE_DIR": str(cwd / "state")}
    env = {**os.environ, "PYTHONPATH": str(ROOT), **places}
    return subprocess.run([sys.executable, "-P", *args], env=env, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's commits always have the same content: both tests share compiled kernels."""
    return tmp_path_factory.mktemp("cache")


def causes(home: Path, direction: str) -> set[str]:
    """All that is named as causes in rows of this direction."""
    (folder,) = (path for path in (home / "abprof-demo" / "runs").iterdir() if path.is_dir())
    run: dict[str, Any] = json.loads((folder / "run.json").read_bytes())
    cells = {cell["id"] for cell in run["cells"] if cell["params"]["direction"] == direction}
    lists = [row["causes"] or () for row in run["comparisons"] if row["from"] == "base" and row["cell"] in cells]
    return {cause["text"] for each in lists for cause in each}


def verdicts(home: Path) -> dict[tuple[str, str], set[str]]:
    """(workload, direction) -> the verdicts of its cells; every cell must have one."""
    (folder,) = (path for path in (home / "abprof-demo" / "runs").iterdir() if path.is_dir())
    run: dict[str, Any] = json.loads((folder / "run.json").read_bytes())
    rows = {row["cell"]: row["verdict"] for row in run["comparisons"] if row["from"] == "base"}
    found: dict[tuple[str, str], set[str]] = {}
    for cell in run["cells"]:
        found.setdefault((cell["workload"], cell["params"]["direction"]), set()).add(rows[cell["id"]])
    return found


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_exactly_what_was_planted_is_found(tmp_path: Path, cache: Path) -> None:
    """Without a tight budget: a busy machine only takes longer. Eight epochs decide the planted changes."""
    done = command("-c", PATIENT, cwd=tmp_path, cache=cache)
    assert done.returncode == 0, done.stderr
    named = causes(tmp_path, "bwd")
    assert named
    for text in named:
        assert text.startswith("a part of the package runs more often: ")
        assert "ffa_fwd_run 0 -> 1 times a call" in text
    found = verdicts(tmp_path)
    assert found.pop(("dense", "fwd")).isdisjoint({"slower", "faster", "broken"})
    assert found == {
        ("dense", "bwd"): {"slower"},
        ("block_sparse", "fwd"): {"faster"},
        ("block_sparse", "bwd"): {"slower"},
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_command_makes_it_runs_it_and_says_where_the_report_is(tmp_path: Path, cache: Path) -> None:
    """In its own time budget, which on a busy machine may leave cells undecided, but never says the opposite."""
    done = command("-m", "abprof", "demo", "--device", "cpu", cwd=tmp_path, cache=cache)
    assert done.returncode == 0, done.stderr
    (report,) = (tmp_path / "abprof-demo" / "runs").glob("*/report.html")
    assert str(report) in done.stdout
    found = verdicts(tmp_path)
    assert found["dense", "bwd"] <= {"slower", "unclear"}
    assert found["block_sparse", "bwd"] <= {"slower", "unclear"}
    assert found["block_sparse", "fwd"] <= {"faster", "unclear"}
    assert found["dense", "fwd"].isdisjoint({"slower", "faster", "broken"})
    assert GitRepo(tmp_path / "abprof-demo").git("status", "--porcelain") == ""
