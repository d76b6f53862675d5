"""Tamper detection: which files are loaded, by content, and whether each of them may be.

`Given.take()` records what this process has before any code of a side or a workload ran; `prove()` judges what it has now.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib import metadata
from typing import Self
from urllib.parse import urlsplit
from urllib.request import url2pathname

from abprof.records import messages as wire
from abprof.worker.mount import PRIVATE, owned

_LIBRARY = re.compile(r"\.so(\.\d[^/]*)?$")


def _folder(path: str) -> str:
    """The real path with a slash at its end: what lies in it starts with it."""
    return os.path.join(os.path.realpath(path), "")  # noqa: PTH118


_PREFIXES = tuple({_folder(prefix) for prefix in (sys.prefix, sys.base_prefix)})
# The interpreter, its own libraries and installed packages, also where a checkout holds the whole of it (.venv). Not
# the whole prefix: that of a system's Python is /usr, and a checkout may lie below it.
INTERPRETER = (
    *(prefix + name for prefix in _PREFIXES for name in ("lib/", "lib64/")),
    os.path.realpath(sys.executable),
)
HARNESS = _folder(os.path.dirname(os.path.dirname(os.path.dirname(wire.__file__))))  # noqa: PTH120
# Where a system, its administrator or its container runtime puts libraries, drivers and compilers.
SYSTEM = (
    *("/usr/", "/lib/", "/lib32/", "/lib64/", "/libx32/", "/opt/", "/nix/store/", "/gnu/store/", "/snap/", "/cvmfs/"),
    *("/run/nvidia/", "/run/opengl-driver/", "/.singularity.d/libs/", "/home/linuxbrew/.linuxbrew/"),
    *_PREFIXES,
)
# What site imported: the finder of an editable install belongs to that install, and is harmless until it finds something.
_AT_START = tuple(sys.modules)


@dataclass(frozen=True)
class Given:
    """Where code may come from besides the side's folders and the interpreter's. Folders end with a slash."""

    installed: tuple[str, ...]  # folders of installed packages on the import path: another environment's, a system's
    importable: tuple[str, ...]  # other folders on the import path (.pth, PYTHONPATH), or of an imported package
    linkable: tuple[str, ...]  # named by LD_LIBRARY_PATH, CUDA_HOME or CUDA_PATH, or the CUDA driver's
    loaded: frozenset[str]  # files of loaded modules and libraries, from elsewhere than PYTHONPATH

    @classmethod
    def take(cls) -> Self:
        """What this process has now: call it when torch, Triton and the driver are loaded, and nothing else."""
        named = _both_names(_listed("PYTHONPATH"))
        path = _both_names([place for place in sys.path if os.path.isabs(place)])  # noqa: PTH117
        installed = tuple(p for p in path if p not in named and p.endswith(("/site-packages/", "/dist-packages/")))
        tops = (module for name, module in list(sys.modules.items()) if "." not in name)
        inside = _both_names([p for m in tops if isinstance(at := getattr(m, "__path__", None), list) for p in at])
        importable = tuple(p for p in (*path, *inside) if p in named or not p.startswith((*installed, HARNESS)))
        objects = mapped_objects()
        drivers = [os.path.dirname(path) for path in objects if "/libcuda.so" in path]  # noqa: PTH120
        linkable = [*_listed("LD_LIBRARY_PATH"), *_listed("CUDA_HOME"), *_listed("CUDA_PATH"), *drivers]
        files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
        loaded = frozenset(file for file in (*files, *objects) if file and not file.startswith(named))
        return cls(installed, importable, _both_names(linkable), loaded)


def _listed(variable: str) -> list[str]:
    """The absolute folders that an environment variable lists."""
    return [place for place in re.split("[:;]", os.environ.get(variable, "")) if os.path.isabs(place)]  # noqa: PTH117


def _both_names(places: list[str]) -> tuple[str, ...]:
    """These folders by their names and by their real paths, without the interpreter's own."""
    both = (name for place in places for name in (os.path.join(os.path.abspath(place), ""), _folder(place)))  # noqa: PTH100, PTH118
    return tuple(dict.fromkeys(name for name in both if not name.startswith(INTERPRETER)))


def mapped_objects() -> list[str]:
    """Files that are mapped into this process as executable, or are named like a shared object.

    Not devices, nor memory that never had a name in a folder, which compilers and libffi write code to (memfd, files
    without a library's name that are deleted as soon as they are open).
    """
    paths = set()
    with open("/proc/self/maps") as maps:
        for line in maps:
            fields = line.rstrip("\n").split(maxsplit=5)
            if len(fields) < 6 or not fields[5].startswith("/"):
                continue
            path = fields[5].removesuffix(" (deleted)")
            device = path.startswith("/dev/") and not path.startswith("/dev/shm/")  # noqa: S108 - shm holds anyone's files
            runs = "x" in fields[1] and path == fields[5]
            if (_LIBRARY.search(path) or runs) and not path.startswith("/memfd:") and not device:
                paths.add(path)
    return sorted(paths)


