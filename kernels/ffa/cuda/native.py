"""The CUDA C++ part: compiled by nvcc into a plain C ABI library, loaded by ctypes, launched on torch's stream.

Where there is no nvcc, `prepost.py` does the same work in Triton. A compiler that is there and fails is an error.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_name("csrc") / "prepost.cu"
# A fixed seed and no symbols: the same content gives the same bytes, in any folder. ptxas' report costs nothing.
FLAGS = (
    "-O3", "-std=c++17", "-shared", "-Xcompiler", "-fPIC", "-Xptxas", "-v", "-Xlinker", "--strip-all",
    "-frandom-seed=ffa", "-gencode=arch=compute_90a,code=sm_90a",
)  # fmt: skip


def find_nvcc() -> str | None:
    """nvcc on PATH, in $CUDA_HOME or in the usual place; None when there is none."""
    homes = [Path(home) / "bin" for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if home]
    return shutil.which("nvcc") or next((str(h / "nvcc") for h in homes if (h / "nvcc").is_file()), None)


def build_folder() -> Path:
    """$ABPROF_BUILD_DIR, or a folder in the user's cache."""
    given = os.environ.get("ABPROF_BUILD_DIR")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ffa"


def library_path() -> Path:
    """Where the library lies: named by the source and the flags, so that another content is another file."""
    content = SOURCE.read_bytes() + "\0".join(FLAGS).encode()
    return build_folder() / f"ffa_cuda_{hashlib.sha256(content).hexdigest()[:16]}.so"


def compile_library(*, verbose: bool) -> Path | None:
    """Compile if the file is not there; None without nvcc. Prints what it did; verbose adds the compiler's own words.

    Raises RuntimeError with the first error line when nvcc fails.
    """
    path, nvcc = library_path(), find_nvcc()
    if path.exists():
        print(f"ffa cuda: {path.name} is there already", flush=True)
        return path
    if nvcc is None:
        print("ffa cuda: no nvcc, so the preprocess and postprocess kernels are Triton's", flush=True)
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=path.parent.resolve()) as folder:
        made = Path(folder) / "library.so"
        command = [nvcc, *FLAGS, "-o", str(made), SOURCE.name]
        done = subprocess.run(command, cwd=SOURCE.parent, capture_output=True, text=True, check=False)
        output = (done.stdout + done.stderr).strip()
        if verbose or done.returncode:
            print(" ".join(command), output, sep="\n", flush=True)
        if done.returncode:
            lines = [line for line in output.splitlines() if "error" in line.lower()]
            raise RuntimeError(f"nvcc failed: {(lines or output.splitlines() or ['no output'])[0]}")
        made.replace(path)
    load.cache_clear()
    print(f"ffa cuda: {path.name} by {nvcc} in {time.perf_counter() - begin:.1f} s", flush=True)
    return path


@cache
def load() -> ctypes.CDLL | None:
    """The library that the build published, or None. Never runs a compiler."""
    path = library_path()
    if not path.exists():
        return None
    library = ctypes.CDLL(str(path))
    pointer, number = ctypes.c_void_p, ctypes.c_int
    library.ffa_bwd_preprocess.argtypes = [*[pointer] * 6, number, number, number, number]
    library.ffa_bwd_postprocess.argtypes = [*[pointer] * 3, ctypes.c_float, number, number, number, number]
    return library


def check(code: int, name: str) -> None:
    """Raise RuntimeError for a launch's cudaError_t other than 0."""
    if code:
        raise RuntimeError(f"{name} failed to launch: CUDA error {code}")
