"""Bundles: what a run is measured from, for machines that share no folder with it: the sides' files and the workloads.

A bundle is one tar file, named by its content. On the other machine CACHE/bundles/NAME holds `workloads` and, for each side,
`.abprof-sides/CONTENT`; NAME.use is held, shared, by every process that uses it.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

import abprof
from abprof.records import Checkout, Record, Run
from abprof.records.errors import AbprofError
from abprof.sides import Folder
from abprof.system import locks
from abprof.system.trees import files_of, remove_tree, tree_hash

_WORKLOADS = "workloads"
_MOST_KEPT = 8  # unused bundles


class Bundle(Record, frozen=True, kw_only=True):
    """A bundle's description: runs of the same files have bundles of the same name."""

    name: str  # hash of its content
    workloads: str  # hash of the workloads' files
    sides: dict[str, str]  # side id -> hash of its files
    python: str = ""  # the interpreter that runs abprof on the sending machine
    abprof: str = ""  # edition() there

    @property
    def folders(self) -> dict[str, str]:
        """Folder in the bundle -> hash of its files."""
        return {_WORKLOADS: self.workloads, **{f"{Folder.SIDES}/{content}": content for content in self.sides.values()}}


def pack(trees: Sequence[Checkout], workloads: Path, file: Path) -> Bundle:
    """Write the bundle `file` of a run's checkouts and its copied workloads. Raises AbprofError."""
    try:
        hashes = {tree.side.id: _content(Path(tree.path)) for tree in trees}
        folders = {_WORKLOADS: workloads, **{f"{Folder.SIDES}/{hashes[t.side.id]}": Path(t.path) for t in trees}}
        with tarfile.open(file, "w") as tar:
            for name, folder in folders.items():
                for path in files_of(folder):
                    tar.add(folder / path, f"{name}/{path}", recursive=False)
    except OSError as error:
        raise AbprofError(f"cannot be bundled: {error.strerror}", where=str(error.filename)) from error
    mine = _content(workloads)
    name = hashlib.sha256("\n".join([mine, *sorted(hashes.values())]).encode()).hexdigest()[:40]
    return Bundle(name=name, workloads=mine, sides=hashes, python=sys.executable, abprof=edition())


def unpack(cache: Path, bundle: Bundle, fetch: Callable[[], bytes]) -> Path:
    """Return the bundle's folder on this machine, and keep it in use until this process ends. `fetch` returns the tar file.

    Raises AbprofError if the bytes are not that bundle's.
    """
    folder = cache / "bundles"
    home, new = folder / bundle.name, folder / f"{bundle.name}.new"
    with locks.locked(folder / ".lock"):
        locks.hold(folder / f"{bundle.name}.use", shared=True)
        if not home.is_dir():
            remove_tree(new)  # its maker was killed: the lock is ours
            try:
                with tarfile.open(fileobj=io.BytesIO(fetch())) as tar:
                    tar.extractall(new, filter="tar")
                for name, content in bundle.folders.items():
                    if _content(new / name) != content:
                        raise AbprofError("the bundle's files are not what was sent", where=str(new / name))
                new.rename(home)
            except (OSError, tarfile.TarError) as error:
                raise AbprofError(f"the bundle cannot be unpacked: {error}", where=str(home)) from error
            finally:
                shutil.rmtree(new, ignore_errors=True)
        os.utime(home)
        sweep(cache)
    return home


def elsewhere(run: Run, bundle: Bundle) -> Run:
    """The run's head for other machines, where a side is the folder of its files."""
    sides = tuple(msgspec.structs.replace(side, commit=bundle.sides[side.id]) for side in run.sides)
    return msgspec.structs.replace(run, sides=sides)


def here(run: Run, bundle: Bundle, home: Path) -> Run:
    """The head on the machine that unpacked the bundle at `home`: with its workloads' folder and its interpreter."""
    _, _, digest = run.workloads_from.rpartition(" sha256:")
    python = {side: sys.executable if path == bundle.python else path for side, path in run.options.python.items()}
    options = msgspec.structs.replace(run.options, python=python, workloads_from="")
    return msgspec.structs.replace(run, workloads_from=f"{home / _WORKLOADS} sha256:{digest}", options=options)


def sweep(cache: Path, *, everything: bool = False) -> list[str]:
    """Remove bundles of other machines' runs that no process uses, except the last used; a line for each."""
    folder = cache / "bundles"
    homes = sorted((path for path in folder.glob("*") if path.is_dir()), key=lambda path: -path.stat().st_mtime)
    lines = []
    for home in homes[0 if everything else _MOST_KEPT :]:
        with locks.abandoned(folder / f"{home.name}.use") as free:
            if free:
                remove_tree(home)
                lines.append(f"removed {home}, files of a run that was measured here for another machine")
    return lines


def edition() -> str:
    """Version and content hash of this abprof: both machines must run the same code."""
    top = Path(abprof.__file__).parent
    names = [str(path.relative_to(top)) for path in sorted(top.rglob("*.py")) if "_bundled" not in path.parts]
    return f"{abprof.__version__} {tree_hash(top, names)[:12]}"


def _content(folder: Path) -> str:
    return tree_hash(folder, files_of(folder))
