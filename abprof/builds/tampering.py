"""Tamper detection: finds files that changed while code under test ran, by size, inode and ctime.

A target's code runs as the user who runs abprof. Without a sandbox it can write to the base's build, to the workloads or to the
worker's own code, and then abprof does not measure what was built. The prints are taken before, and compared after the builds and
after each cell. No ordinary process can set ctime, so a file that is put back differs too. Which process wrote is not known.
Compiled Python (`__pycache__`) counts like source: workers write none, and would load it in place of the source.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from abprof.builds import keys
from abprof.records import Build, Checkout, Package, Touched
from abprof.system import paths
from abprof.system.trees import tree_hash

MOST = 100_000  # files that are watched; further ones are not
_MOST_ELSEWHERE = 2_000
_MOST_REPORTED = 50  # findings of a run
# Files that are loaded from a cache of compiled code. Its locks, indexes and logs change with every use.
_CODE = (".so", ".py", ".pyc", ".pth", ".cubin", ".hsaco", ".ptx", ".json")
_LOADED = (*keys.IMPORTABLE, ".cubin", ".hsaco", ".ptx")  # beside a package's inputs
# Kind of folder -> suffixes of files that are watched, and of added files that matter.
_SEEN = {"caches": _CODE, "scratch": (".expected",)}
_ADDED = {"out": keys.COMPILED, "caches": keys.COMPILED}
_IN_HOME = (".ssh", ".config", ".config/systemd/user", ".local/bin")

How = Literal["changed", "removed", "added"]
Print = tuple[int, int, int]  # size, inode, ns of the last change
Inputs = Mapping[tuple[str, str], Mapping[str, str]]  # (side, package) -> name -> digest, as of `inputs_of`


class Watch:
    """Watches from the moment it is made, when no process of the run may be at work."""

    def __init__(
        self,
        judging: Iterable[Path],
        trees: Iterable[Checkout],
        elsewhere: Iterable[Path] = (),
        scratch: Path | None = None,
        inputs: Inputs = types.MappingProxyType({}),
    ) -> None:
        """`judging`: folders of workloads and worker code; `elsewhere`: places whose changes are reported and falsify nothing;
        `scratch`: folder of expected values; `inputs`: hashes of the files that builds are made from."""
        self._roots = dict.fromkeys(judging, "") | ({scratch: "scratch"} if scratch else {})
        self._building = True
        self._trees = [Path(tree.path) for tree in trees]
        self._elsewhere = list(elsewhere)
        self._inputs = inputs
        self._decide: set[str] = set()  # copies of inputs
        self._hashes: dict[str, str] = {}
        self._known = self._now()
        self._outside = _prints(self._elsewhere, _MOST_ELSEWHERE)
        self._reported: set[tuple[str, str]] = set()
        self._strict = bool(self._elsewhere)

    def built(self, builds: Iterable[Build], moment: str) -> Iterator[Touched]:
        """Compare builds with their records, and watch them; the worktrees, of which they are copies, no longer."""
        yield from self.look(moment)
        fresh = [build for build in builds if not build.failure and build.path]
        self._begin_with(fresh)
        for build in fresh:
            for path, sha256 in _own(build).items():
                if _sha256(path) != sha256:
                    yield from self._report(path, "changed", moment)
            yield from self._copied(build, moment)
            for name in ("src", "out"):
                for compiled in keys.importable(Path(build.path) / name, keys.COMPILED):
                    if "__pycache__" in compiled:  # build.py leaves none there
                        yield from self._report(f"{build.path}/{name}/{compiled}", "added", moment)
        trees = tuple(f"{tree}/" for tree in self._trees)
        self._known = {path: seen for path, seen in self._known.items() if not path.startswith(trees)}
        self._trees, self._building = [], False

    def _begin_with(self, builds: Iterable[Build]) -> None:
        """Take the prints of builds before comparing them, which takes time in which code under test may run."""
        for build in builds:
            self._hashes |= _own(build)
        fresh = {Path(build.path) / name: name for build in builds for name in ("src", "out", "caches")}
        fresh = {root: name for root, name in fresh.items() if root not in self._roots}
        self._roots |= fresh
        self._known |= self._of(fresh)

    def _copied(self, build: Build, moment: str) -> Iterator[Touched]:
        """Compare the build's copies of its inputs with their originals. A package may rewrite its own during the build: this falsifies
        a run only if code may be untrusted and no sandbox kept it from other builds."""
        src = Path(build.path) / "src"
        for name, digest in self._inputs.get((build.side, build.kernel), {}).items():
            self._decide.add(str(src / name))
            now = _content(src, name)
            if now != digest:
                how: How = "changed" if now else "removed"
                yield from self._report(str(src / name), how, moment, falsifies=self._strict)

    def look(self, moment: str) -> Iterator[Touched]:
        """Yield what changed since the last look."""
        before, after = self._known, self._now()
        self._known = after
        for path in before.keys() - after.keys():
            yield from self._report(path, "removed", moment, falsifies=self._matters(path))
        for path, seen in after.items():
            if path not in before:
                kind = self._kind(path)
                # No value is expected before something is measured.
                planted = self._building if kind == "scratch" else path.endswith(_ADDED.get(kind, keys.IMPORTABLE))
                if planted:
                    yield from self._report(path, "added", moment)
            elif before[path] != seen and (self._strict or _sha256(path) != self._hashes.get(path)):
                yield from self._report(path, "changed", moment, falsifies=self._matters(path))
        yield from self._look_outside(moment)

    def _look_outside(self, moment: str) -> Iterator[Touched]:
        before, after = self._outside, _prints(self._elsewhere, _MOST_ELSEWHERE)
        self._outside = after
        for path in sorted(before.keys() | after.keys()):
            if before.get(path) != after.get(path):
                how: How = "added" if path not in before else "removed" if path not in after else "changed"
                yield from self._report(path, how, moment, falsifies=False)

    def _report(self, path: str, how: How, moment: str, *, falsifies: bool = True) -> Iterator[Touched]:
        if (path, how) not in self._reported and len(self._reported) < _MOST_REPORTED:
            self._reported.add((path, how))
            yield Touched(path=path, how=how, moment=moment, falsifies=falsifies)

    def _kind(self, path: str) -> str:
        return next((kind for root, kind in self._roots.items() if path.startswith(f"{root}/")), "")

    def _matters(self, path: str) -> bool:
        """False for files that a package writes into its own folder: logs, tuning results."""
        return self._kind(path) != "src" or path in self._decide or path in self._hashes or path.endswith(_LOADED)

    def _of(self, roots: Mapping[Path, str]) -> dict[str, Print]:
        found: dict[str, Print] = {}
        for root, kind in roots.items():
            for file in _files(root):
                code = str(file) in self._hashes or file.name.endswith(_SEEN.get(kind, keys.COMPILED))
                if kind in {"", "src"} or code:
                    _add(found, file)
                if len(found) >= MOST:
                    return found
        return found

    def _now(self) -> dict[str, Print]:
        found = self._of(self._roots)
        for tree in self._trees if len(found) < MOST else ():
            for file in _files(tree):
                _add(found, file)
                if len(found) >= MOST:
                    return found
        return found


def _own(build: Build) -> dict[str, str]:
    """Files made in the build's own folder: path -> SHA-256 after the build."""
    return {made.path: made.sha256 for made in build.artefacts if made.path.startswith(f"{build.path}/")}


