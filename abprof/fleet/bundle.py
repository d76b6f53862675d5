"""What a run is measured from, for machines that share no folder with it: the sides' commits or releases, and the judge.

It travels as one file (abprof/sides/bundles.py), named by its content, and is kept under that name where it arrives:

- CACHE/cargo/NAME/repo: a repository with the commits; its working tree is `.abprof/workloads`, the judge
- CACHE/cargo/NAME.use: held, shared, by every process that measures from it
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

import abprof
from abprof.measure.run_context import RunContext
from abprof.records import Checkout, Record, Run
from abprof.records.errors import AbprofError
from abprof.sides import Repository, releases
from abprof.sides.bundles import carried, head, pack, unpack
from abprof.system import locks as leases
from abprof.system.trees import remove_tree

_JUDGE = ".abprof/workloads"
_RELEASES = ".abprof/releases"  # each under the hash of its files
_MOST_KEPT = 8  # cargoes on a machine that no process uses


class Cargo(Record, frozen=True, kw_only=True):
    """What travels, by its content: two runs of the same commits under the same judge have the same."""

    name: str  # the hash of all of it
    object_format: str = "sha1"  # of the repository: sha1, sha256
    commits: dict[str, str] = {}  # side id -> commit; of a working tree that of its snapshot; releases have none
    python: str = ""  # the interpreter that runs abprof where it comes from
    abprof: str = ""  # edition() there


def load(place: RunContext, trees: Sequence[Checkout], judge: Path, file: Path) -> Cargo:
    """Write the bundle `file` of a run whose sides lie in `trees` and whose workloads were copied to `judge`.

    Raises AbprofError.
    """
    commits = [tree for tree in trees if tree.side.kind != "dist"]
    form = place.repository.object_format if isinstance(place.repository, Repository) else "sha1"
    try:
        files = {f"{_JUDGE}/{path.relative_to(judge)}": carried(path) for path in _files(judge)}
        for tree in trees:
            if tree.side.kind == "dist":
                top, name_ = Path(tree.path), f"{_RELEASES}/{tree.side.commit}"
                files |= {f"{name_}/{path.relative_to(top)}": carried(path) for path in _files(top)}
    except OSError as error:
        raise AbprofError(f"cannot be read: {error.strerror}", where=str(error.filename)) from error
    paths = [Path(tree.path) for tree in commits]
    name = pack(paths, files, file, submodules=place.submodules, object_format=form)
    heads = {tree.side.id: head(Path(tree.path)) for tree in commits}
    return Cargo(name=name, object_format=form, commits=heads, python=sys.executable, abprof=edition())


def unload(cache: Path, cargo: Cargo, fetch: Callable[[], bytes]) -> Path:
    """The repository of a cargo on this machine, which is this process's to use from now on. `fetch` gives the bundle where it
    is not here yet.

    Raises AbprofError for bytes that are not that cargo's.
    """
    folder = cache / "cargo"
    home, use = folder / cargo.name, folder / f"{cargo.name}.use"
    with leases.locked(folder / ".lock"):
        leases.hold(use, shared=True)
        if not home.is_dir():
            _make(home, cargo, fetch())
        for release in sorted((home / "repo" / _RELEASES).glob("*")):
            releases.receive(cache, release.name, release)
        os.utime(home)
        sweep(cache)
    return home / "repo"


def elsewhere(run: Run, cargo: Cargo) -> Run:
    """The run's head as other machines are given it: a working tree is a commit there, and is asked for by its hash."""
    commits = cargo.commits
    sides = (
        msgspec.structs.replace(s, kind="commit", commit=commits[s.id]) if s.kind == "worktree" else s
        for s in run.sides
    )
    return msgspec.structs.replace(run, sides=tuple(sides))


def here(run: Run, cargo: Cargo, home: Path) -> Run:
    """The same on the machine that unloaded the cargo at `home`: where its judge lies, and its interpreter."""
    _, _, digest = run.workloads_from.rpartition(" sha256:")
    python = {side: sys.executable if path == cargo.python else path for side, path in run.options.python.items()}
    options = msgspec.structs.replace(run.options, python=python, workloads_from="")
    return msgspec.structs.replace(run, workloads_from=f"{home / _JUDGE} sha256:{digest}", options=options)


def sweep(cache: Path, *, everything: bool = False) -> list[str]:
    """Remove cargoes that no process uses, but for those that were used last; a line for each."""
    folder = cache / "cargo"
    homes = sorted((path for path in folder.glob("*") if path.is_dir()), key=lambda path: -path.stat().st_mtime)
    lines = []
    for home in homes[0 if everything else _MOST_KEPT :]:
        with leases.abandoned(folder / f"{home.name}.use") as free:
            if free:
                remove_tree(home)
                lines.append(f"removed {home}, commits of a run that was measured here for another machine")
    return lines


def edition() -> str:
    """Version and content of this abprof: on two machines with the same, the same code measures."""
    top, digest = Path(abprof.__file__).parent, hashlib.sha256()
    for path in sorted(top.rglob("*.py")):
        if "_bundled" not in path.parts:
            digest.update(f"{path.relative_to(top)}\0".encode() + path.read_bytes())
    return f"{abprof.__version__} {digest.hexdigest()[:12]}"


def _make(home: Path, cargo: Cargo, data: bytes) -> None:
    """Under another name first: what has this one is whole."""
    new = home.with_name(f"{home.name}.new")
    remove_tree(new)  # its maker was killed: we hold the lock
    try:
        new.mkdir(parents=True)
        (new / "bundle").write_bytes(data)
        unpack(new / "bundle", new / "repo", cargo.name, object_format=cargo.object_format)
        (new / "bundle").unlink()
        new.rename(home)
    except OSError as error:
        raise AbprofError(f"cannot be unpacked: {error.strerror}", where=str(home)) from error
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_symlink() or path.is_file())
