"""Causes in a run that measures real kernels on the CPU. Has the machine for itself (`make test-slow`)."""

import platform
import shutil
from pathlib import Path

import pytest

from tests.gitrepo import make_repo
from tests.planted import marked
from tests.tinyrepo import abprof

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or not shutil.which("objdump"), reason="reads x86-64 by objdump"
)


@pytest.mark.slow
def test_a_real_run_names_the_line_and_its_folder_alone_makes_the_pages(tmp_path: Path) -> None:
    """Three branches of a C++ package with debug lines against main: the planted line is named, and unchanged rows have none."""
    repo = make_repo(tmp_path / "repo")
    repo.commit("a package", marked.files(of="cpu") | {".gitignore": "runs/\n"})
    branches = ("columns_first", "swept", "divided")
    for name in branches:
        repo.branch(name)
        repo.commit(name, marked.files([name], "cpu"))
        repo.checkout("main")
    asked = ("--device", "cpu", "--no-peers", "--json", "--epochs", "4", "--only", "part=turned,scaled")
    done = abprof("main", *branches, *asked, cwd=repo.path, home=tmp_path)
    labels = {side["id"]: side["label"] for side in done.run["sides"]}
    found = {(labels[row["to"]], row["cell"].partition("part=")[2]): row for row in done.run["comparisons"]}
    assert len(found) == 6, done.err
    for (branch, part), row in found.items():
        lines = {cause["at"] for cause in row["causes"] or () if cause["at"]}
        mine = part == marked.BRANCHES[branch].part
        assert lines and lines <= marked.right(branch) if mine else not lines, (branch, part, row)
    pages = set(Path(done.run["run_dir"], "code").glob("*.html"))
    assert pages
    for page in pages:
        page.unlink()
    assert abprof("report", done.run["run_dir"], cwd=repo.path, home=tmp_path).code == 0
    assert set(Path(done.run["run_dir"], "code").glob("*.html")) == pages


@pytest.mark.gpu
def test_a_real_run_on_a_gpu_names_the_line(tmp_path: Path) -> None:
    """A Triton package and a CUDA package, a change in each, and hunks of code that no row runs."""
    repo = make_repo(tmp_path / "repo")
    repo.commit("packages", marked.files(of="gpu") | {".gitignore": "runs/\n"})
    repo.branch("both")
    repo.commit("both", marked.files(["counter", "waits"], "gpu"))
    asked = ("--device", "cuda", "--no-peers", "--json", "--epochs", "4", "--only", "part=sums,averaged")
    done = abprof("main", "both", *asked, cwd=repo.path, home=tmp_path)
    found = {row["cell"].partition("part=")[2]: row["causes"][0]["at"] for row in done.run["comparisons"]}
    assert found.keys() == {"sums", "averaged"}, done.err
    assert {found["sums"]} == marked.right("counter")
    assert {found["averaged"]} == marked.right("waits")
