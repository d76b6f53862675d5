"""Detect tampering: find the files whose size, inode or ctime changed while code under test ran.

Code under test runs as the user who runs abprof. Without a sandbox it can change the base's build, the workloads or the
worker's code, and so falsify the measurement. So abprof takes fingerprints of these files before the builds, and
compares them after the builds and after each cell. Programs cannot set ctime, so a file that was changed and restored
is detected too. Compiled Python (`__pycache__`) is also watched, because an import prefers it to the source. Folders
count as well: one that is renamed away while a worker starts, with another in its place, and put back afterwards.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from abprof.builds import keys
from abprof.records import STANDING_IN, Build, Checkout, Package, Touched
from abprof.system import doorway
from abprof.system.trees import walk

_MOST_REPORTED = 50  # largest number of reports in a run
# Suffixes of the files in a cache of compiled code that processes load. Other files (locks, logs) change with every use.
_LOADED = (*keys.IMPORTABLE, ".cubin", ".hsaco", ".ptx")  # suffixes of files in a build that processes load
# Kind of folder -> suffixes of watched files (other kinds: all files), and of added files to report.
_SEEN = {"caches": keys.CODE, "scratch": (".expected",), "out": keys.COMPILED}
_ADDED = {"out": keys.COMPILED, "caches": keys.COMPILED}

How = Literal["changed", "removed", "added"]
Print = tuple[int, int, int]  # size, inode, ns of the last change


class Watch:
    """Finds files that changed since this object was made. A run makes it before it starts any process."""

    def __init__(
        self,
        judging: Iterable[Path],
        trees: Collection[Checkout],
        scratch: Path | None = None,
        packages: Iterable[Package] = (),
        *,
        strict: bool = False,
    ) -> None:
        """Take fingerprints of the files in `judging` (folders of workloads and worker code), `trees` (the sides'
        checkouts) and `scratch` (expected values), and hashes of the inputs of `packages`. `strict`: code that may be
        hostile runs without a sandbox, so a file that was changed and restored counts, too."""
        self._roots = dict.fromkeys(judging, "judging") | ({scratch: "scratch"} if scratch else {})
        for tree in trees:  # watched only until the builds are made, because builds are copies of the trees
            self._roots.setdefault(Path(tree.path), "tree")
        self._building = True
        self._strict = strict
        self._inputs = {}  # (side, package) -> name -> digest, "" if unreadable
        for tree, package in itertools.product(trees, packages):
            names = keys.inputs(Path(tree.path), package.of(tree.side))
            self._inputs[tree.side.id, package.name] = {name: keys.content(Path(tree.path), name) for name in names}
        self._decide: set[str] = set()  # paths of the copies of inputs
        self._hashes: dict[str, str] = {}
        self._builds: dict[str, Path] = {}  # path of a file that a build loaded -> the build's folder
        self._known = self._fingerprints(self._roots)
        self._folders = self._folder_fingerprints()
        self._reported: set[tuple[str, str]] = set()

    def built(self, builds: Iterable[Build], moment: str) -> Iterator[Touched]:
        """Yield the files in `builds` that changed after they were made. From then on, watch the builds and no longer
        the checkouts."""
        yield from self.look(moment)
        fresh = [build for build in builds if not build.failure and build.path]
        of = {a: Path(build.path) for build in fresh for a in build.artefacts if a.path.startswith(f"{build.path}/")}
        made = list(of)
        # Take fingerprints first: code under test may run during the comparison.
        self._hashes |= {artefact.path: artefact.sha256 for artefact in made}
        self._builds |= {artefact.path: place for artefact, place in of.items()}
        added = {Path(build.path) / name: name for build in fresh for name in keys.FOLDERS}
        added = {root: name for root, name in added.items() if root not in self._roots}
        self._roots |= added
        self._decide |= {str(Path(build.path) / "src" / name) for build in fresh for name in self._inputs_of(build)}
        self._known |= self._fingerprints(added)
        self._folders = self._folder_fingerprints()
        for artefact in made:
            if self._sha256(artefact.path) != artefact.sha256:
                yield from self._report(artefact.path, "changed", moment)
        for build in fresh:
            yield from self._copied(build, moment)
            for name in ("src", "out"):
                for compiled in keys.importable(Path(build.path) / name, keys.COMPILED):
                    if "__pycache__" in compiled:  # build.py removes these files
                        yield from self._report(f"{build.path}/{name}/{compiled}", "added", moment)
        self._known = {path: seen for path, seen in self._known.items() if self._kind(path) != "tree"}
        self._roots = {root: kind for root, kind in self._roots.items() if kind != "tree"}
        self._building = False

    def _copied(self, build: Build, moment: str) -> Iterator[Touched]:
        """Yield the copied source files in `build` that the build itself changed."""
        src = Path(build.path) / "src"
        for name, digest in self._inputs_of(build).items():
            now = keys.content(src, name)
            if now != digest:
                how: How = "changed" if now else "removed"
                yield from self._report(str(src / name), how, moment, falsifies=self._strict)

    def _inputs_of(self, build: Build) -> dict[str, str]:
        side = "base" if build.side in STANDING_IN else build.side
        return self._inputs.get((side, build.kernel), {})

    def look(self, moment: str, *, contents: bool = False) -> Iterator[Touched]:
        """Yield the watched files that changed since the last call. `moment`: when this was, as text for the report.
        `contents`: also read again every file that the builds loaded."""
        before, self._known = self._known, self._fingerprints(self._roots)
        for path, how in _changes(before, self._known):
            kind = self._kind(path)
            if how == "added":  # expected values are added while cells are measured
                matters = self._building if kind == "scratch" else path.endswith(_ADDED.get(kind, keys.IMPORTABLE))
                if matters:
                    yield from self._report(path, how, moment)
            elif how == "removed" or self._strict or self._sha256(path) != self._hashes.get(path):
                # A package may write logs and tuning results into its own folder: these do not falsify results.
                decides = path in self._decide or path in self._hashes or path.endswith(_LOADED)
                yield from self._report(path, how, moment, falsifies=kind != "src" or decides)
        for path, digest in self._hashes.items() if contents else ():
            if self._sha256(path) != digest:
                yield from self._report(path, "changed", moment)
        old, self._folders = self._folders, self._folder_fingerprints()
        for path in sorted(old.keys() & self._folders.keys()):
            # Renaming changes a folder and the folder that it is in; files that come and go change only one of these.
            now, above = self._folders[path], str(Path(path).parent)
            moved = now[2] != old[path][2] and self._folders.get(above) != old.get(above)
            if moved or now[1] != old[path][1]:
                yield from self._report(path, "changed", moment)

    def _report(self, path: str, how: How, moment: str, *, falsifies: bool = True) -> Iterator[Touched]:
        if (path, how) not in self._reported and len(self._reported) < _MOST_REPORTED:
            self._reported.add((path, how))
            yield Touched(path=path, how=how, moment=moment, falsifies=falsifies)

    def _sha256(self, path: str) -> str:
        try:
            return doorway.sha256(Path(path), self._builds[path]) if path in self._builds else ""
        except OSError:
            return ""

    def _kind(self, path: str) -> str:
        return next((kind for root, kind in self._roots.items() if path.startswith(f"{root}/")), "")

    def _fingerprints(self, roots: Mapping[Path, str]) -> dict[str, Print]:
        """Return path -> fingerprint of the watched files in the folders `roots` (folder -> kind, e.g. "caches")."""
        found: dict[str, Print] = {}
        for root, kind in roots.items():
            for folder, folders, names in walk(root):
                folders[:] = [name for name in folders if name != ".git"]
                for path in (f"{folder}/{name}" for name in names if name != ".git"):
                    if path in self._hashes or path.endswith(_SEEN.get(kind, "")):
                        _add(found, path)
        return found

    def _folder_fingerprints(self) -> dict[str, Print]:
        """Return path -> fingerprint of the roots, the folders that they are in (a build's up to the cache), and the
        folders of code and sources in builds."""
        found: dict[str, Print] = {}
        for root, kind in self._roots.items():
            for folder in (root, *root.parents[: 4 if kind in keys.FOLDERS else 1]):
                _add(found, str(folder), folder=True)
        for path in self._hashes.keys() | self._decide:
            for folder in Path(path).parents if self._kind(path) in {"src", "out"} else ():
                if str(folder) in found:
                    break
                _add(found, str(folder), folder=True)
        return found


def _changes(before: Mapping[str, Print], after: Mapping[str, Print]) -> Iterator[tuple[str, How]]:
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) != after.get(path):
            yield path, "added" if path not in before else "removed" if path not in after else "changed"


def _add(found: dict[str, Print], path: str, *, folder: bool = False) -> None:
    with contextlib.suppress(OSError):
        seen = os.lstat(path)
        found[path] = (0 if folder else seen.st_size, seen.st_ino, seen.st_ctime_ns)
