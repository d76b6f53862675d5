"""Removing what dead runs left in the cache, and nothing of those that live."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from abprof.sides.snapshot import indexes
from abprof.sides.store import half_made, lock_of, source_of, use_of
from abprof.system import locks as leases
from abprof.system.trees import remove_tree

KEEP = ".keep"  # file in a run's folder: its worktrees stay although the run has ended


def tidy(cache: Path, *, everything: bool = False) -> list[str]:
    """Remove worktrees and shards of dead runs, half-made clones, and clones of repositories that are gone; a line for each.

    With `everything` also worktrees that were kept for debugging, and all clones that no process uses.
    """
    cache = cache.expanduser().absolute()
    held = (cache / "worktrees", indexes(cache), landings(cache))
    lines = [line for folder in held for line in _abandoned(folder, everything)]
    prune_all(cache)
    return lines + list(_clones(cache / "repos", everything))


def landings(cache: Path) -> Path:
    """Where shards that came from another machine have their files, each folder with a lock beside it."""
    return cache / "landed"


def _abandoned(parent: Path, everything: bool) -> Iterator[str]:
    if not parent.is_dir():
        return
    for lock in {path.with_suffix(".lock") for path in parent.iterdir() if not path.name.startswith(".gone-")}:
        folder = lock.with_suffix("")
        with leases.abandoned(lock) as free:
            if not free or ((folder / KEEP).exists() and not everything):
                continue
            if folder.exists():
                yield _removed(folder, "left by a run that ended")
    for gone in parent.glob(".gone-*"):
        yield _removed(gone, "left by a run that ended")


def _clones(repos: Path, everything: bool) -> Iterator[str]:
    if not repos.is_dir():
        return
    for store in {path.with_suffix("") for path in repos.iterdir() if not path.name.startswith(".gone-")}:
        with leases.abandoned(lock_of(store)) as free, leases.abandoned(use_of(store)) as unused:
            if not free:
                continue
            if half_made(store).exists():
                yield _removed(half_made(store), "half-made clone")
            source = source_of(store)
            if unused and store.exists() and not _worktrees(store):
                if everything:
                    yield _removed(store, "clone")
                elif source is not None and not source.exists():
                    yield _removed(store, f"clone of {source}, which is gone")
    for gone in repos.glob(".gone-*"):
        yield _removed(gone, "left by a run that ended")


def _removed(path: Path, what: str) -> str:
    if remove_tree(path):
        return f"removed {path} ({what})"
    return f"could not remove {path} ({what}): something in it is in use or belongs to another user"


def prune_all(cache: Path) -> None:
    """Forget the worktrees whose folders are gone, in all clones.

    `git worktree prune` would not do: one whose making was interrupted stays locked for ever.
    """
    for store in (cache / "repos").glob("*/worktrees"):
        if any(_dangling(entry) for entry in store.iterdir()):
            with leases.locked(lock_of(store.parent)):  # nobody is adding one
                for entry in list(store.iterdir()):
                    if _dangling(entry):
                        remove_tree(entry)


def _worktrees(store: Path) -> bool:
    folder = store / "worktrees"
    return folder.is_dir() and any(not entry.name.startswith(".gone-") for entry in folder.iterdir())


def _dangling(entry: Path) -> bool:
    """Whether this record of a worktree leads nowhere."""
    try:
        return not Path((entry / "gitdir").read_text(errors="surrogateescape").strip()).parent.exists()
    except (FileNotFoundError, NotADirectoryError):
        return True
