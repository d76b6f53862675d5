"""What lies between two commits, read from real repositories."""

from __future__ import annotations

from pathlib import Path

import pytest

from abprof import sides as repo
from abprof.builds import keys
from abprof.records import Package
from tests.gitrepo import GitRepo, make_repo


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


def opened(of: GitRepo, tmp_path: Path) -> repo.Repository:
    return repo.open_repository(of.path, cache=tmp_path / "cache")


def test_commits_between_two(history: GitRepo, tmp_path: Path) -> None:
    """Parents before children, with first lines of messages and what they take back."""
    first, side, second = (history.git("rev-parse", name) for name in ("main~3", "side", "main~2"))
    merge, last = (history.git("rev-parse", name) for name in ("main~1", "main"))
    links = {link.commit: link for link in repo.between(opened(history, tmp_path), first, last)}
    assert set(links) == {side, second, merge, last}
    order = list(links)
    assert order.index(merge) > max(order.index(side), order.index(second))
    assert [links[commit].subject for commit in (side, second, merge, last)] == ["Aside", "Second", "Merge", "Revert"]
    assert links[merge].parents == (second, side)
    assert links[last].reverts == (second,)
    assert links[second].reverts == ()


def test_a_message_that_is_no_utf_8_and_one_that_is_empty(history: GitRepo, tmp_path: Path) -> None:
    first = history.git("rev-parse", "main")
    tree = history.git("rev-parse", "main^{tree}")
    raw = history.path / "raw"
    raw.write_bytes(f"tree {tree}\nparent {first}\nauthor A <a@b> 2000000000 +0000\n".encode() +
                    b"committer A <a@b> 2000000000 +0000\n\nc\xe4sar\n")  # fmt: skip
    odd = history.git("hash-object", "-t", "commit", "-w", str(raw))
    empty = history.git("commit-tree", "-p", odd, "-m", "", tree)
    links = repo.between(opened(history, tmp_path), first, empty)
    assert [(link.commit, link.parents) for link in links] == [(odd, (first,)), (empty, (odd,))]
    assert [link.subject for link in links] == ["c\ufffdsar", ""]


def test_what_a_terminal_would_obey_is_not_in_a_subject(history: GitRepo, tmp_path: Path) -> None:
    first = history.git("rev-parse", "main")
    odd = history.git("commit-tree", "-p", first, "-m", "a\x1b[2Jb\x07 c\x9bd \u202ee", f"{first}^{{tree}}")
    (link,) = repo.between(opened(history, tmp_path), first, odd)
    assert link.subject == "a\ufffd[2Jb\ufffd c\ufffdd \ufffde"


def test_what_commits_hold(history: GitRepo, tmp_path: Path) -> None:
    commits = [history.git("rev-parse", name) for name in ("main~3", "side", "main~2", "main~1", "main")]
    first, side, second, merge, last = commits
    kernels = repo.contents(opened(history, tmp_path), commits, ["kernels"])
    assert kernels[first] == kernels[side] == kernels[last]
    assert kernels[second] == kernels[merge] != kernels[first]
    everything = repo.contents(opened(history, tmp_path), commits, [""])
    assert len(set(everything.values())) == 4, "the revert holds README, which the branch brought"
    nothing = repo.contents(opened(history, tmp_path), commits, ["not there", "kernels"])
    assert nothing[first] == nothing[last] != nothing[second]


def test_who_descends_from_whom(history: GitRepo, tmp_path: Path) -> None:
    """Also where commits are dated before their parents."""
    place = opened(history, tmp_path)
    first, side, second, last = (history.git("rev-parse", name) for name in ("main~3", "side", "main~2", "main"))
    assert repo.is_ancestor(place, first, last)
    assert repo.is_ancestor(place, side, last)
    assert repo.is_ancestor(place, last, last)
    assert not repo.is_ancestor(place, last, first)
    assert not repo.is_ancestor(place, side, second)


@pytest.mark.parametrize(
    ("package", "folders"),
    [
        (Package(name="k"), ("kernels",)),
        (Package(name="k", path="src/k"), ("",)),
        (Package(name="k", module="mylib.k"), ("",)),
        (Package(name="k", module="mylib.k", inputs=("mylib/**", "csrc/cuda/**")), ("mylib", "csrc/cuda")),
        (Package(name="k", inputs=("mylib/**", "*.cu")), ("",)),
        (Package(name="k", inputs=("**",)), ("",)),
    ],
)
def test_folders_that_hold_all_inputs(package: Package, folders: tuple[str, ...], tmp_path: Path) -> None:
    """Whatever else a commit changes, its inputs are the same."""
    assert keys.folders(package) == folders
    for name in ("kernels/k/a.py", "mylib/k/a.py", "csrc/cuda/a.cu", "other/a.cu", "src/k/a.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for name in keys.inputs(tmp_path, package):
        assert any(name.startswith(f"{folder}/") or not folder for folder in folders), name
