"""Check out the files of each side for a run, and remove the leftovers of killed runs from the cache.

Each side has a worktree CACHE/worktrees/ID/s0, s1, ...; ID is a hash of the run's id. All these paths have the same
length, because compilers write paths into binaries. CACHE/worktrees/ID.lock is locked while the run lasts.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from abprof.records import Checkout, Side
from abprof.records.errors import AbprofError
from abprof.sides import releases, toolchains
from abprof.sides.git import Git, GitError
from abprof.sides.repository import SOURCE, Folder, Repository, lock_of, open_store
from abprof.system import locks
from abprof.system.trees import remove_tree


@contextlib.contextmanager
def checkouts(
    repository: Repository | Folder, sides: Sequence[Side], *, run: str, submodules: bool = False
) -> Iterator[tuple[Checkout, ...]]:
    """Check out `sides`, yield the checkouts in the same order, and remove the checkouts when the block ends. `run`:
    the run's id. Raises AbprofError if a side cannot be checked out."""
    folder = repository.cache / "worktrees" / hashlib.sha256(run.encode()).hexdigest()[:12]
    lock = folder.with_name(f"{folder.name}.lock")
    if not locks.hold(lock):
        raise AbprofError(f"in use by another abprof process of run {run}; wait until it ends", where=str(folder))
    width = len(str(len(sides) - 1))
    paths = [folder / f"s{place:0{width}}" for place in range(len(sides))]
    made = tuple(Checkout(side=side, path=str(path)) for side, path in zip(sides, paths, strict=True))
    try:
        try:
            remove_tree(folder)  # left by a killed process of the same run
            _prune(repository.cache)
            folder.mkdir(parents=True)
            with ThreadPoolExecutor() as pool:  # git writes the files of all sides at the same time
                for done in [pool.submit(_check_out, repository, one, submodules=submodules) for one in made]:
                    done.result()
        except OSError as error:
            raise AbprofError(f"cannot write the worktrees: {error.strerror}", where=str(folder)) from error
        yield made
    finally:
        remove_tree(folder)
        _prune(repository.cache)
        locks.drop(lock)


def _check_out(place: Repository | Folder, checkout: Checkout, *, submodules: bool) -> None:
    side, path = checkout.side, Path(checkout.path)
    if side.kind == "dist":
        releases.put(place.cache, side, path)
        return
    repository = place.with_commits()
    git = Git(str(repository.store))
    try:
        commit = side.commit
        if side.kind == "worktree":  # the snapshot is a tree; a worktree needs a commit
            commit = git.text("commit-tree", side.tree, "-p", side.commit, "-m", "abprof: the working tree as it was")
        _add(repository.store, path, commit)
        found = Git(str(path)).text("rev-parse", "HEAD^{tree}")
    except GitError as error:
        raise AbprofError(f"cannot check out {side.label}: {error.line_of_git}", where=str(path)) from error
    if found != side.tree:
        raise AbprofError(f"checked out tree {found[:10]} instead of {side.tree[:10]} of {side.label}", where=str(path))
    if submodules:
        _add_submodules(path, (repository.git_dir, repository.common_dir), repository.path, repository.cache)


def _add(store: Path, path: Path, commit: str) -> None:
    # A git command may outlive a killed abprof, and may fail when the same run, resumed, has files at the same path: then
    # `git worktree add` removes its path and its record in the clone. So both have new names, and another command writes files.
    new = path.with_name(f"{path.name}-{secrets.token_hex(8)}")
    with locks.locked(lock_of(store)):
        Git(str(store)).text("worktree", "add", "--detach", "--no-checkout", str(new), commit)
        Git(str(store)).text("worktree", "move", str(new), str(path))
    Git(str(path)).text("reset", "--hard", "--no-recurse-submodules")


