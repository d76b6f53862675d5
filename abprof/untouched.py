"""What must not change while code under test runs, looked at from outside: file by file, by what a write leaves behind.

A target's code runs as the user who runs abprof. Where nothing contains it (abprof/contain.py) it can write to the base's
build, to the workloads that judge or to the worker's own code, and then what is measured is not what was built. Size, inode
and time of change (ctime, which no ordinary process can set) are taken before, and compared after the builds and after each
cell: a file that is put back as it was differs too. Who wrote, this cannot tell.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from abprof import paths
from abprof.model import Build, Checkout, Touched

MOST = 100_000  # files that are watched; of what is beyond nothing is known
_MOST_ELSEWHERE = 2_000
_MOST_TOLD = 50  # a run's findings that are kept
# What a cache of compiled code loads. Its locks, indexes and logs change with every use.
_CODE = (".so", ".py", ".pyc", ".pth", ".cubin", ".hsaco", ".ptx", ".json")
_ADDED = (".so", ".py", ".pth")  # what a later import could find
_IN_HOME = (".ssh", ".config", ".config/systemd/user", ".local/bin")

How = Literal["changed", "removed", "added"]
Print = tuple[int, int, int]  # size, inode, ns of the last change


class Watch:
    """Begins when it is made. Nothing of the run may be at work in that moment."""

    def __init__(
        self,
        judging: Iterable[Path],
        trees: Iterable[Checkout],
        elsewhere: Iterable[Path] = (),
        scratch: Path | None = None,
    ) -> None:
        """`judging`: folders of what judges; `scratch`: where expected values will lie; `elsewhere`: places that no verdict
        rests on, whose changes are only told."""
        self._roots = dict.fromkeys(judging, "") | ({scratch: "scratch"} if scratch else {})
        self._building = True
        self._trees = [Path(tree.path) for tree in trees]
        self._elsewhere = list(elsewhere)
        self._hashes: dict[str, str] = {}
        self._known = self._now()
        self._outside = _prints(self._elsewhere, _MOST_ELSEWHERE)
        self._told: set[tuple[str, str]] = set()
        self._strict = bool(self._elsewhere)

    def built(self, builds: Iterable[Build], moment: str) -> Iterator[Touched]:
        """Also watch what was built, once it has been compared with what it was when it was. The worktrees, of which builds are
        copies, are done with."""
        yield from self.look(moment)
        self._trees, self._building = [], False
        for build in builds:
            if build.failure or not build.path:
                continue
            for made in build.artefacts:
                if made.path.startswith(f"{build.path}/"):
                    self._hashes[made.path] = made.sha256
                    if _sha256(made.path) != made.sha256:
                        yield from self._tell(made.path, "changed", moment)
            self._roots |= {Path(build.path) / name: name for name in ("src", "out", "caches")}
        self._known = self._now()

    def look(self, moment: str) -> Iterator[Touched]:
        """What has changed since the last look."""
        before, after = self._known, self._now()
        self._known = after
        for path in before.keys() - after.keys():
            yield from self._tell(path, "removed", moment)
        for path, seen in after.items():
            if path not in before:
                planted = self._building and self._within(
                    path, "scratch"
                )  # nobody expects anything before it is measured
                if planted or (self._within(path, "src") and path.endswith(_ADDED)):
                    yield from self._tell(path, "added", moment)
            elif before[path] != seen and (self._strict or _sha256(path) != self._hashes.get(path)):
                yield from self._tell(path, "changed", moment)
        yield from self._look_outside(moment)

    def _look_outside(self, moment: str) -> Iterator[Touched]:
        before, after = self._outside, _prints(self._elsewhere, _MOST_ELSEWHERE)
        self._outside = after
        for path in sorted(before.keys() | after.keys()):
            if before.get(path) != after.get(path):
                how: How = "added" if path not in before else "removed" if path not in after else "changed"
                yield from self._tell(path, how, moment, falsifies=False)

    def _tell(self, path: str, how: How, moment: str, *, falsifies: bool = True) -> Iterator[Touched]:
        if (path, how) not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add((path, how))
            yield Touched(path=path, how=how, moment=moment, falsifies=falsifies)

    def _within(self, path: str, name: str) -> bool:
        return any(kind == name and path.startswith(f"{root}/") for root, kind in self._roots.items())

    def _now(self) -> dict[str, Print]:
        found: dict[str, Print] = {}
        for root, kind in self._roots.items():
            for file in _files(root):
                code = str(file) in self._hashes or (kind == "caches" and file.name.endswith(_CODE))
                if kind in {"", "src"} or code or (kind == "scratch" and file.suffix == ".expected"):
                    _add(found, file)
                if len(found) >= MOST:
                    return found
        for tree in self._trees:
            for file in _files(tree):
                _add(found, file)
                if len(found) >= MOST:
                    return found
        return found


def elsewhere(repository: Path, git: Path, runs_dir: Path, environ: Mapping[str, str]) -> list[Path]:
    """Where code that means ill would write, and nobody else does while a machine measures by itself: the repository, git's
    settings and hooks, results of other runs, and the first level of the home folder."""
    home = Path(environ["HOME"]) if environ.get("HOME") else paths.home()
    homes = [home, *(home / name for name in _IN_HOME)] if home else []
    older = sorted(runs_dir.glob("*/run.json"))[-200:]
    return [repository, git, git / "hooks", git / "refs" / "heads", *older, *homes]


def _files(root: Path) -> Iterator[Path]:
    """Files and links below a folder; git's own and what Python compiled are none."""
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in {".git", "__pycache__"}]
        for name in files:
            if name != ".git":
                yield Path(folder) / name


def _add(found: dict[str, Print], path: Path) -> None:
    with contextlib.suppress(OSError):
        seen = path.lstat()
        found[str(path)] = (seen.st_size, seen.st_ino, seen.st_ctime_ns)


def _prints(places: Iterable[Path], most: int) -> dict[str, Print]:
    """Files at these places, and the files directly in folders among them."""
    found: dict[str, Print] = {}
    for place in places:
        if not place.is_dir():
            _add(found, place)
            continue
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                if len(found) < most and not entry.is_dir(follow_symlinks=False):
                    _add(found, Path(entry.path))
    return found


def _sha256(path: str) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return ""
