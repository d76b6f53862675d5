"""The CPU's kernels: single-threaded C, compiled with cc."""

from __future__ import annotations

import ctypes
import os
import subprocess
from functools import lru_cache
from pathlib import Path

import torch

SOURCE = """
void chain(float *x, long n, long steps) {
  for (long i = 0; i < n; ++i) {
    float value = x[i];
    for (long s = 0; s < steps; ++s) value = value * 0.5f + 0.5f;
    x[i] = value;
  }
}
void copy(const float *from, float *to, long n) {
  for (long i = 0; i < n; ++i) to[i] = from[i];
}
"""


def build() -> None:
    """Compile the C source. Raises CalledProcessError if this fails, FileNotFoundError if there is no compiler."""
    out = Path(os.environ["ABPROF_BUILD_DIR"])
    (out / "meter.c").write_text(SOURCE)
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(out / "meter.so"), str(out / "meter.c")]
    print("$", *command, flush=True)
    subprocess.run(command, check=True)


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(Path(os.environ["ABPROF_BUILD_DIR"]) / "meter.so"))
    library.chain.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_long]
    library.copy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long]
    return library


def chain(out: torch.Tensor, steps: int) -> None:
    _library().chain(out.data_ptr(), out.numel(), steps)


def copy(source: torch.Tensor, out: torch.Tensor, count: int) -> None:
    _library().copy(source.data_ptr(), out.data_ptr(), count)
