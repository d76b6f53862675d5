"""The sides' files on disk: detached worktrees of abprof's clone, one folder for each run, removed when it ends.

- CACHE/worktrees/<12 hex of the run>/s0, s1, ...: equal lengths, because paths end up in binaries
- CACHE/worktrees/<12 hex of the run>.lock: held as long as the run lives
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from abprof.records import Checkout, Side
from abprof.records.errors import AbprofError
from abprof.sides.git import Git, GitError
from abprof.sides.leftovers import KEEP, prune_all
from abprof.sides.locate import Folder, Repository
from abprof.sides.store import lock_of
from abprof.sides.submodules import Origin, add_submodules
from abprof.system import locks as leases
from abprof.system.trees import remove_tree

Put = Callable[[Side, Path], None]  # makes the files of a side that is no commit


def _not_here(side: Side, _path: Path) -> None:
    raise AbprofError("git has no such side", where=side.spec)


@contextlib.contextmanager
def checkouts(
    repository: Repository | Folder,
    sides: Sequence[Side],
    *,
    run: str,
    submodules: bool = False,
    keep: bool = False,
    put: Put = _not_here,
) -> Iterator[tuple[Checkout, ...]]:
    """`checkout` for the length of a block. With `keep` the worktrees stay until `tidy(cache, everything=True)`."""
    made = checkout(repository, sides, run=run, submodules=submodules, put=put)
    try:
        yield made
    finally:
        if keep:
            retain(made)
        else:
            release(made)


def checkout(
    repository: Repository | Folder,
    sides: Sequence[Side],
    *,
    run: str,
    submodules: bool = False,
    put: Put = _not_here,
) -> tuple[Checkout, ...]:
    """Worktrees of all sides, in order, at paths of equal length. They belong to this process until `release`.

    What is no commit is `put` there.

    Raises AbprofError where a tree cannot be checked out; nothing is left behind then.
    """
    folder = repository.cache / "worktrees" / hashlib.sha256(run.encode()).hexdigest()[:12]
    lock = _lock(folder)
    if not leases.hold(lock):
        raise AbprofError(f"run {run} has its worktrees already: another abprof is at work on it", where=str(folder))
    try:
        if folder.exists():  # of the same run, whose process died
            remove_tree(folder)
        prune_all(repository.cache)
        folder.mkdir(parents=True)
        width = len(str(len(sides) - 1))
        paths = [folder / f"s{place:0{width}}" for place in range(len(sides))]
        for side, path in zip(sides, paths, strict=True):
            if side.kind == "dist" or isinstance(repository, Folder):
                put(side, path)
                continue
            _add(repository, side, path)
            if submodules:
                add_submodules(path, _origin(repository), repository.cache)
    except BaseException as error:
        _remove(folder)
        if isinstance(error, OSError):
            raise AbprofError(f"cannot write the worktrees: {error.strerror}", where=str(folder)) from error
        raise
    return tuple(Checkout(side=side, path=str(path)) for side, path in zip(sides, paths, strict=True))


def release(checkouts: Sequence[Checkout]) -> None:
    """Remove these worktrees. What cannot be removed is left to `tidy`, which says so."""
    for folder in _folders(checkouts):
        _remove(folder)


def retain(checkouts: Sequence[Checkout]) -> None:
    """Leave these worktrees in place when this process ends, for a person to look at."""
    for folder in _folders(checkouts):
        (folder / KEEP).touch()
        leases.drop(_lock(folder))


def _folders(checkouts: Sequence[Checkout]) -> list[Path]:
    return list(dict.fromkeys(Path(made.path).parent for made in checkouts))


def _lock(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _remove(folder: Path) -> None:
    remove_tree(folder)
    prune_all(folder.parent.parent)
    leases.drop(_lock(folder))


def _add(repository: Repository, side: Side, path: Path) -> None:
    """One worktree, whose tree is what the side says."""
    git = Git(str(repository.store))
    try:
        commit = side.commit
        if side.kind == "worktree":  # the snapshot is a tree; a worktree hangs on a commit
            commit = git.text("commit-tree", side.tree, "-p", side.commit, "-m", "abprof: the working tree as it was")
        with leases.locked(lock_of(repository.store)):
            git.text("worktree", "add", "--detach", str(path), commit)
        found = Git(str(path)).text("rev-parse", "HEAD^{tree}")
    except GitError as error:
        raise AbprofError(f"cannot check out {side.label}: {error.said}", where=str(path)) from error
    if found != side.tree:
        raise AbprofError(f"checked out tree {found[:10]}, expected {side.tree[:10]} of {side.label}", where=str(path))


def _origin(repository: Repository) -> Origin:
    url = repository.git.maybe("config", "--get", "remote.origin.url") or str(repository.path)
    git_dirs = tuple(dict.fromkeys((repository.git_dir, repository.common_dir)))
    return Origin(git_dirs, repository.path, url, repository.object_format)