@dataclass(frozen=True, eq=False)
class _Places:
    """Where files may come from. A module's standing is cached: a worker proves itself around every cell, and torch
    alone has two thousand modules. Folders end with a slash."""

    own: tuple[str, ...]
    forbidden: tuple[str, ...]
    given: Given
    _known: dict[str, tuple[str, str]] = field(default_factory=dict)

    def of_module(self, file: str) -> tuple[str, str]:
        """(real path of a module's file, its standing)."""
        if file not in self._known:
            path = os.path.realpath(file)
            self._known[file] = path, self.standing(file, path)
        return self._known[file]

    def standing(self, file: str, path: str, *, library: bool = False) -> str:
        """own: the side's. environment: the interpreter's, the system's, or loaded from the start. given: from a folder
        of `Given`. outside: anything else. `file` is the name it was loaded by, `path` its real path."""
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
    """The names of a side's own modules: the package's, and of those beside it (in a namespace that it shares with other
    distributions, or at the root of an installed release) what the side has."""

    top: str
    beside: str  # folder of what lies beside it; "" if that is not the side's
    prefix: str  # "NAMESPACE." or ""

    def __contains__(self, name: str) -> bool:
        if name == self.top or name.startswith(self.top + "."):
            return True
        if not self.beside or not name.startswith(self.prefix):
            return False
        return _exists(self.beside, name.removeprefix(self.prefix).partition(".")[0])


def prove(
    mount: wire.Mount, given: Given, kernels: dict[str, str], judges: tuple[str, ...] = ()
) -> tuple[str, list[dict[str, str]]]:
    """(why a loaded file may not be there, or ""; every loaded file that is not the environment's, with its SHA-256).

    A side's own files are from `mount.allowed`. Its environment is the interpreter, the system's shared libraries and
    what is in `given`, unless it lies in `mount.forbidden` (the user's checkout, other sides' trees and builds, shared
    caches), has the name of one of the side's modules, or is of a distribution that was installed from one of
    `mount.sources` or is a copy of the package. `kernels`: compiled kernel -> SHA-256. `judges`: folders of benchmarks
    that workloads wrap, which may be loaded unless they have the package's name.
    """
    own = _folders(tuple(mount.allowed))
    places = _places(own, _folders(tuple(mount.forbidden)), given)
    namespace, name = owned(mount)
    prefix = f"{namespace}." if namespace else ""
    beside = os.path.join(mount.root, *namespace.split(".")) if namespace or mount.whole else ""  # noqa: PTH118
    names = _Names(prefix + name, beside, prefix)
    copy = "" if mount.module.startswith(PRIVATE) else names.top.replace(".", "/")
    installed = _installed_from(_folders(tuple(mount.sources)), own, tuple(sys.path), copy)
    found: list[dict[str, str]] = []
    reasons: list[str] = []
    wrapped = _folders(judges)
    for module, path, standing in _modules(places, names, installed):
        if path.startswith(wrapped) and module not in names:
            continue
        found.append(_artefact("module", module, path))
        if path in installed:
            reasons.append(f"module {module} is of {installed[path]}, outside this side's tree")
        elif standing != "own" and (standing == "outside" or module in names):
            reasons.append(f"module {module} was loaded from {path}, outside this side's tree")
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


def _modules(places: _Places, names: _Names, installed: dict[str, str]) -> list[tuple[str, str, str]]:
    """(name, real path, standing) of every imported module, except the environment's and the workloads."""
    rows = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not file or not file.startswith("/"):  # a relative one is made up: torch.ops has "_ops.py"
            continue
        # The script that started the worker (multiprocessing knows it by a second name), and the workloads.
        if name in {"__main__", "__mp_main__"} or name.startswith("abprof_workloads."):
            continue
        path, standing = places.of_module(file)
        if standing != "environment" or path in installed or name in names:
            rows.append((name, path, standing))
    return sorted(rows)


@lru_cache(maxsize=8)
def _installed_from(
    sources: tuple[str, ...], own: tuple[str, ...], path: tuple[str, ...], package: str
) -> dict[str, str]:
    """Real path of a file -> why its distribution is not environment: it was installed (also editable) from a folder or
    archive below `sources` and not below `own` (PEP 610), or holds a copy of `package` (its path below site-packages).

    What was imported when the worker started is left out.
    """
    found: dict[str, str] = {}
    for distribution in metadata.distributions(path=list(path)) if sources or package else ():
        origin = _origin(distribution) if sources else ""
        from_sources = origin.startswith(sources) and not origin.startswith(own) if origin else False
        # torch's RECORD has fifteen thousand lines: it is searched as text.
        record = "\n" + (distribution.read_text("RECORD") or "") if package and not from_sources else ""
        copied = any(f"\n{package}{end}" in record for end in ("/", ".py,", ".so,", ".cpython-", ".abi3."))
        if from_sources or copied:
            why = f"was installed from {origin[:-1]}" if from_sources else "is an installed copy of the package"
            what = f"{distribution.metadata['Name']}, which {why}"
            files = distribution.files or ()
            found |= dict.fromkeys((os.path.realpath(str(distribution.locate_file(file))) for file in files), what)
    return {file: what for file, what in found.items() if file not in _at_start()} if found else {}


def _origin(distribution: metadata.Distribution) -> str:
    """The folder or archive that this was installed from, with a slash at its end; "" for an index or another host."""
    try:
        url = urlsplit(json.loads(distribution.read_text("direct_url.json") or "{}")["url"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""
    return _folder(url2pathname(url.path)) if url.scheme == "file" else ""


@cache
def _at_start() -> frozenset[str]:
    files = (getattr(sys.modules.get(name), "__file__", None) for name in _AT_START)
    return frozenset(os.path.realpath(file) for file in files if file)


@lru_cache(maxsize=4096)
def _exists(folder: str, name: str) -> bool:
    return any(os.path.exists(os.path.join(folder, name + end)) for end in ("", ".py"))  # noqa: PTH110, PTH118


@lru_cache(maxsize=64)
def _folders(places: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_folder(place) for place in places)


@lru_cache(maxsize=8)
def _places(own: tuple[str, ...], forbidden: tuple[str, ...], given: Given) -> _Places:
    return _Places(own, forbidden, given)


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