def inputs_of(tree: Path, package: Package) -> dict[str, str]:
    """Inputs of a package: name -> SHA-256, "" if unreadable."""
    return {name: _content(tree, name) for name in keys.inputs(tree, package)}


def _content(tree: Path, name: str) -> str:
    try:
        return tree_hash(tree, [name])
    except OSError:
        return ""


def elsewhere(repository: Path, git: Path, runs_dir: Path, environ: Mapping[str, str]) -> list[Path]:
    """Places where malicious code would write and no other process does on a measuring machine: the repository, git's settings and
    hooks, results of other runs, and the first level of the home folder."""
    home = Path(environ["HOME"]) if environ.get("HOME") else paths.home()
    homes = [home, *(home / name for name in _IN_HOME)] if home else []
    older = sorted(runs_dir.glob("*/run.json"))[-200:]
    return [repository, git, git / "hooks", git / "refs" / "heads", *older, *homes]


def _files(root: Path) -> Iterator[Path]:
    """Files and links below a folder, without .git."""
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name != ".git"]
        for name in files:
            if name != ".git":
                yield Path(folder) / name


def _add(found: dict[str, Print], path: Path) -> None:
    with contextlib.suppress(OSError):
        seen = path.lstat()
        found[str(path)] = (seen.st_size, seen.st_ino, seen.st_ctime_ns)


def _prints(places: Iterable[Path], most: int) -> dict[str, Print]:
    """Prints of these files, and of files directly in these folders."""
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
