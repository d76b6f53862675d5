from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from abprof.records.errors import AbprofError
from abprof.sides import Repository, checkouts, open_repository, resolve
from tests.gitrepo import GitRepo, make_repo
from tests.sides.conftest import KERNEL, as_somebody_else, fingerprint


def test_found_from_any_folder_inside(repo: GitRepo, cache: Path) -> None:
    found = open_repository(repo.path / "kernels" / "ffa", cache=cache)
    assert found.path == repo.path
    assert found.git_dir == found.common_dir == repo.path / ".git"
    assert not cache.exists()  # looking costs nothing


@pytest.mark.parametrize(
    ("place", "what"),
    [
        ("absent", "no such folder"),
        ("project/kernels/ffa/__init__.py", "not a folder"),
        ("plain", "not a git repository"),
        ("bare", "a bare repository"),
        ("project/.git", "a .git folder"),
    ],
)
def test_refused(repo: GitRepo, tmp_path: Path, cache: Path, place: str, what: str) -> None:
    (tmp_path / "plain").mkdir()
    repo.git("clone", "--quiet", "--bare", ".", str(tmp_path / "bare"))
    with pytest.raises(AbprofError) as caught:
        open_repository(tmp_path / place, cache=cache)
    assert what in caught.value.what
    assert caught.value.where == str(tmp_path / place)
    assert "\n" not in caught.value.line


def test_a_hooks_environment_does_not_mislead(
    repo: GitRepo, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_repo(tmp_path / "other")
    other.commit("elsewhere", {"b": "2"})
    for name, value in {
        "GIT_DIR": other.path / ".git",
        "GIT_WORK_TREE": other.path,
        "GIT_INDEX_FILE": other.path / ".git" / "index",
        "GIT_OBJECT_DIRECTORY": other.path / ".git" / "objects",
        "GIT_PREFIX": "kernels/",
    }.items():
        monkeypatch.setenv(name, str(value))
    before = fingerprint(other.path)
    found = open_repository(repo.path, cache=cache)
    (_, here), _ = resolve(found, ["main", "."])
    assert found.path == repo.path
    assert here.tree == repo.git("rev-parse", "main^{tree}")
    assert fingerprint(other.path) == before


def test_read_only_repository_of_another_user(open_to_all: Path) -> None:
    repo = make_repo(open_to_all / "project")
    repo.commit("first", KERNEL)
    repo.write({"kernels/ffa/__init__.py": "SPEED = 7\n"})
    subprocess.run(["chmod", "-R", "a-w", str(repo.path)], check=True)
    before = fingerprint(repo.path)

    def job() -> str:
        repository = open_repository(repo.path, cache=open_to_all / "cache")
        sides, _ = resolve(repository, ["main", "."])
        with checkouts(repository, sides, run="r") as made:
            writable = os.access(repo.path / ".git", os.W_OK)
            speeds = [Path(one.path, "kernels/ffa/__init__.py").read_text().strip() for one in made]
        return f"{speeds} {writable}"

    assert as_somebody_else(job) == "['SPEED = 1', 'SPEED = 7'] False"
    assert fingerprint(repo.path) == before


# ---------------------------------------------------------------- history


@pytest.fixture
def history(tmp_path: Path) -> GitRepo:
    """main: first, second, a merge of a branch that left after the first, a revert."""
    made = make_repo(tmp_path / "a repository")
    made.commit("First", {"kernels/k/a.py": "1"})
    made.branch("side")
    made.commit("Aside", {"README": "1"})
    made.checkout("main")
    second = made.commit("Second\n\nwith a body\n\nof words", {"kernels/k/a.py": "2"})
    made.git("merge", "--quiet", "--no-ff", "-m", "Merge", "side")
    made.commit(f"Revert\n\nThis reverts commit {second}.", {"kernels/k/a.py": "1"})
    return made


def opened(of: GitRepo, tmp_path: Path) -> Repository:
    return open_repository(of.path, cache=tmp_path / "cache")


def test_commits_between_two(history: GitRepo, tmp_path: Path) -> None:
    """Parents before children, with first lines of messages and what they take back."""
    first, side, second = (history.git("rev-parse", name) for name in ("main~3", "side", "main~2"))
    merge, last = (history.git("rev-parse", name) for name in ("main~1", "main"))
    links = {link.commit: link for link in opened(history, tmp_path).between(first, last)}
    assert set(links) == {side, second, merge, last}
    order = list(links)
    assert order.index(merge) > max(order.index(side), order.index(second))
    assert [links[commit].subject for commit in (side, second, merge, last)] == ["Aside", "Second", "Merge", "Revert"]
    assert links[merge].parents == (second, side)


def test_what_commits_hold(history: GitRepo, tmp_path: Path) -> None:
    commits = [history.git("rev-parse", name) for name in ("main~3", "side", "main~2", "main~1", "main")]
    first, side, second, merge, last = commits
    kernels = opened(history, tmp_path).contents(commits, ["kernels"])
    assert kernels[first] == kernels[side] == kernels[last]
    assert kernels[second] == kernels[merge] != kernels[first]
    everything = opened(history, tmp_path).contents(commits, [""])
    assert len(set(everything.values())) == 4, "the revert holds README, which the branch brought"
    nothing = opened(history, tmp_path).contents(commits, ["not there", "kernels"])
    assert nothing[first] == nothing[last] != nothing[second]
