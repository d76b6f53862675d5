import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from abprof.records import Side
from abprof.records.errors import AbprofError
from abprof.sides import Repository, checkouts, resolve
from tests.gitrepo import GitRepo, make_repo
from tests.sides.conftest import fingerprint, forked

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


@pytest.fixture
def superproject(repo: GitRepo, tmp_path: Path) -> GitRepo:
    """The repository with a submodule that has a submodule, in two states on main and optimize_ffa."""
    inner = make_repo(tmp_path / "inner")
    inner.commit("inner", {"inner.h": "1"})
    outer = make_repo(tmp_path / "outer")
    outer.git("submodule", "--quiet", "add", inner.path.as_uri(), "deps/inner")
    outer.commit("outer", {"outer.h": "1"})
    repo.git("submodule", "--quiet", "add", "--name", "the outer", outer.path.as_uri(), "third party/outer")
    repo.git("submodule", "--quiet", "update", "--init", "--recursive")
    repo.commit("with submodules")
    repo.branch("optimize_ffa")
    GitRepo(repo.path / "third party/outer").commit("newer", {"outer.h": "2"})
    repo.commit("newer submodule")
    return repo


def contents(repository: Repository, *specs: str) -> list[tuple[str, str]]:
    sides, _ = resolve(repository, specs)
    with checkouts(repository, sides, run="r", submodules=True) as made:
        folders = [Path(one.path, "third party/outer") for one in made]
        return [((top / "outer.h").read_text(), (top / "deps/inner/inner.h").read_text()) for top in folders]


def test_from_the_users_own_copies(superproject: GitRepo, opened: Opened, cache: Path, tmp_path: Path) -> None:
    (tmp_path / "inner").rename(tmp_path / "away")  # nothing can be fetched
    (tmp_path / "outer").rename(tmp_path / "away too")
    before = fingerprint(superproject.path)
    assert contents(opened(superproject), "main", "optimize_ffa", ".") == [("1", "1"), ("2", "1"), ("2", "1")]
    assert fingerprint(superproject.path) == before
    assert leftovers(cache) == []


def test_a_submodule_without_a_copy_is_named(superproject: GitRepo, opened: Opened, tmp_path: Path) -> None:
    superproject.git("clone", "--quiet", ".", str(tmp_path / "clone"))
    with pytest.raises(AbprofError) as caught:
        contents(opened(GitRepo(tmp_path / "clone")), "origin/main")
    assert caught.value.where.startswith("submodule 'the outer' (third party/outer) at ")
    assert caught.value.advice.startswith("run git submodule update --init --recursive")


def test_a_name_that_climbs_out(repo: GitRepo, opened: Opened) -> None:
    repo.write({".gitmodules": '[submodule "../../evil"]\n\tpath = lib\n\turl = https://example.org/evil\n'})
    repo.git("add", ".gitmodules")
    repo.git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},lib")
    repo.git("commit", "--quiet", "-m", "evil")
    repository = opened(repo)
    sides, _ = resolve(repository, ["main"])
    with pytest.raises(AbprofError, match="no safe name"), checkouts(repository, sides, run="r", submodules=True):
        pass
