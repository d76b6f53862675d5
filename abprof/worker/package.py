"""Import the package under test from the side's folder, not an installed copy, and check which files are loaded."""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import importlib.machinery
import importlib.util
import json
import os
import re
import sys
import types
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit
from urllib.request import url2pathname

import torch

from abprof.records import messages as wire
from abprof.worker.faults import MissingPackage
from abprof.worker.workload import namespace

PRIVATE = "abprof_side."


class SideFinder(MetaPathFinder):
    """Finds the side's package in a root folder, before other finders, such as those of editable installs.

    Also finds the root's extension modules and the metadata of its distributions. With `whole`, for a root that is an
    installed release, finds all its modules.
    """

    def __init__(self, top: str, root: str, *, whole: bool = False) -> None:
        self.top, self.root, self.whole = top, root, whole

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a module in the root folder; None for other modules."""
        find = importlib.machinery.PathFinder.find_spec
        if fullname.startswith(self.top + "."):
            return find(fullname, path, target)
        if "." in fullname or (fullname != self.top and fullname in sys.stdlib_module_names):
            return None
        spec = find(fullname, [self.root], target)
        if spec is None:
            return None
        if spec.submodule_search_locations is not None:  # a list: a namespace package's path would follow sys.path
            spec.submodule_search_locations = list(spec.submodule_search_locations)
        extension = isinstance(spec.loader, importlib.machinery.ExtensionFileLoader)
        return spec if fullname == self.top or self.whole or extension else None

    def find_distributions(self, context: metadata.DistributionFinder.Context) -> Iterable[metadata.Distribution]:
        """Return the distributions in the root; none if the caller names other folders."""
        if "path" in vars(context):
            return ()
        here = metadata.DistributionFinder.Context(name=context.name, path=[self.root])
        return metadata.MetadataPathFinder.find_distributions(here)


def mend_interpreter(device: str) -> None:
    """Fill the gaps of Triton's interpreter, if this process imported Triton with TRITON_INTERPRET=1."""
    function = getattr(sys.modules.get("triton.language.standard"), "sum", None)
    if type(function).__module__ == "triton.runtime.interpreter":
        try:
            from abprof.worker import interpreter

            interpreter.install(device)
        except Exception as error:  # noqa: BLE001 - a version of Triton with other internals; it may do without
            print(f"Triton's interpreter keeps some gaps: {error!r}", flush=True)


def kernel_package(mount: wire.Mount) -> types.ModuleType:
    """Import the package under test, unless `preload` has. Raises MissingPackage if this side does not have it."""
    if _preloaded and _preloaded[0] == mount:
        return _preloaded[2]
    if mount.module.startswith(PRIVATE):
        namespace(PRIVATE[:-1], mount.root)
    else:
        sys.meta_path.insert(0, SideFinder(mount.module.split(".")[0], mount.root, whole=mount.whole))
    os.environ["ABPROF_BUILD_DIR"] = mount.build_dir
    try:
        spec = importlib.util.find_spec(mount.module)
        if spec is None:
            raise ModuleNotFoundError(mount.module, name=mount.module)
    except ModuleNotFoundError as error:
        if error.name and (mount.module == error.name or mount.module.startswith(error.name + ".")):
            raise MissingPackage(f"{mount.name} does not exist on this side", name=mount.module) from error
        raise
    with _without_benchmarks(spec.origin):
        return importlib.import_module(mount.module)


@contextmanager
def _without_benchmarks(origin: str | None) -> Iterator[None]:
    """Make `run` of Triton's benchmarks do nothing while the file `origin` is imported: at a tutorial's end it would
    measure for minutes in each worker."""
    if not origin or not origin.endswith(".py") or b"perf_report" not in Path(origin).read_bytes():
        yield
        return
    from triton.testing import Mark

    run, Mark.run = Mark.run, lambda *_, **__: None
    try:
        yield
    finally:
        Mark.run = run


# With this variable torch.cuda.is_available(), which packages call at import, asks NVML and does not start CUDA.
_NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"
_preloaded: tuple[wire.Mount, Prover, types.ModuleType] | None = None


def preload(start: wire.Start) -> None:
    """Import the package of `start`, and its modules that calls import later, before any worker is forked off this
    process. Leaves to the workers the modules that would start CUDA here. Raises what the package's import raises."""
    global _preloaded  # noqa: PLW0603 - forked workers inherit the package
    assert start.mount
    mend_interpreter(start.device)
    before = _prover(start)  # what the import loads must not count as loaded before the side's code
    given = os.environ.get(_NVML_CHECK)
    os.environ[_NVML_CHECK] = "1"
    try:
        module = kernel_package(start.mount)
        _import_harmless([name for name in start.modules if name not in sys.modules])
    finally:
        os.environ.pop(_NVML_CHECK, None)
        os.environ.update({} if given is None else {_NVML_CHECK: given})
    before.forked()
    before.prove({})  # so that its workers know real paths and installed files
    _preloaded = start.mount, before, module


