import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from abprof.records.errors import AbprofError
from abprof.sides import Repository, checkouts, resolve
from tests.gitrepo import GitRepo, make_repo
from tests.sides.conftest import fingerprint

Opened = Callable[[GitRepo], Repository]


def files_of(repository: Repository, spec: str = ".") -> dict[str, str]:
    """Return the fingerprint of a worktree's content at `spec`."""
    sides, _ = resolve(repository, [spec])
    with checkouts(repository, sides, run="r") as (made,):
        prints = fingerprint(Path(made.path))
    return {name: mark for name, mark in prints.items() if name != ".git"}


@pytest.fixture
def dirty(repo: GitRepo) -> GitRepo:
    """Staged, changed, deleted, new and ignored files, a stash, links, modes and names of every kind."""
    repo.write({".gitignore": "*.o\nbuild/\n", "gone": "1", "gone too": "1", "changed": "1", "both": "1", "run": "1"})
    repo.write({"kept.o": "tracked although ignored"})
    repo.git("add", "--force", "kept.o")
    repo.commit("more")
    repo.write({"changed": "for the stash"})
    repo.git("stash")
    repo.write({"changed": "2", "both": "staged", "staged": "1", "intended": "1"})
    repo.git("add", "both", "staged")
    repo.git("add", "--intent-to-add", "intended")
    repo.write({"both": "and changed again", "kept.o": "changed", "x.o": "ignored", "build/y": "ignored"})
    repo.write({"new/with space": "1", "new/line\nbreak": "2", "new/\u00e9\N{ROCKET}": "3", 'new/"quoted"': "4"})
    repo.write({os.fsdecode(b"new/latin-\xe9"): "5"})
    (repo.path / "gone").unlink()
    repo.git("rm", "--quiet", "--cached", "gone too")
    (repo.path / "gone too").unlink()
    (repo.path / "run").chmod(0o755)
    (repo.path / "link").symlink_to("changed")
    (repo.path / "nowhere").symlink_to("/nonexistent")
    return repo


def test_the_tree_is_the_working_tree_as_it_is(dirty: GitRepo, opened: Opened) -> None:
    expected = {
        name: mark
        for name, mark in fingerprint(dirty.path).items()
        if not name.startswith((".git/", "build")) and name not in {".git", "x.o"}
    }
    assert files_of(opened(dirty)) == expected


def test_nothing_of_the_users_changes(dirty: GitRepo, opened: Opened) -> None:
    before = fingerprint(dirty.path)
    repository = opened(dirty)
    sides, _ = resolve(repository, ["main", ".", "stash@{0}"])
    with checkouts(repository, sides, run="r"):
        assert fingerprint(dirty.path) == before
    assert fingerprint(dirty.path) == before
    assert (sides[1].kind, sides[1].label, sides[1].spec) == ("worktree", "working-tree", ".")
    assert sides[1].commit == sides[0].commit
    assert sides[1].tree != sides[0].tree


@pytest.mark.parametrize("mark", ["--assume-unchanged", "--skip-worktree"])
def test_marks_that_hide_changes_are_refused(repo: GitRepo, opened: Opened, mark: str) -> None:
    repo.commit("more", {"hidden": "1"})
    repo.git("update-index", mark, "hidden")
    with pytest.raises(AbprofError, match="hidden: git is configured to ignore changes"):
        resolve(opened(repo), ["."])
    (repo.path / "hidden").unlink()
    if mark == "--skip-worktree":  # a sparse checkout
        assert "hidden" in files_of(opened(repo))


def test_hooks_and_monitors_of_the_repository_do_not_run(repo: GitRepo, opened: Opened, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    for hook in ("post-checkout", "post-index-change", "fsmonitor", "pre-commit"):
        path = repo.path / ".git" / "hooks" / hook
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\necho {hook} >> {ran}\n")
        path.chmod(0o755)
    subprocess.run(["git", "config", "core.fsmonitor", ".git/hooks/fsmonitor"], cwd=repo.path, check=True)
    subprocess.run(["git", "config", "--global", "core.hooksPath", str(repo.path / ".git/hooks")], check=True)
    repo.write({"a": "1"})
    files_of(opened(repo))
    assert not ran.exists()
    subprocess.run(["git", "add", "a"], cwd=repo.path, check=True)
    assert "post-index-change" in ran.read_text()  # they would have


def test_nested_repository_is_left_out_and_said(repo: GitRepo, opened: Opened) -> None:
    make_repo(repo.path / "vendor" / "other").commit("inside", {"a": "1"})
    (side,), notes = resolve(opened(repo), ["."])
    assert notes == ("'.' leaves out the nested repository vendor/other",)
    assert side.tree == repo.git("rev-parse", "HEAD^{tree}")
