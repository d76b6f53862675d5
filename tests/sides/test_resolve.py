from collections.abc import Callable
from pathlib import Path

import pytest

from abprof.records.errors import AbprofError
from abprof.sides import Repository, checkouts, resolve
from tests.gitrepo import GitRepo, make_repo
from tests.sides.conftest import KERNEL, forked

Opened = Callable[[GitRepo], Repository]


def test_every_way_to_name_a_commit(repo: GitRepo, opened: Opened, tmp_path: Path) -> None:
    first = repo.git("rev-parse", "main")
    repo.git("tag", "-a", "-m", "annotated", "v1")
    repo.git("tag", "-a", "-m", "of a tag", "v1-nested", "v1")
    second = repo.commit("second: better", {"a": "1"})
    upstream = GitRepo(tmp_path / "clone")
    repo.git("clone", "--quiet", ".", str(upstream.path))
    names = {
        "main": (second, "main"),
        "refs/heads/main": (second, "main"),
        "HEAD": (second, "main"),
        "@": (second, "main"),
        "origin/main": (second, "origin/main"),
        "origin": (second, "origin/main"),
        "v1": (first, "v1"),
        "v1-nested": (first, "v1-nested"),
        "HEAD~1": (first, first[:10]),
        "main^{/first}": (first, first[:10]),
        ":/better": (second, second[:10]),
        first: (first, first[:10]),
        first[:7].upper(): (first, first[:10]),
    }
    repository = opened(upstream)
    sides, _ = resolve(repository, list(names))
    assert {side.spec: (side.commit, side.label) for side in sides} == names
    assert [side.id for side in sides[:4]] == ["base", "target", "target2", "target3"]
    assert {side.kind for side in sides} == {"commit"}
    assert sides[0].tree == upstream.git("rev-parse", "main^{tree}")
    assert sides[0].subject == "second: better"


@pytest.mark.parametrize("name", ["feature/deep/er", 'say-"hi"', "\N{ROCKET}-\u200d", "deadbeef", "$(id)"])
def test_odd_branch_names(repo: GitRepo, opened: Opened, name: str) -> None:
    repo.branch(name)
    commit = repo.commit("odd", {"a": "1"})
    (_, side), notes = resolve(opened(repo), ["main", name])
    assert (side.commit, side.label, notes) == (commit, name, ())


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ("optimise_ffa", "unknown ref 'optimise_ffa' (did you mean optimize_ffa)"),
        ("-optimize_ffa", "invalid ref '-optimize_ffa'"), ("", "a ref cannot be empty"),
        ("^main", "invalid ref '^main'"), ("ma\nin", r"invalid ref 'ma\nin'"), ("ma\0in", r"invalid ref 'ma\x00in'"),
        ("two words", "unknown ref 'two words' (did you mean main, optimize_ffa)"),
        ("main..optimize_ffa", "unknown ref 'main..optimize_ffa' (give base and target as two words, "),
        ("main:kernels", "'main:kernels' is a tree, not a commit"),
        ("0123456789" * 4, f"unknown ref '{'0123456789' * 4}'"), ("a/" + "b" * 300, "unknown ref 'a/bbb"),
        ("y" * 200_000, f"invalid ref '{'y' * 80}'"),
    ],
)  # fmt: skip
def test_no_such_ref(repo: GitRepo, opened: Opened, spec: str, line: str) -> None:
    forked(repo)
    with pytest.raises(AbprofError) as caught:
        resolve(opened(repo), ["main", spec])
    assert caught.value.line.startswith(line)
    assert "\n" not in caught.value.line


