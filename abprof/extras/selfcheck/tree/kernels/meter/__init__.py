"""Kernels of known duration, a chain of multiplications and a copy: in Triton (cuda.py), or here in single-threaded C.

With SHARE = 1 kernels do a case's extra work, with SHARE = 0 they do not. SHARE only changes how often a loop runs, so
the machine code is the same.
"""

from __future__ import annotations

import ctypes
import math
import os
import subprocess
from functools import lru_cache
from pathlib import Path

import torch

SHARE = 0.0
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


def build(*, verbose: bool) -> None:
    """Compile the C source if there is no GPU. Triton compiles the GPU's kernels at their first call."""
    if not torch.cuda.is_available():
        out = Path(os.environ["ABPROF_BUILD_DIR"])
        (out / "meter.c").write_text(SOURCE)
        command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(out / "meter.so"), str(out / "meter.c")]
        print("$", *command, flush=True)
        subprocess.run(command, check=True)


def call(op: str, *tensors: torch.Tensor, wanted: int, percent: float) -> torch.Tensor:
    """Run `op` and return its result, which is in the last of `tensors` (float32). `chain` sets x to x / 2 + 1 / 2
    `wanted` times; `copy` copies `wanted` elements of the first tensor. Both do SHARE x `percent` % more work."""
    steps = wanted + math.ceil(wanted * percent / 100 * SHARE)
    if tensors[-1].is_cuda:
        from . import cuda

        getattr(cuda, op)(*tensors, steps)
    else:
        sizes = (tensors[0].numel(), steps) if op == "chain" else (steps,)
        getattr(_library(), op)(*(tensor.data_ptr() for tensor in tensors), *sizes)
    return tensors[-1]


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(Path(os.environ["ABPROF_BUILD_DIR"]) / "meter.so"))
    library.chain.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_long]
    library.copy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long]
    return library
