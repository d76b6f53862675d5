"""`abprof demo`: ordinary commits on the bundled kernels, with a real optimisation and a real slip that the run finds."""

import json
from pathlib import Path
from typing import Any

import pytest

from abprof.extras import demo
from tests.gitrepo import GitRepo
from tests.tinyrepo import abprof


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> GitRepo:
    return GitRepo(demo.make(tmp_path_factory.mktemp("demo") / "abprof-demo"))


def test_a_device_that_is_not_there_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    done = abprof("demo", "--device", "bogus", cwd=tmp_path / "here", home=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("abprof: --device: unknown device 'bogus'")
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
    done = abprof("demo", str(tmp_path), cwd=tmp_path, home=tmp_path)
    assert done.code == 2
    assert done.err.splitlines()[-1] == f"abprof: {tmp_path}: not an empty folder (name another: abprof demo FOLDER)"
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("cache", "state")] == ["mine.txt"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's commits always have the same content: both tests share compiled kernels."""
    return tmp_path_factory.mktemp("home")


def the_run(repo: Path) -> dict[str, Any]:
    (file,) = repo.glob("runs/*/run.json")
    run: dict[str, Any] = json.loads(file.read_bytes())
    return run


def causes(run: dict[str, Any], direction: str) -> set[str]:
    """All that is named as causes in rows of this direction."""
    cells = {cell["id"] for cell in run["cells"] if cell["params"]["direction"] == direction}
    lists = [row["causes"] or () for row in run["comparisons"] if row["from"] == "base" and row["cell"] in cells]
    return {cause["text"] for each in lists for cause in each}


def verdicts(run: dict[str, Any]) -> dict[tuple[str, str], set[str]]:
    """(workload, direction) -> the verdicts of its cells; every cell must have one."""
    rows = {row["cell"]: row["verdict"] for row in run["comparisons"] if row["from"] == "base"}
    found: dict[tuple[str, str], set[str]] = {}
    for cell in run["cells"]:
        found.setdefault((cell["workload"], cell["params"]["direction"]), set()).add(rows[cell["id"]])
    return found


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_exactly_what_was_planted_is_found(made: GitRepo, home: Path) -> None:
    """Without a tight budget: eight epochs decide one cell or more of each planted change, beside heavy load too."""
    cells = ("block_sparse/*ratio=0.2,*", "dense/*mask_type=full*", "dense/*mask_type=causal*")
    options = (
        "--preset",
        "smoke",
        *(word for cell in cells for word in ("--only", cell)),
        "--device",
        "cpu",
        "--no-peers",
    )
    done = abprof("main", "optimize_ffa", *options, "--budget", "15m", "--epochs", "8", cwd=made.path, home=home)
    assert done.code == 1, done.err
    run = the_run(made.path)
    named = causes(run, "bwd")
    assert named
    for text in named:
        assert text.startswith("a part of the package runs more often: ")
        assert "ffa_fwd_run 0 -> 1 times a call" in text
    found = verdicts(run)
    assert found.pop(("dense", "fwd")).isdisjoint({"slower", "faster", "broken"})
    planted = {("dense", "bwd"): "slower", ("block_sparse", "fwd"): "faster", ("block_sparse", "bwd"): "slower"}
    assert found.keys() == planted.keys()
    for part, verdict in planted.items():
        assert verdict in found[part] <= {verdict, "unclear"}, "decided, and never the opposite"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_command_makes_it_runs_it_and_says_where_the_report_is(tmp_path: Path, home: Path) -> None:
    """In its own time budget, which on a busy machine may leave cells undecided, but never says the opposite."""
    done = abprof("demo", "--device", "cpu", cwd=tmp_path, home=home)
    assert done.code == 0, done.err
    (report,) = (tmp_path / "abprof-demo" / "runs").glob("*/report.html")
    assert str(report) in done.out
    found = verdicts(the_run(tmp_path / "abprof-demo"))
    assert found["dense", "bwd"] <= {"slower", "unclear"}
    assert found["block_sparse", "bwd"] <= {"slower", "unclear"}
    assert found["block_sparse", "fwd"] <= {"faster", "unclear"}
    assert found["dense", "fwd"].isdisjoint({"slower", "faster", "broken"})
    assert GitRepo(tmp_path / "abprof-demo").git("status", "--porcelain") == ""