def _add_submodules(worktree: Path, git_dirs: Sequence[Path], checkout: Path, cache: Path) -> None:
    """Check out every submodule of `worktree`, recursively, from clones that the user already has. Fetches nothing.
    Raises AbprofError if no clone of a submodule has the required commit."""
    git = Git(str(worktree))
    links = [line.split("\t", 1) for line in git.records("ls-tree", "-r", "-z", "HEAD") if line.startswith("160000 ")]
    settings = ("config", "-z", "--blob", "HEAD:.gitmodules", "--get-regexp", r"^submodule\..*\.path$")
    listed = [entry.split("\n", 1) for entry in ((git.maybe(*settings) or "") if links else "").split("\0") if entry]
    names = {path: key.removeprefix("submodule.").removesuffix(".path") for key, path in listed}
    for head, path in links:
        name, commit, link = names.get(path, ""), head.split()[2], checkout / path / ".git"
        if not name or ".." in Path(name).parts or name.startswith(("/", "-")):
            raise AbprofError(".gitmodules has no safe name for this submodule", where=f"submodule {name or path!r}")
        copies = [folder / "modules" / name for folder in git_dirs]
        copies += [checkout / path / link.read_text().strip().removeprefix("gitdir: ")] if link.is_file() else []
        copy = next((one.resolve() for one in copies if _holds(one, commit)), None)
        where = f"submodule {name!r} ({path}) at {commit[:10]}"
        if copy is None:
            advice = "run git submodule update --init --recursive in your checkout, or git fetch in the submodule"
            raise AbprofError("your checkout lacks this commit", where=where, advice=advice)
        store = open_store(cache, copy / "objects")
        try:
            (worktree / path).rmdir()  # git made an empty folder
            _add(store, worktree / path, commit)
        except GitError as error:
            raise AbprofError(error.line_of_git, where=where) from error
        _add_submodules(worktree / path, (copy,), checkout / path, cache)


def _holds(repository: Path, commit: str) -> bool:
    found = Git(str(repository)).maybe("cat-file", "-e", f"{commit}^{{commit}}") if repository.is_dir() else None
    return found is not None


def sweep(cache: Path, *, everything: bool = False) -> list[str]:
    """Remove from the cache what killed runs left there, and clones of repositories that no longer exist.
    With `everything`, remove all clones, releases and environments that no process uses. Return a message for each removal."""
    cache = cache.expanduser().absolute()
    lines = [line for name in ("worktrees", "index") for line in _abandoned(cache / name)]
    _prune(cache)
    lines += _clones(cache / "repos", everything)
    lines += [_removed(gone, "left by a run that ended") for gone in cache.glob("*/.gone-*")]
    return [*lines, *(line for of in (releases, toolchains) for line in of.sweep(cache, everything=everything))]


def _abandoned(parent: Path) -> Iterator[str]:
    for name in {path.stem for path in parent.glob("[!.]*")}:
        folder = parent / name
        with locks.abandoned(folder.with_name(f"{name}.lock")) as free:
            if free and folder.exists():
                yield _removed(folder, "left by a run that ended")


def _clones(repos: Path, everything: bool) -> Iterator[str]:
    for name in {path.stem for path in repos.glob("[!.]*")}:
        store = repos / name
        with locks.abandoned(lock_of(store)) as free, locks.abandoned(repos / f"{name}.use") as unused:
            worktrees = [path for path in store.glob("worktrees/*") if not path.name.startswith(".gone-")]
            if free and unused and store.exists() and not worktrees:
                source = store / SOURCE
                borrows = source.read_text(errors="surrogateescape") if source.exists() else ""
                if everything:
                    yield _removed(store, "clone")
                elif not Path(borrows).exists():
                    yield _removed(store, f"clone of {borrows}, which no longer exists")


def _removed(path: Path, what: str) -> str:
    if remove_tree(path):
        return f"removed {path} ({what})"
    return f"could not remove {path} ({what}): something in it is in use or belongs to another user"


def _prune(cache: Path) -> None:
    """Remove git's records of worktrees whose folders no longer exist, from all clones in the cache."""
    # `git worktree prune` would keep the record of a worktree if git was killed while making the worktree.
    for store in (cache / "repos").glob("*/worktrees"):
        with locks.locked(lock_of(store.parent)):  # no process is adding one
            for entry in list(store.iterdir()) if store.is_dir() else ():
                link = entry / "gitdir"
                place = link.read_text(errors="surrogateescape").strip() if link.is_file() else ""
                if not place or not (entry / place).parent.exists():  # git may write it relative to the record
                    remove_tree(entry)