def _import_harmless(names: Sequence[str]) -> None:
    """Import the modules, except those whose import fails, or starts CUDA or a thread."""
    if not names or _harmless(names):
        for name in names:
            importlib.import_module(name)
    elif len(names) > 1:
        _import_harmless(names[: len(names) // 2])
        _import_harmless(names[len(names) // 2 :])


def _harmless(names: Sequence[str]) -> bool:
    """Whether this process may fork workers after it has imported the modules. Tries that in a fork, in which CUDA cannot
    start: a context takes the device's driver 0.1 s, while turns are measured."""
    if pid := os.fork():
        return not os.waitpid(pid, 0)[1]
    begun, code = list[str](), 1

    def refuse() -> None:
        begun.append("CUDA")
        raise RuntimeError("an import starts CUDA")

    try:
        torch.cuda._lazy_init = refuse
        for name in names:
            importlib.import_module(name)
        code = int(bool(begun) or not may_fork())
    finally:
        os._exit(code)


def may_fork() -> bool:
    """Whether forks of this process can start CUDA and lack no thread of it."""
    if not (pid := os.fork()):
        os._exit(int(torch.cuda._is_in_bad_fork() or not _driver_starts()))
    # Count threads after the fork, because OpenBLAS ends its threads before a fork.
    return not os.waitpid(pid, 0)[1] and len(os.listdir("/proc/self/task")) == 1  # noqa: PTH208


def _driver_starts() -> bool:
    """Whether CUDA's driver, if it is loaded, can start in this process. It cannot if an import started it before the fork."""
    loaded = any("/libcuda.so" in path for path in mapped_objects())
    return not loaded or ctypes.CDLL("libcuda.so.1").cuInit(0) == 0


def preloaded() -> bool:
    return _preloaded is not None


def prover(start: wire.Start) -> Prover:
    """Return the checker of loaded files for a worker whose device is in use, and that has run no workload yet."""
    if _preloaded and _preloaded[0] == start.mount:
        _preloaded[1].started()
        return _preloaded[1]
    return _prover(start)


def _prover(start: wire.Start) -> Prover:
    assert start.mount
    return Prover(start.mount, {str(Path(file).parent / wire.WRAPPED) for file in start.workloads.values()})


_LIBRARY = re.compile(r"\.so(\.\d[^/]*)?$")


def _folder(path: str) -> str:
    """Return the folder's real path with a final slash."""
    return os.path.join(os.path.realpath(path), "")  # noqa: PTH118


_PREFIXES = tuple({_folder(prefix) for prefix in (sys.prefix, sys.base_prefix)})
# The interpreter, its libraries and installed packages, also of an environment in a checkout (.venv). Not the whole
# prefix, which is /usr for a system's Python: a checkout may lie below /usr.
INTERPRETER = (
    *(prefix + name for prefix in _PREFIXES for name in ("lib/", "lib64/")),
    os.path.realpath(sys.executable),
)
BUNDLE = _folder(os.path.dirname(os.path.dirname(os.path.dirname(wire.__file__))))  # noqa: PTH120
# Folders where systems, administrators and container runtimes install libraries, drivers and compilers.
SYSTEM = (
    *("/usr/", "/lib/", "/lib32/", "/lib64/", "/libx32/", "/opt/", "/nix/store/", "/gnu/store/", "/snap/", "/cvmfs/"),
    *("/run/nvidia/", "/run/opengl-driver/", "/.singularity.d/libs/", "/home/linuxbrew/.linuxbrew/"),
    *_PREFIXES,
)
# Modules that `site` imported, like finders of editable installs, which are harmless.
_AT_START = tuple(sys.modules)


def _listed(variable: str) -> list[str]:
    return [place for place in re.split("[:;]", os.environ.get(variable, "")) if os.path.isabs(place)]  # noqa: PTH117


def _both_names(places: list[str]) -> tuple[str, ...]:
    """Return each folder's absolute path and real path, with a final slash; leave out the interpreter's folders."""
    both = (name for place in places for name in (os.path.join(os.path.abspath(place), ""), _folder(place)))  # noqa: PTH100, PTH118
    return tuple(dict.fromkeys(name for name in both if not name.startswith(INTERPRETER)))


@cache
def real_path(file: str) -> str:
    return os.path.realpath(file)


def find_real_paths() -> None:
    """Look up the modules' real paths, 40 ms, which workers that are forked later need not look up."""
    for module in list(sys.modules.values()):
        if file := getattr(module, "__file__", None):
            real_path(file)


def mapped_objects() -> list[str]:
    """Return the shared objects and other executable files that this process has mapped into memory."""
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


class Prover:
    """Lists the files that this process has loaded, and checks whether the side may load them. Modules of wrapped
    benchmarks (in the folders `benchmarks`) may be loaded, unless they are named like the package."""

    def __init__(self, mount: wire.Mount, benchmarks: Iterable[str] = ()) -> None:
        """Record what may be loaded besides the side's files. Call this before code of a side or workload runs."""
        self._mount = mount
        self._own, self._forbidden, self._sources, self._benchmarks = (
            tuple(map(_folder, folders)) for folders in (mount.allowed, mount.forbidden, mount.sources, benchmarks)
        )
        self._known: dict[str, tuple[str, str]] = {}  # a module's file -> its real path and origin
        self._installed: tuple[tuple[str, ...], dict[str, str]] = ((), {})
        self._hashes: dict[tuple[str, int, int], str] = {}
        # Further folders from which code may be loaded, besides the side's and the interpreter's.
        named = _both_names(_listed("PYTHONPATH"))
        path = _both_names([place for place in sys.path if os.path.isabs(place)])  # noqa: PTH117
        # Folders of installed packages on the import path, of other environments or the system.
        self.installed = tuple(p for p in path if p not in named and p.endswith(("/site-packages/", "/dist-packages/")))
        # Other folders on the import path (.pth, PYTHONPATH), and folders of imported packages.
        tops = (module for name, module in list(sys.modules.items()) if "." not in name)
        inside = _both_names([p for m in tops if isinstance(at := getattr(m, "__path__", None), list) for p in at])
        own = (*self.installed, BUNDLE)
        self.importable = tuple(p for p in (*path, *inside) if p in named or not p.startswith(own))
        # Folders of libraries: of LD_LIBRARY_PATH, CUDA_HOME, CUDA_PATH and the CUDA driver.
        places = [*_listed("LD_LIBRARY_PATH"), *_listed("CUDA_HOME"), *_listed("CUDA_PATH")]
        self.linkable = _both_names(places)
        # Files of loaded modules and libraries, except those from PYTHONPATH.
        files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
        self.loaded = frozenset(file for file in files if file and not file.startswith(named))
        self._named, self._objects = named, frozenset[str]()
        self.started()

    def forked(self) -> None:
        """Count the libraries that are mapped now as loaded by the side's code, if they are new."""
        self._objects = frozenset(mapped_objects())

    def started(self) -> None:
        """Count the libraries that are mapped now, such as the driver's, as loaded before the side's code."""
        objects = [path for path in mapped_objects() if path not in self._objects]
        if self._objects:  # the package may have had some of them loaded
            objects = [path for path in objects if path.startswith((*INTERPRETER, *SYSTEM))]
        drivers = [os.path.dirname(path) for path in objects if "/libcuda.so" in path]  # noqa: PTH120
        self.linkable = (*self.linkable, *_both_names(drivers))
        self.loaded |= {path for path in objects if not path.startswith(self._named)}

    def prove(self, kernels: dict[str, str]) -> tuple[str, list[wire.Artefact]]:
        """Return why a loaded file is not allowed ("" if all are allowed), and a list of the loaded files and kernels.

        The list omits files of the environment (interpreter, system libraries, packages loaded at the start), unless
        they may be another copy of the side's code. `kernels`: name of a compiled kernel -> SHA-256.
        """
        module, root = self._mount.module, Path(self._mount.root)
        private = module.startswith(PRIVATE)
        top = module if private else module.partition(".")[0]
        # In an installed release the modules beside the package belong to the side too.
        whole = self._mount.whole and root.is_dir()
        beside = {entry.name.removesuffix(".py") for entry in root.iterdir()} if whole else set[str]()
        installed = self._installed_from((*sys.path, "" if private else top))
        found: list[wire.Artefact] = []
        reasons: list[str] = []

        def add(kind: Literal["module", "object"], name: str, path: str, *, outside: bool) -> None:
            what = f"module {name}" if kind == "module" else f"shared object {path}"
            if path in installed:
                reasons.append(f"{what} is of {installed[path]}, outside this side's tree")
            elif outside:
                place = f"{path}, outside" if kind == "module" else "outside"
                reasons.append(f"{what} was loaded from {place} this side's tree")
            found.append(wire.Artefact(kind, name, path, self._hash(path)))

        for module, path, standing in self._modules():
            sides = f"{module}.".startswith(f"{top}.") or module.partition(".")[0] in beside
            foreign = standing != "environment" or path in installed
            if sides or (foreign and not path.startswith(self._benchmarks)):
                add("module", module, path, outside=standing == "outside" or (sides and standing != "own"))
        for path in mapped_objects():
            standing = self.standing(path, path, library=True)
            if standing != "environment" or path in installed:
                add("object", os.path.basename(path), path, outside=standing == "outside")  # noqa: PTH119
        found += [wire.Artefact("kernel", name, "", sha256) for name, sha256 in sorted(kernels.items())]
        return next(iter(reasons), ""), found

    def standing(self, file: str, path: str, *, library: bool = False) -> str:
        """Return whose a loaded file is: `own` (the side's), `environment` (interpreter, system, loaded at the start),
        `given` (in other folders known at the start) or `outside`. `file`: name as loaded; `path`: real path."""
        if path.startswith(self._own):
            return "own"
        if path.startswith((*INTERPRETER, BUNDLE)):  # even in a forbidden folder
            return "environment"
        if path.startswith(self._forbidden):
            return "outside"
        if file in self.loaded or path.startswith(self.installed):
            return "environment"
        # `file` may be a link in one of these folders, to a file of a package manager or an editable install.
        if path.startswith(self.importable) or file.startswith((*self.importable, *self.installed, *INTERPRETER)):
            return "given"
        if library and path.startswith(SYSTEM):
            return "environment"
        return "given" if library and path.startswith(self.linkable) else "outside"

    def _modules(self) -> Iterator[tuple[str, str, str]]:
        """Yield name, real path and `standing` of the imported modules, except workloads and abprof's start script."""
        for name, module in sorted(sys.modules.items()):
            file = getattr(module, "__file__", None)
            # Ignore invented relative names: torch.ops has "_ops.py".
            if file and file.startswith("/") and not name.startswith(("__main__", "__mp_main__", "abprof_workloads.")):
                if file not in self._known:
                    path = real_path(file)
                    self._known[file] = path, self.standing(file, path)
                yield name, *self._known[file]

    def _installed_from(self, path: tuple[str, ...]) -> dict[str, str]:
        """Return file -> reason, for installed files that belong to another copy of the side's code.

        Their distribution was installed from a folder or archive below `mount.sources` (PEP 610), or contains the
        package. `path`: the import path, then the package's name ("": do not look for the package).
        """
        if self._installed[0] == path:
            return self._installed[1]
        found: dict[str, str] = {}
        *folders, copy = path
        for distribution in metadata.distributions(path=folders) if self._sources or copy else ():
            origin = _origin(distribution) if self._sources else ""
            why = ""
            if origin.startswith(self._sources) and not origin.startswith(self._own):
                why = f"was installed from {origin[:-1]}"
            elif copy:
                # A text search, as torch's RECORD has 15,000 lines.
                record = "\n" + (distribution.read_text("RECORD") or "")
                if any(f"\n{copy}{end}" in record for end in ("/", ".py,", ".so,", ".cpython-", ".abi3.")):
                    why = "is an installed copy of the package"
            if why:
                files = (os.path.realpath(str(distribution.locate_file(file))) for file in distribution.files or ())
                what = f"{distribution.metadata['Name']}, which {why}"
                found |= {file: what for file in files if file not in _at_start()}
        self._installed = path, found
        return found

    def _hash(self, path: str) -> str:
        try:
            stat = os.stat(path)  # noqa: PTH116
            key = path, stat.st_mtime_ns, stat.st_size
            if key not in self._hashes:
                if not os.path.isfile(path):  # noqa: PTH113 - a FIFO would never end
                    return ""
                with open(path, "rb") as file:
                    self._hashes[key] = hashlib.file_digest(file, "sha256").hexdigest()
            return self._hashes[key]
        except OSError:
            return ""


def _origin(distribution: metadata.Distribution) -> str:
    """Return the local folder or archive that a distribution was installed from, with a final slash; "" if none."""
    try:
        url = urlsplit(json.loads(distribution.read_text("direct_url.json") or "{}")["url"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""
    return _folder(url2pathname(url.path)) if url.scheme == "file" else ""


@cache
def _at_start() -> frozenset[str]:
    files = (getattr(sys.modules.get(name), "__file__", None) for name in _AT_START)
    return frozenset(os.path.realpath(file) for file in files if file)
