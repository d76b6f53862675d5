"""Installed releases, kept by content.

- CACHE/dists/files/CONTENT/: the files that a wheel installs; CONTENT is their hash (keys.content)
- CACHE/dists/wheels/SHA256.json: what a wheel of that hash was installed as
- CACHE/dists/asked/HASH.json: which wheel a release was when the index was last asked, for when it does not answer
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from abprof.builds import keys
from abprof.records import UNREADABLE, Record, Side
from abprof.records.errors import AbprofError
from abprof.sides.releases import pip
from abprof.sides.releases.wanted import Wanted, parse

_DIGITS = 20  # of a hash, in names of folders
_SCRATCH = "tmp"  # how the name of an installation's own folder begins


class Installed(Record, frozen=True):
    """A wheel of known content, installed."""

    file: str
    content: str  # SHA-256 over the installed files


def resolve(
    spec: str, python: str, cache: Path, timeout: float, say: Callable[[str], None]
) -> tuple[Side, tuple[str, ...]]:
    """The side that `dist:NAME==VERSION` is for the interpreter `python`, and lines of notes about it.

    Its files are in the cache then. Raises AbprofError.
    """
    wanted = parse(spec)
    home = cache / "dists"
    try:
        home.mkdir(parents=True, exist_ok=True)
        with FileLock(home / "lock"), _scratch(home) as scratch:
            found, notes = _found(wanted, python, home, Path(scratch), timeout)
            made = _kept(home, found) or _install(wanted, found, python, home, Path(scratch), timeout, say)
    except OSError as error:
        raise AbprofError(f"cannot be installed: {error.strerror}", where=spec) from error
    if found.yanked:
        notes += (f"{wanted.requirement} was withdrawn by its authors: {found.yanked}",)
    return (
        Side(
            id="base",
            spec=spec,
            kind="dist",
            commit=made.content,
            tree=made.content,
            label=wanted.requirement,
            subject=f"{made.file} sha256:{found.sha256}",
        ),
        notes,
    )


def put(cache: Path, side: Side, path: Path) -> None:
    """The files of an installed release at `path`. Raises AbprofError when they are not what they were."""
    source = _files(cache / "dists", side.commit)
    try:
        shutil.copytree(source, path, symlinks=True)
    except (OSError, shutil.Error) as error:
        raise AbprofError(f"cannot copy {side.label}: {error}", where=str(path)) from error
    if _content(path) != side.commit:
        raise AbprofError(f"the files of {side.label} were changed", where=str(source), advice="run again")


def take_in(cache: Path, content: str, folder: Path) -> None:
    """Keep a release that was installed elsewhere, as its files lie in `folder`. Raises AbprofError when they are others."""
    if _content(folder) != content:
        raise AbprofError("a release's files are not what was sent", where=str(folder))
    home = cache / "dists"
    try:
        home.mkdir(parents=True, exist_ok=True)
        with FileLock(home / "lock"), _scratch(home) as scratch:
            place = _files(home, content)
            if _content(place) != content:
                shutil.copytree(folder, Path(scratch) / "files", symlinks=True)
                place.parent.mkdir(exist_ok=True)
                shutil.rmtree(place, ignore_errors=True)
                (Path(scratch) / "files").rename(place)
    except (OSError, shutil.Error) as error:
        raise AbprofError(f"a release cannot be kept: {error}", where=str(home)) from error


def known(cache: Path) -> Iterator[str]:
    """`NAME==VERSION` of every release that is installed in the cache."""
    for kept in sorted((cache / "dists" / "wheels").glob("*.json")):
        with contextlib.suppress(OSError, msgspec.DecodeError):
            made = msgspec.json.decode(kept.read_bytes(), type=Installed)
            name, _, rest = made.file.partition("-")
            yield f"{name}=={rest.partition('-')[0]}"


@contextlib.contextmanager
def _scratch(home: Path) -> Iterator[str]:
    """A folder for one installation; what killed ones left goes first. Whoever asks holds the lock."""
    for left in _unfinished(home):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=home) as scratch:
        yield scratch


def _unfinished(home: Path) -> list[Path]:
    return sorted(home.glob(f"{_SCRATCH}*"))


def sweep(cache: Path, *, everything: bool) -> Iterator[str]:
    """Remove what killed installations left, or `everything` that is installed; a line for each."""
    home = cache / "dists"
    if not home.is_dir():
        return
    with contextlib.suppress(Timeout, OSError), FileLock(home / "lock", timeout=0):
        for folder in _unfinished(home):
            shutil.rmtree(folder, ignore_errors=True)
            yield f"removed the unfinished installation {folder.name}"
    if not everything:
        return
    for folder in sorted((home / "files").glob("*")):
        shutil.rmtree(folder, ignore_errors=True)
        yield f"removed the installed release {folder.name}"
    shutil.rmtree(home, ignore_errors=True)


def _found(wanted: Wanted, python: str, home: Path, scratch: Path, timeout: float) -> tuple[pip.Found, tuple[str, ...]]:
    """The index's answer, or the one that it gave before where nothing answers now."""
    asked = hashlib.sha256(f"{wanted.requirement}\0{python}".encode()).hexdigest()[:_DIGITS]
    known = home / "asked" / f"{asked}.json"
    try:
        found = pip.find(wanted, python, scratch, timeout)
    except pip.Unreachable:
        before = _before(known)
        if before is None or not _kept(home, before):
            raise
        return before, (f"no package index answers: {wanted.requirement} is the {before.file} of an earlier run",)
    _write(known, msgspec.json.encode(found))
    return found, ()


def _before(known: Path) -> pip.Found | None:
    try:
        return msgspec.json.decode(known.read_bytes(), type=pip.Found)
    except (OSError, *UNREADABLE):
        return None


def _kept(home: Path, found: pip.Found) -> Installed | None:
    """What this wheel was installed as, where its files are still those; without the wheel's hash it cannot be told."""
    try:
        made = msgspec.json.decode((home / "wheels" / f"{found.sha256}.json").read_bytes(), type=Installed)
        return made if _content(_files(home, made.content)) == made.content else None
    except (OSError, *UNREADABLE):
        return None


def _install(
    wanted: Wanted,
    found: pip.Found,
    python: str,
    home: Path,
    scratch: Path,
    timeout: float,
    say: Callable[[str], None],
) -> Installed:
    say(f"installing {found.file} into abprof's cache, without its dependencies")
    target = scratch / "files"
    pip.install(wanted, found, python, target, scratch, timeout)
    pip.without_traces(target)
    made = Installed(found.file, _content(target))
    place = _files(home, made.content)
    place.parent.mkdir(exist_ok=True)
    shutil.rmtree(place, ignore_errors=True)  # one whose files were changed
    target.rename(place)
    if found.sha256:
        _write(home / "wheels" / f"{found.sha256}.json", msgspec.json.encode(made))
    return made


def _files(home: Path, content: str) -> Path:
    return home / "files" / content[:_DIGITS]


def _content(folder: Path) -> str:
    """Of a folder that is not there it is that of an empty one, which no wheel installs."""
    return keys.content(folder, keys.files(folder))


def _write(path: Path, text: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_bytes(text)
    partial.replace(path)
