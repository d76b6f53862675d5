"""What is loaded, by content, and whether all of it may be."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Container
from functools import lru_cache

from abprof import wire
from abprof.worker.installed import installed_from

# Where the interpreter's own libraries and installed packages lie. Not the whole prefix: that of a system's Python is
# /usr, and a checkout may lie below it.
_PREFIXES = tuple(
    os.path.join(os.path.realpath(prefix), folder, "")  # noqa: PTH118
    for prefix in (sys.prefix, sys.base_prefix)
    for folder in ("lib", "lib64")
)


def prove(mount: wire.Mount, kernels: dict[str, str]) -> tuple[str, list[dict[str, str]]]:
    """Every module and shared object of the package with its SHA-256, and why one of them may not be there ("" if all may).

    Nothing but the allowed may come from `mount.forbidden`: the user's checkout, other sides' trees and builds, the
    caches under the home folder that all branches share; nor be of a distribution that was installed from one of
    `mount.sources`. `kernels` are compiled kernels: name -> sha256.
    """
    found: list[dict[str, str]] = []
    reason = ""
    own, others = _prefixes(tuple(mount.allowed)), _prefixes(tuple(mount.forbidden))
    top = mount.module if mount.module.startswith("abprof_side.") else mount.module.split(".")[0]
    installed = installed_from(_prefixes(tuple(mount.sources)), own, tuple(sys.path))
    for name, path in _modules():
        mine = name == top or name.startswith(top + ".")
        allowed = path.startswith(own)
        if not allowed and (mine or (path.startswith(others) and not path.startswith(_PREFIXES))):
            reason = reason or f"module {name} was loaded from {path}, outside this side's tree"
        if path in installed:
            reason = reason or f"module {name} is of {installed[path]}, outside this side's tree"
        if mine or allowed or path in installed:
            found.append(_artefact("module", name, path))
    for path in _mapped_objects(installed):
        allowed, elsewhere = path.startswith(own), path.startswith(others)
        if not allowed and elsewhere:
            reason = reason or f"shared object {path} was loaded from outside this side's tree"
        if path in installed:
            reason = reason or f"shared object {path} is of {installed[path]}, outside this side's tree"
        if allowed or elsewhere or path in installed:
            found.append(_artefact("object", os.path.basename(path), path))  # noqa: PTH119
    found += [{"kind": "kernel", "name": n, "path": "", "sha256": h} for n, h in sorted(kernels.items())]
    return reason, found


def _modules() -> list[tuple[str, str]]:
    """(name, file) of every imported module that has a file, except abprof's own part and the workloads."""
    rows = []
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        # A relative file is a made-up one: torch.ops says "_ops.py".
        if file and os.path.isabs(file) and not _ours(name):  # noqa: PTH117
            rows.append((name, _real(file)))
    return rows


def _ours(name: str) -> bool:
    # multiprocessing, which torch imports, knows the main module by a second name.
    return name in {"abprof", "__main__", "__mp_main__"} or name.startswith(("abprof.", "abprof_workloads."))


def _mapped_objects(installed: Container[str]) -> list[str]:
    """Those mapped into this process, without the environment's own; with those of `installed` all the same."""
    paths = set()
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.split(maxsplit=5)[-1].strip()
            if path.startswith("/") and ".so" in path:
                paths.add(path.removesuffix(" (deleted)"))
    return sorted(path for path in paths if path in installed or not path.startswith(_PREFIXES))


@lru_cache(maxsize=64)
def _prefixes(folders: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(os.path.join(os.path.realpath(folder), "") for folder in folders)  # noqa: PTH118


@lru_cache(maxsize=1 << 16)  # a worker proves itself around every cell, and torch alone has two thousand modules
def _real(file: str) -> str:
    return os.path.realpath(file)


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
