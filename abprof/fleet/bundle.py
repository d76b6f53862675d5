"""Bundles: what a run is measured from, for machines that share no folder with it: the sides' files and the workloads.

A bundle is one file (abprof/sides/bundles.py), named by its content, and kept under that name on the other machine:

- CACHE/cargo/NAME/repo: a repository with the commits; its working tree is `.abprof/workloads`
- CACHE/cargo/NAME.use: held, shared, by every process that uses it
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
from abprof.measure import RunContext
from abprof.records import Checkout, Record, Run
from abprof.records.errors import AbprofError
from abprof.sides import Repository, releases
from abprof.sides.bundles import carried, head, pack, unpack
from abprof.system import locks as leases
from abprof.system.trees import remove_tree

_JUDGE = ".abprof/workloads"
_RELEASES = ".abprof/releases"  # each under the hash of its files
_MOST_KEPT = 8  # unused bundles


class Cargo(Record, frozen=True, kw_only=True):
    """A bundle's description: two runs of the same commits and workloads have the same name."""

    name: str  # hash of its content
    object_format: str = "sha1"  # of the repository: sha1, sha256
    commits: dict[str, str] = {}  # side id -> commit (a working tree's snapshot); no releases
    python: str = ""  # the interpreter that runs abprof on the sending machine
    abprof: str = ""  # edition() there


def load(place: RunContext, trees: Sequence[Checkout], judge: Path, file: Path) -> Cargo:
    """Write the bundle `file` of a run: its sides from `trees`, its workloads from the folder `judge`.

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
    """Return the cargo's repository on this machine, and keep it in use until this process ends. `fetch` returns the bundle's bytes.

    Raises AbprofError if the bytes are another bundle's.
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
    """The run's head for other machines: there a working tree is a commit."""
    commits = cargo.commits
    sides = (
        msgspec.structs.replace(s, kind="commit", commit=commits[s.id]) if s.kind == "worktree" else s
        for s in run.sides
    )
    return msgspec.structs.replace(run, sides=tuple(sides))


def here(run: Run, cargo: Cargo, home: Path) -> Run:
    """The head on the machine that unloaded the cargo at `home`: with its workloads' folder and its interpreter."""
    _, _, digest = run.workloads_from.rpartition(" sha256:")
    python = {side: sys.executable if path == cargo.python else path for side, path in run.options.python.items()}
    options = msgspec.structs.replace(run.options, python=python, workloads_from="")
    return msgspec.structs.replace(run, workloads_from=f"{home / _JUDGE} sha256:{digest}", options=options)


def sweep(cache: Path, *, everything: bool = False) -> list[str]:
    """Remove bundles of other machines' runs that no process uses, except the last used; a line for each."""
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
    """Version and content hash of this abprof: both machines must run the same code."""
    top, digest = Path(abprof.__file__).parent, hashlib.sha256()
    for path in sorted(top.rglob("*.py")):
        if "_bundled" not in path.parts:
            digest.update(f"{path.relative_to(top)}\0".encode() + path.read_bytes())
    return f"{abprof.__version__} {digest.hexdigest()[:12]}"


def _make(home: Path, cargo: Cargo, data: bytes) -> None:
    """Unpack under another name, then rename: a folder of this name is whole."""
    new = home.with_name(f"{home.name}.new")
    remove_tree(new)  # its maker was killed: the lock is ours
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
