"""What is loaded, by content, and whether all of it may be."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Container
from dataclasses import dataclass, field
from functools import lru_cache

from abprof.records import messages as wire
from abprof.worker.given import HARNESS, INTERPRETER, SYSTEM, Given, folder, mapped_objects
from abprof.worker.installed import installed_from
from abprof.worker.mount import owned


@dataclass(frozen=True, eq=False)
class Places:
    """Where files may come from, by a mount and what the worker was given. Each folder ends with a slash.

    What was found of a module's file is kept: a worker proves itself around every cell, and torch alone has two
    thousand modules.
    """

    own: tuple[str, ...]
    forbidden: tuple[str, ...]
    given: Given
    _known: dict[str, tuple[str, str]] = field(default_factory=dict)

    def of_module(self, file: str) -> tuple[str, str]:
        """The real path of a module's file, and how it stands."""
        if file not in self._known:
            path = os.path.realpath(file)
            self._known[file] = path, self.standing(file, path)
        return self._known[file]

    def standing(self, file: str, path: str, *, library: bool = False) -> str:
        """How a loaded file stands, by the name it was loaded by and its real path: "own"; "environment", which is the
        interpreter's, the system's, or was there at the start; "given", which is of a folder that was; or "outside"."""
        given = self.given
        if path.startswith(self.own):
            return "own"
        if path.startswith((*INTERPRETER, HARNESS)):  # also where these lie below a forbidden folder
            return "environment"
        if path.startswith(self.forbidden):
            return "outside"
        if file in given.loaded or path.startswith(given.installed):
            return "environment"
        # The name may be a link in one of these, to where a package manager or an editable install keeps the file.
        if path.startswith(given.importable) or file.startswith((*given.importable, *given.installed, *INTERPRETER)):
            return "given"
        if library and path.startswith(SYSTEM):
            return "environment"
        return "given" if library and path.startswith(given.linkable) else "outside"


@dataclass(frozen=True)
class _Names:
    """The names of a side's own modules: the package's, and of those that lie beside it (in a namespace that it shares
    with other distributions, or at the root of an installed release) what the side has."""

    top: str
    beside: str  # folder of what lies beside it; "" where that is not the side's
    prefix: str  # "NAMESPACE." or ""

    @classmethod
    def of(cls, mount: wire.Mount) -> _Names:
        namespace, name = owned(mount)
        prefix = f"{namespace}." if namespace else ""
        beside = os.path.join(mount.root, *namespace.split(".")) if namespace or mount.whole else ""  # noqa: PTH118
        return cls(prefix + name, beside, prefix)

    def __contains__(self, name: str) -> bool:
        if name == self.top or name.startswith(self.top + "."):
            return True
        if not self.beside or not name.startswith(self.prefix):
            return False
        return _has(self.beside, name.removeprefix(self.prefix).partition(".")[0])

    @property
    def inside_site_packages(self) -> str:
        """Where an installed copy has the package, "" for a private mount: those have no other name."""
        return "" if self.top.startswith("abprof_side.") else self.top.replace(".", "/")


@lru_cache(maxsize=4096)
def _has(folder: str, name: str) -> bool:
    return any(os.path.exists(os.path.join(folder, name + end)) for end in ("", ".py"))  # noqa: PTH110, PTH118


def prove(
    mount: wire.Mount, given: Given, kernels: dict[str, str], judges: tuple[str, ...] = ()
) -> tuple[str, list[dict[str, str]]]:
    """Every module and shared object that is not the interpreter's or the system's, with its SHA-256, and why one of
    them may not be there ("" if all may).

    A side's own are from `mount.allowed`. Of its environment are those of the interpreter, of the system's libraries
    (for shared objects), and what is in `given`, unless they lie in `mount.forbidden` (the user's checkout, other
    sides' trees and builds, the caches under the home folder that all branches share), bear the package's name or that
    of another module of the side's, or are of a distribution that was installed from one of `mount.sources` or is a copy
    of the package. `kernels` are compiled kernels: name -> sha256.
    `judges` are folders of benchmarks that workloads wrap: what lies there judges, unless it bears the package's name.
    """
    own = _folders(tuple(mount.allowed))
    places = _places(own, _folders(tuple(mount.forbidden)), given)
    names = _Names.of(mount)
    installed = installed_from(_folders(tuple(mount.sources)), own, tuple(sys.path), names.inside_site_packages)
    found: list[dict[str, str]] = []
    reasons: list[str] = []
    wrapped = _folders(judges)
    for name, path, standing in _modules(places, names, installed):
        if path.startswith(wrapped) and name not in names:
            continue
        found.append(_artefact("module", name, path))
        if path in installed:
            reasons.append(f"module {name} is of {installed[path]}, outside this side's tree")
        elif standing != "own" and (standing == "outside" or name in names):
            reasons.append(f"module {name} was loaded from {path}, outside this side's tree")
    for path in mapped_objects():
        standing = places.standing(path, path, library=True)
        if path in installed:
            reasons.append(f"shared object {path} is of {installed[path]}, outside this side's tree")
        elif standing == "outside":
            reasons.append(f"shared object {path} was loaded from outside this side's tree")
        if standing != "environment" or path in installed:
            found.append(_artefact("object", os.path.basename(path), path))  # noqa: PTH119
    found += [{"kind": "kernel", "name": n, "path": "", "sha256": h} for n, h in sorted(kernels.items())]
    return next(iter(reasons), ""), found


def _modules(places: Places, names: _Names, installed: Container[str]) -> list[tuple[str, str, str]]:
    """(name, real path of its file, how it stands) of every imported module, but those of the environment that neither
    bear one of the side's `names` nor are `installed`."""
    rows = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not file or not file.startswith("/"):  # a relative one is made up: torch.ops says "_ops.py"
            continue
        path, standing = places.of_module(file)
        if (standing != "environment" or path in installed or name in names) and not _judges(name):
            rows.append((name, path, standing))
    return sorted(rows)


def _judges(name: str) -> bool:
    # The script that started the worker, which multiprocessing (torch imports it) knows by a second name; the workloads.
    return name in {"__main__", "__mp_main__"} or name.startswith("abprof_workloads.")


@lru_cache(maxsize=64)
def _folders(places: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(folder(place) for place in places)


@lru_cache(maxsize=8)
def _places(own: tuple[str, ...], forbidden: tuple[str, ...], given: Given) -> Places:
    return Places(own, forbidden, given)


def _artefact(kind: str, name: str, path: str) -> dict[str, str]:
    try:
        stat = os.stat(path)  # noqa: PTH116
        digest = _sha256(path, stat.st_mtime_ns, stat.st_size)
    except OSError:
        digest = ""  # gone since it was loaded: an empty hash equals no other side's
    return {"kind": kind, "name": name, "path": path, "sha256": digest}


@lru_cache(maxsize=4096)
def _sha256(path: str, _mtime_ns: int, _size: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
