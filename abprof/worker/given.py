"""What a worker was given: where code may come from besides the side's own folders, settled before any of it ran."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass

from abprof.records import messages as wire

_LIBRARY = re.compile(r"\.so(\.\d[^/]*)?$")


def folder(path: str) -> str:
    """The real path, with a slash at its end: what lies in it begins so."""
    return os.path.join(os.path.realpath(path), "")  # noqa: PTH118


_PREFIXES = tuple({folder(prefix) for prefix in (sys.prefix, sys.base_prefix)})
# The interpreter, its own libraries and installed packages, also where a checkout holds the whole of it (.venv). Not
# the whole prefix: that of a system's Python is /usr, and a checkout may lie below it.
INTERPRETER = (
    *(prefix + name for prefix in _PREFIXES for name in ("lib/", "lib64/")),
    os.path.realpath(sys.executable),
)
HARNESS = folder(os.path.dirname(os.path.dirname(os.path.dirname(wire.__file__))))  # noqa: PTH120
# Where a system, its administrator or its container runtime puts libraries, drivers and compilers.
SYSTEM = (
    *("/usr/", "/lib/", "/lib32/", "/lib64/", "/libx32/", "/opt/", "/nix/store/", "/gnu/store/", "/snap/", "/cvmfs/"),
    *("/run/nvidia/", "/run/opengl-driver/", "/.singularity.d/libs/", "/home/linuxbrew/.linuxbrew/"),
    *_PREFIXES,
)


@dataclass(frozen=True)
class Given:
    """What is here, none of it the interpreter's own. Folders end with a slash."""

    installed: tuple[str, ...]  # folders of installed packages on the import path: another environment's, a system's
    importable: tuple[str, ...]  # other folders on the import path (.pth, PYTHONPATH), or of a package imported already
    linkable: tuple[str, ...]  # named by LD_LIBRARY_PATH, CUDA_HOME or CUDA_PATH, or the CUDA driver's
    loaded: frozenset[str]  # files of modules and libraries that are loaded already, from elsewhere than PYTHONPATH


def take() -> Given:
    """What this process has now. To be called when torch, Triton and the device's driver are there, and nothing else."""
    named = _folders(*_variable("PYTHONPATH"))
    path = _folders(*(place for place in sys.path if os.path.isabs(place)))  # noqa: PTH117
    installed = tuple(p for p in path if p not in named and p.endswith(("/site-packages/", "/dist-packages/")))
    tops = (module for name, module in list(sys.modules.items()) if "." not in name)
    inside = _folders(*(p for module in tops if isinstance(at := getattr(module, "__path__", None), list) for p in at))
    importable = tuple(p for p in (*path, *inside) if p in named or not p.startswith((*installed, HARNESS)))
    objects = mapped_objects()
    drivers = (os.path.dirname(path) for path in objects if "/libcuda.so" in path)  # noqa: PTH120
    linkable = _folders(*_variable("LD_LIBRARY_PATH"), *_variable("CUDA_HOME"), *_variable("CUDA_PATH"), *drivers)
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    loaded = frozenset(file for file in (*files, *objects) if file and not file.startswith(named))
    return Given(installed, importable, linkable, loaded)


def _variable(name: str) -> list[str]:
    """The absolute folders that this process's variable names."""
    return [place for place in re.split("[:;]", os.environ.get(name, "")) if os.path.isabs(place)]  # noqa: PTH117


def _folders(*places: str) -> tuple[str, ...]:
    """These folders as they are called and as they really are, without the interpreter's own."""
    both = (name for place in places for name in (os.path.join(os.path.abspath(place), ""), folder(place)))  # noqa: PTH100, PTH118
    return tuple(dict.fromkeys(name for name in both if not name.startswith(INTERPRETER)))


def mapped_objects() -> list[str]:
    """Files that are mapped into this process to be run, or are called like a shared object.

    Not devices, nor what never had a name in a folder: memory that a compiler or libffi writes code to (memfd, files
    without a library's name that are deleted as soon as they are open).
    """
    paths = set()
    with open("/proc/self/maps") as maps:
        for line in maps:
            fields = line.rstrip("\n").split(maxsplit=5)
            if len(fields) < 6 or not fields[5].startswith("/"):
                continue
            path = fields[5].removesuffix(" (deleted)")
            library = _LIBRARY.search(path)
            runs = "x" in fields[1] and path == fields[5]
            if (library or runs) and not path.startswith("/memfd:") and not _device(path):
                paths.add(path)
    return sorted(paths)


def _device(path: str) -> bool:
    return path.startswith("/dev/") and not path.startswith("/dev/shm/")  # noqa: S108 - memory that has names: anyone's files
