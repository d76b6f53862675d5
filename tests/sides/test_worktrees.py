from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from abprof.records import Side
from abprof.records.errors import AbprofError
from abprof.sides import Repository, checkouts, resolve
from tests.gitrepo import GitRepo
from tests.sides.conftest import forked

Opened = Callable[[GitRepo], Repository]
ROOT = Path(__file__).parents[2]


def leftovers(cache: Path) -> list[str]:
    """Return the entries of the cache without the clones."""
    records = [str(path) for path in cache.glob("repos/*/worktrees/*")]
    return records + [str(path) for name in ("worktrees", "index") for path in (cache / name).glob("*")]


def test_both_sides_at_paths_of_equal_length(repo: GitRepo, opened: Opened, cache: Path) -> None:
    forked(repo)
    repository = opened(repo)
    sides, _ = resolve(repository, ["main...optimize_ffa"])
    with checkouts(repository, sides, run="20261120T021700Z-main-optimize_ffa") as made:
        base, target = (Path(one.path) for one in made)
        assert [one.side for one in made] == list(sides)
        assert base.parent == target.parent
        assert base.parent.parent == cache / "worktrees"
        assert len(base.parent.name) == 12
        assert (base.name, target.name) == ("s0", "s1")
        assert (base / "kernels/ffa/__init__.py").read_text() == "SPEED = 1\n"
        assert (target / "kernels/ffa/__init__.py").read_text() == "SPEED = 2\n"
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=target, capture_output=True, text=True, check=True)
        assert head.stdout.strip() == sides[1].commit
        branch = subprocess.run(["git", "symbolic-ref", "HEAD"], cwd=target, capture_output=True, check=False)
        assert branch.returncode != 0  # detached
    assert leftovers(cache) == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_nothing_stays_after_an_exception(
    repo: GitRepo, opened: Opened, cache: Path, error: type[BaseException]
) -> None:
    repository = opened(repo)
    sides, _ = resolve(repository, ["main"])
    with pytest.raises(error), checkouts(repository, sides, run="r"):
        raise error
    assert leftovers(cache) == []


def test_a_commit_that_is_not_there(repo: GitRepo, opened: Opened, cache: Path) -> None:
    repository = opened(repo)
    (side,), _ = resolve(repository, ["main"])
    lost = Side(id="target", spec="x", kind="commit", commit="1" * 40, tree="2" * 40, label="lost-one")
    with (
        pytest.raises(AbprofError, match=r"s1: cannot check out lost-one: invalid reference"),
        checkouts(repository, (side, lost), run="r"),
    ):
        pass
    assert leftovers(cache) == []


def test_a_partial_clone_is_refused(repo: GitRepo, opened: Opened, tmp_path: Path) -> None:
    repo.git("config", "uploadpack.allowFilter", "true")
    repo.git("clone", "--quiet", "--filter=blob:none", repo.path.as_uri(), str(tmp_path / "partial"))
    with pytest.raises(AbprofError, match=r"a partial clone \(--filter\) lacks objects"):
        resolve(opened(GitRepo(tmp_path / "partial")), ["main"])
