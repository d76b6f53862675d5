"""Find, copy and hash the files of workloads."""

from __future__ import annotations

import hashlib
import os
import shutil
import types
from collections.abc import Mapping, Sequence
from pathlib import Path

from abprof.records.errors import AbprofError
from abprof.records.messages import WRAPPED
from abprof.system import doorway

_IGNORED = shutil.ignore_patterns("__pycache__", ".git")


def find(folder: Path, names: Sequence[str], by: str = "--workloads") -> dict[str, Path]:
    """Return workload -> its file. `folder`: the workloads' folder or one workload's file; `names`: workloads to find.
    Raises AbprofError if there is no workload, or if one of `names` (given by the option `by`) is missing."""
    listed = [folder] if folder.is_file() else sorted(folder.glob("*.py"))
    files = {p.stem: p for p in listed if p.suffix == ".py" and not p.name.startswith("_")}
    if not files:
        raise AbprofError("no workload files", where=str(folder), advice="abprof init proposes a first one")
    for name in names:
        if name not in files:
            known = ", ".join(files)
            raise AbprofError(f"no workload {name!r} in {folder}", where=by, advice=f"there are {known}")
    return {name: files[name] for name in names} if names else files


def copy(
    folder: Path,
    place: Path,
    wrapped: Mapping[str, Path] = types.MappingProxyType({}),
    where: str = "abprof.toml",
    root: Path | None = None,
) -> str:
    """Copy the workloads of `folder`, and the benchmark files that they wrap, to `place`; return the copy's SHA-256.

    `wrapped`: path in the repository -> benchmark file or folder; not used if `folder` contains copies of them already.
    `root`: the checkout; links in it may not lead out of it. Raises AbprofError, naming
    `where` if a wrapped file is missing, and for a link that leads to no file, or out of `root`.
    """
    _check_links(folder, root)
    if folder.is_dir():
        shutil.copytree(folder, place, ignore=_IGNORED)
    else:
        for name, file in _workload_files(folder):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, place / name)
    for name, source in {} if (place / WRAPPED).exists() else wrapped.items():
        if not source.exists():
            raise AbprofError("no such file or folder", where=f"{where}: {source}")
        _check_links(source, root)
        target = place / WRAPPED / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=_IGNORED, dirs_exist_ok=True)
        else:
            shutil.copyfile(source, target)
    return content(place)


def _check_links(source: Path, root: Path | None) -> None:
    """Refuse links that code under test could use to get copies of files that it cannot read itself."""
    inside = [source, *(source.rglob("*") if source.is_dir() else source.parent.glob("_*"))]
    for link in (path for path in inside if path.is_symlink()):
        own = root is not None and link.is_relative_to(root)
        where = str(link.relative_to(root) if root and own else link)
        try:
            target = link.resolve(strict=True)
        except (OSError, RuntimeError):  # RuntimeError: a loop of links
            raise AbprofError("this link leads to no file", where=where) from None
        if root and own and not target.is_relative_to(root.resolve()):
            raise AbprofError("this link leads out of the repository", where=where, advice="copy the file there")
        if not target.is_file() and (not target.is_dir() or link.absolute().is_relative_to(target)):
            raise AbprofError("this link leads to its own folder, or to no file", where=where)


def content(folder: Path) -> str:
    """Return the SHA-256 of a workloads folder, or of one workload's file with its helpers (files named `_*`)."""
    digest = hashlib.sha256()
    for name, file in _workload_files(folder):
        digest.update(os.fsencode(name) + b"\0" + doorway.read(file.resolve(), doorway.LARGEST))
    return digest.hexdigest()


def _workload_files(source: Path) -> list[tuple[str, Path]]:
    home = source if source.is_dir() else source.parent
    starts = [source] if source.is_dir() else [source, *source.parent.glob("_*")]
    files = {file for start in starts for file in (start.rglob("*") if start.is_dir() else [start]) if file.is_file()}
    return [(str(p.relative_to(home)), p) for p in sorted(files) if not {"__pycache__", ".git"} & set(p.parts)]
