"""Builds csrc/ into one shared library with the machine's C++ compiler, and loads it by path.

The file's name carries a key of the sources and flags, so a library is found by what it was made from, wherever the
sources lie. Inside abprof ($ABPROF_BUILD_DIR set) it is built by `build` alone and never at call time; elsewhere the
first call builds it into the user's cache.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from ..schedule import UnsupportedOption
from .folder import build_folder
from .problem import FfaProblem

SOURCES = Path(__file__).parent / "csrc"
# -Wno-maybe-uninitialized: the intrinsics' own headers start from undefined registers on purpose.
FLAGS = [
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fopenmp",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Wno-maybe-uninitialized",
]
UNITS = {
    "kernels_avx2.cpp": ["-mavx2", "-mfma"],
    "kernels_avx512.cpp": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mprefer-vector-width=512"],
    "dispatch.cpp": [],
}
LINK = ["-shared", "-fopenmp", "-Wl,--build-id=none"]  # same content, same bytes: no trace of time or place

Log = Callable[[str], None]


def build() -> None:
    """Make sure that the library is in the build folder; print the compiler commands and what they say.

    Raises RuntimeError when there is no compiler or it fails. On processors other than x86-64 it says so and builds
    nothing.
    """
    if not _is_x86():
        _say(f"ffa cpu: not built, it needs an x86-64 processor and this is {platform.machine()}")
        return
    target = library_path()
    if target.exists() and _same_compiler(target):
        _say(f"ffa cpu: up to date: {target}")
        return
    _compile(target, _say)


@lru_cache(maxsize=1)
def load() -> ctypes.CDLL:
    """The library of exactly these sources. Raises RuntimeError if it is missing and must not be built here."""
    if not _is_x86():
        raise UnsupportedOption(f"the CPU backend needs an x86-64 processor, this is {platform.machine()}")
    target = library_path()
    if not target.exists():
        if "ABPROF_BUILD_DIR" in os.environ:
            raise RuntimeError(f"{target} is missing: run ffa.build(verbose=True) before the first call")
        _compile(target, lambda _: None)
    return _declare(ctypes.CDLL(str(target)))


def library_path() -> Path:
    """Where the library of the present sources and flags belongs."""
    key = content_key()
    return build_folder(key) / f"ffa_cpu-{key}.so"


def content_key() -> str:
    """Hash of every source file and flag. The compiler is not in it (a worker must not run one to find its library);
    `build` compares the compiler recorded beside the library instead."""
    digest = hashlib.sha256(json.dumps([FLAGS, UNITS, LINK, platform.machine()]).encode())
    for path in sorted(SOURCES.iterdir()):
        if path.suffix in {".h", ".cpp"}:
            digest.update(f"\0{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def compiler() -> list[str]:
    """$CXX, or the first of c++, g++, clang++. Raises RuntimeError when there is none."""
    named = shlex.split(os.environ.get("CXX", ""))
    if named:
        if shutil.which(named[0]) is None:
            raise RuntimeError(f"no C++ compiler: CXX names {named[0]!r}, which is not on PATH")
        return named
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return [name]
    raise RuntimeError("no C++ compiler: none of c++, g++, clang++ is on PATH (install one, or set CXX)")


def _compile(target: Path, log: Log) -> None:
    cxx, began = compiler(), time.perf_counter()
    version = _version(cxx)
    log(f"ffa cpu: {version}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="ffa_cpu-") as scratch:
        objects = [str(Path(scratch) / f"{name}.o") for name in UNITS]
        commands = [
            [*cxx, *FLAGS, *arch, "-c", name, "-o", obj]
            for (name, arch), obj in zip(UNITS.items(), objects, strict=True)
        ]
        made = str(Path(scratch) / target.name)
        _run_all(commands, log)
        _run_all([[*cxx, *LINK, "-o", made, *objects]], log)
        seconds = time.perf_counter() - began
        facts = {"compiler": version, "commands": [shlex.join(c) for c in commands], "seconds": round(seconds, 3)}
        _facts_path(target).write_text(json.dumps(facts, indent=1), encoding="utf-8")
        Path(made).replace(target)
    log(f"ffa cpu: built {target} in {seconds:.1f} s, {target.stat().st_size} bytes")


def _run_all(commands: list[list[str]], log: Log) -> None:
    """Run the commands side by side in the source folder (so that no path gets into the objects), log them in order."""
    running = [
        subprocess.Popen(c, cwd=SOURCES, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        for c in commands
    ]
    failed = ""
    for command, process in zip(commands, running, strict=True):
        log(f"$ {shlex.join(command)}")
        output, _ = process.communicate()
        for line in output.splitlines():
            log(line)
        if process.returncode and not failed:
            error = re.search(r"^.*\berror: .*$", output, re.MULTILINE)
            failed = error[0] if error else f"{command[0]} ended with exit status {process.returncode}"
    if failed:
        raise RuntimeError(f"the C++ compiler failed: {failed}")


def _version(cxx: list[str]) -> str:
    ran = subprocess.run([*cxx, "--version"], capture_output=True, text=True, check=False)
    return (ran.stdout.splitlines() or [shlex.join(cxx)])[0]


def _same_compiler(target: Path) -> bool:
    try:
        return bool(json.loads(_facts_path(target).read_text(encoding="utf-8"))["compiler"] == _version(compiler()))
    except RuntimeError:
        return True  # no compiler here: what is there was built by the one that is gone
    except (OSError, ValueError, KeyError):
        return False


def _facts_path(target: Path) -> Path:
    return target.with_suffix(".json")


def _is_x86() -> bool:
    return platform.machine().lower() in {"x86_64", "amd64"}


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """Set the functions' types. Raises RuntimeError when the C side lays FfaProblem out differently."""
    library.ffa_isa.restype = ctypes.c_int32
    library.ffa_problem_bytes.restype = ctypes.c_int64
    if library.ffa_problem_bytes() != ctypes.sizeof(FfaProblem):
        raise RuntimeError(
            f"FfaProblem has {library.ffa_problem_bytes()} bytes in C++, {ctypes.sizeof(FfaProblem)} here"
        )
    phases = {"forward": ("prepare", "run"), "backward": ("prepare", "preprocess", "run", "postprocess")}
    for direction, names in phases.items():
        getattr(library, f"ffa_{direction}_workspace").restype = ctypes.c_int64
        for name in ("workspace", *names):
            function = getattr(library, f"ffa_{direction}_{name}")
            function.argtypes = [ctypes.POINTER(FfaProblem), ctypes.c_int32]
            if name != "workspace":
                function.restype = None
    return library


def _say(line: str) -> None:
    print(line, flush=True)
