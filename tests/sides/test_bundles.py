"""Commits that travel: what is packed on one machine is checked out on another, which has nothing else of it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from abprof.records import Checkout
from abprof.records.errors import AbprofError
from abprof.sides import Repository, checkouts, open_repository, resolve
from abprof.sides.bundles import Carried, carried, pack, unpack
from tests.gitrepo import GitRepo
from tests.sides.conftest import fingerprint, forked
from tests.sides.test_submodules import superproject  # noqa: F401

Opened = Callable[[GitRepo], Repository]


def packed(
    repository: Repository, file: Path, *specs: str, submodules: bool = False, **files: bytes
) -> tuple[str, list]:
    """The bundle's name, and the sides as they stand in it."""
    sides, _ = resolve(repository, specs)
    with checkouts(repository, sides, run="here", submodules=submodules) as made:
        more = {name: Carried(data) for name, data in files.items()}
        trees = [Path(one.path) for one in made]
        name = pack(trees, more, file, submodules=submodules, object_format=repository.object_format)
        return name, [elsewhere(one) for one in made]


def elsewhere(made: Checkout) -> object:
    commit = GitRepo(Path(made.path)).git("rev-parse", "HEAD")
    return msgspec.structs.replace(made.side, commit=commit, kind="commit")


def arrived(file: Path, name: str, folder: Path, object_format: str = "sha1") -> Repository:
    """The bundle unpacked with a cache of its own."""
    folder.mkdir()
    unpack(file, folder / "repo", name, object_format=object_format)
    return open_repository(folder / "repo", cache=folder / "cache")


def away(*paths: Path) -> None:
    for path in paths:
        path.rename(path.with_name(f"{path.name} away"))


def contents(repository: Repository, sides: list, name: str, submodules: bool = False) -> list[str]:
    with checkouts(repository, sides, run="there", submodules=submodules) as made:
        return [Path(one.path, name).read_text() for one in made]


def test_two_branches_and_a_working_tree_arrive_without_the_repository(
    repo: GitRepo, opened: Opened, cache: Path, tmp_path: Path
) -> None:
    forked(repo)
    repo.write({"kernels/ffa/__init__.py": "SPEED = 3\n", "kernels/ffa/new.py": "x = 1\n"})
    before = fingerprint(repo.path)
    name, sides = packed(opened(repo), tmp_path / "b", "main", "optimize_ffa", ".")
    assert fingerprint(repo.path) == before
    away(repo.path, cache)
    there = arrived(tmp_path / "b", name, tmp_path / "node")
    assert contents(there, sides, "kernels/ffa/__init__.py") == ["SPEED = 1\n", "SPEED = 2\n", "SPEED = 3\n"]
    assert contents(there, sides[2:], "kernels/ffa/new.py") == ["x = 1\n"]


def test_exactly_the_commits_travel_and_no_history(repo: GitRepo, opened: Opened, tmp_path: Path) -> None:
    """What was in an earlier commit alone is not in the bundle."""
    repo.commit("a mistake", {"secret.txt": "do not send\n"})
    blob = repo.git("rev-parse", "HEAD:secret.txt")
    (repo.path / "secret.txt").unlink()
    repo.commit("taken back")
    forked(repo)
    name, sides = packed(opened(repo), tmp_path / "b", "main", "optimize_ffa")
    there = GitRepo(arrived(tmp_path / "b", name, tmp_path / "node").path)
    commits = there.git("rev-list", "--all").split("\n")
    assert sorted(commits) == sorted([name, *(side.commit for side in sides)])
    with pytest.raises(RuntimeError):
        there.git("cat-file", "-e", blob)
    repo.git("cat-file", "-e", blob)


def test_files_beside_the_commits_arrive_byte_for_byte(repo: GitRepo, opened: Opened, tmp_path: Path) -> None:
    (tmp_path / "tool").write_bytes(b"#!/bin/sh\n")
    (tmp_path / "tool").chmod(0o755)
    (tmp_path / "link").symlink_to("tool")
    files = {
        "abprof.toml": Carried(b"preset = 'x'\n"),
        "w/.gitattributes": Carried(b"* text eol=crlf ident export-subst\n"),
        "w/a.py": Carried(b"$Id$\r\nx\n\0\xff"),
        'w/odd "name"\\ \xe9\nline': Carried(b""),
        "w/tool": carried(tmp_path / "tool"),
        "w/link": carried(tmp_path / "link"),
    }
    sides, _ = resolve(opened(repo), ["main"])
    with checkouts(opened(repo), sides, run="here") as made:
        name = pack([Path(made[0].path)], files, tmp_path / "b")
    there = Path(arrived(tmp_path / "b", name, tmp_path / "node").path)
    for path, file in files.items():
        if file.mode != "120000":
            assert (there / path).read_bytes() == file.data
    assert (there / "w/link").readlink() == Path("tool")
    assert os.access(there / "w/tool", os.X_OK)
    assert not os.access(there / "w/a.py", os.X_OK)
    assert not (there / "kernels").exists()  # of the commits no file lies there


def test_submodules_travel(superproject: GitRepo, opened: Opened, cache: Path, tmp_path: Path) -> None:  # noqa: F811
    name, sides = packed(opened(superproject), tmp_path / "b", "main", "optimize_ffa", ".", submodules=True)
    away(superproject.path, cache, tmp_path / "inner", tmp_path / "outer")
    there = arrived(tmp_path / "b", name, tmp_path / "node")
    assert contents(there, sides, "third party/outer/outer.h", submodules=True) == ["1", "2", "2"]
    assert contents(there, sides, "third party/outer/deps/inner/inner.h", submodules=True) == ["1", "1", "1"]


def test_a_shallow_clone_and_a_partial_one(repo: GitRepo, cache: Path, tmp_path: Path) -> None:
    forked(repo)
    repo.git("config", "uploadpack.allowFilter", "true")
    for option in ("--depth=1", "--filter=blob:none"):
        clone = GitRepo(tmp_path / f"clone{option[2]}")
        repo.git("clone", "--quiet", "--no-single-branch", option, f"file://{repo.path}", str(clone.path))
        subprocess.run(["git", "config", "--global", "protocol.file.allow", "always"], check=True)
        repository = open_repository(clone.path, cache=cache)
        name, sides = packed(repository, tmp_path / f"b{option[2]}", "origin/main", "origin/optimize_ffa")
        there = arrived(tmp_path / f"b{option[2]}", name, tmp_path / f"node{option[2]}")
        assert contents(there, sides, "kernels/ffa/__init__.py") == ["SPEED = 1\n", "SPEED = 2\n"]


@pytest.mark.parametrize("spoil", ["cut", "flipped", "other", "empty"])
def test_a_spoilt_bundle_is_refused(repo: GitRepo, opened: Opened, tmp_path: Path, spoil: str) -> None:
    file = tmp_path / "b"
    name, _ = packed(opened(repo), file, "main")
    data = file.read_bytes()
    if spoil == "other":
        packed(opened(repo), file, "main", more=b"of another content")
    else:
        flipped = data[:-30] + bytes([data[-30] ^ 1]) + data[-29:]
        file.write_bytes({"cut": data[: len(data) // 2], "flipped": flipped, "empty": b""}[spoil])
    with pytest.raises(AbprofError, match="bundle") as caught:
        arrived(file, name, tmp_path / "node")
    assert caught.value.where == str(file)