def test_a_branch_that_only_a_remote_has(repo: GitRepo, opened: Opened, tmp_path: Path) -> None:
    repo.git("branch", "feature/new")
    commit = repo.git("rev-parse", "feature/new")
    clone = GitRepo(tmp_path / "clone")
    repo.git("clone", "--quiet", ".", str(clone.path))
    (_, side), notes = resolve(opened(clone), ["main", "feature/new"])
    assert (side.spec, side.label, side.commit) == (*["origin/feature/new"] * 2, commit)
    assert "unknown ref 'feature/new': took origin/feature/new" in notes
    clone.git("remote", "add", "other", str(repo.path))
    clone.git("fetch", "--quiet", "other")
    with pytest.raises(AbprofError, match=r"did you mean (other/feature/new, )?origin/feature/new"):
        resolve(opened(clone), ["main", "feature/new"])


def test_no_commit_yet(tmp_path: Path, opened: Opened) -> None:
    repo = make_repo(tmp_path / "new")
    repo.write(KERNEL)
    for spec in (".", "HEAD", "main"):
        with pytest.raises(AbprofError, match="no commits yet"):
            resolve(opened(repo), [spec])


def test_tips_are_compared_and_the_merge_base_offered(repo: GitRepo, opened: Opened) -> None:
    root = repo.git("rev-parse", "main")
    forked(repo)
    sides, notes = resolve(opened(repo), ["main", "optimize_ffa"])
    assert sides[0].commit == repo.git("rev-parse", "main")
    line = f"main has moved on by 3 commits (2 touching kernels) since the merge base {root[:10]}"
    assert notes == (f"{line}; this run compares the tips, main...optimize_ffa compares with the merge base",)


def test_merge_base(repo: GitRepo, opened: Opened) -> None:
    root = repo.git("rev-parse", "main")
    forked(repo)
    (base, target, third), notes = resolve(opened(repo), ["main...optimize_ffa", "main"])
    assert (base.id, base.spec, base.commit, base.label) == ("base", "main...optimize_ffa", root, root[:10])
    assert (target.id, target.spec, target.label) == ("target", "optimize_ffa", "optimize_ffa")
    assert (third.id, third.commit) == ("target2", repo.git("rev-parse", "main"))
    line = f"main has moved on by 3 commits (2 touching kernels) since the merge base {root[:10]}"
    assert notes == (f"{line}; these are not part of the comparison",)


@pytest.fixture
def shallow(repo: GitRepo, tmp_path: Path) -> GitRepo:
    """The last commit of both branches, without their fork."""
    forked(repo)
    clone = GitRepo(tmp_path / "shallow")
    repo.git("clone", "--quiet", "--depth=1", "--no-single-branch", repo.path.as_uri(), str(clone.path))
    return clone


def test_shallow_clone(shallow: GitRepo, repo: GitRepo, opened: Opened) -> None:
    root = repo.git("rev-parse", "main~3")
    repository = opened(shallow)
    for spec in (root, "main~3", "elsewhere"):
        with pytest.raises(AbprofError, match=r"is not in this shallow clone \(run git fetch --unshallow\)"):
            resolve(repository, ["main", spec])
    with pytest.raises(AbprofError, match=r"no merge base in this clone \(run git fetch --unshallow\)"):
        resolve(repository, ["main...origin/optimize_ffa"])
    sides, notes = resolve(repository, ["main", "origin/optimize_ffa"])
    assert notes == ("main and origin/optimize_ffa have no common history in this shallow clone",)
    with checkouts(repository, sides, run="r") as made:
        assert Path(made[1].path, "kernels/ffa/__init__.py").read_text() == "SPEED = 2\n"


def test_read_file(repo: GitRepo, opened: Opened) -> None:
    repo.write({"abprof.toml": b"schema = 1\n\xff\n", "sub/x": "1"})
    (repo.path / "link.toml").symlink_to("abprof.toml")
    commit = repo.commit("settings")
    repository = opened(repo)
    assert repository.read_file(commit, "abprof.toml") == b"schema = 1\n\xff\n"
    assert repository.read_file(commit, "link.toml") == b"schema = 1\n\xff\n"
    assert repository.read_file(f"{commit}~1", "abprof.toml") is None
    assert repository.read_file(commit, "absent/x") is None
    with pytest.raises(AbprofError, match="sub: a folder, not a file, in commit"):
        repository.read_file(commit, "sub")
