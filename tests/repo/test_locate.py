from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from abprof.records.errors import AbprofError
from abprof.sides import checkouts, folders, open_repository, resolve
from tests.gitrepo import GitRepo, make_repo
from tests.repo.conftest import KERNEL, as_somebody_else, fingerprint

ROOT = Path(__file__).parents[2]


def test_found_from_any_folder_inside(repo: GitRepo, cache: Path) -> None:
    found = open_repository(repo.path / "kernels" / "ffa", cache=cache)
    assert found.path == repo.path
    assert found.git_dir == found.common_dir == repo.path / ".git"
    assert not cache.exists()  # looking costs nothing


def test_all_folders_that_the_user_has_of_it(repo: GitRepo, tmp_path: Path, cache: Path) -> None:
    """From whichever of them it was found, that one first; what abprof checks out itself is not among them."""
    linked = tmp_path / "a linked one"
    repo.git("worktree", "add", "--quiet", str(linked), "-b", "old")
    assert folders(open_repository(repo.path, cache=cache)) == (str(repo.path), str(linked))
    found = open_repository(linked, cache=cache)
    assert folders(found) == (str(linked), str(repo.path))
    sides, _ = resolve(found, ["main"])
    with checkouts(found, sides, run="r"):
        assert len(folders(found)) == 2


@pytest.mark.parametrize(
    ("place", "what"),
    [
        ("absent", "no such folder"),
        ("project/kernels/ffa/__init__.py", "not a folder"),
        ("plain", "not a git repository"),
        ("bare", "a bare repository has no working tree"),
        ("project/.git", "inside a .git folder"),
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


def test_broken_configuration_is_told_by_line(repo: GitRepo, cache: Path) -> None:
    (repo.path / ".git" / "config").write_text("[core\n")
    with pytest.raises(AbprofError, match="bad config line 1"):
        open_repository(repo.path, cache=cache)


def test_linked_worktree(repo: GitRepo, tmp_path: Path, cache: Path) -> None:
    repo.git("worktree", "add", "--quiet", "-b", "other", str(tmp_path / "linked"))
    linked = GitRepo(tmp_path / "linked")
    commit = linked.commit("in the linked one", {"a": "1"})
    found = open_repository(linked.path, cache=cache)
    assert found.common_dir == repo.path / ".git"
    assert found.git_dir == repo.path / ".git" / "worktrees" / "linked"
    (side, tree), _ = resolve(found, ["HEAD", "."])
    assert (side.commit, side.label, tree.tree) == (commit, "other", side.tree)


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


def test_owned_by_another_user(repo: GitRepo, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    refused = subprocess.run(["git", "status"], cwd=repo.path, capture_output=True, text=True, check=False)
    assert "dubious ownership" in refused.stderr
    before = fingerprint(repo.path / ".git")
    (side,), _ = resolve(open_repository(repo.path, cache=cache), ["main"])
    assert side.commit == repo.git("rev-parse", "main")
    assert fingerprint(repo.path / ".git") == before


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


def test_without_git_it_says_so(repo: GitRepo, cache: Path) -> None:
    script = "import sys; from abprof.records.errors import AbprofError; from abprof.sides import open_repository; from pathlib "
    script += "import Path\ntry: open_repository(Path(sys.argv[1]), cache=Path(sys.argv[2]))\n"
    script += "except AbprofError as error: print(error.line)"
    done = subprocess.run(
        [sys.executable, "-c", script, str(repo.path), str(cache)],
        env={"PATH": "/nonexistent", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "git is not installed, or not on PATH\n"
