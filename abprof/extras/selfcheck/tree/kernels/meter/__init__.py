"""Kernels of known duration: a chain of multiplications and a copy.

With SHARE = 1 kernels do a case's extra work, with SHARE = 0 they do not. SHARE only changes how often a loop runs, so
the machine code is the same.
"""

from __future__ import annotations

import math

import torch

SHARE = 0.0


def build(*, verbose: bool) -> None:
    """Compile the CPU's kernels if there is no GPU. Triton compiles the GPU's kernels at their first call."""
    if not torch.cuda.is_available():
        _backend(cuda=False).build()


def call(op: str, *tensors: torch.Tensor, wanted: int, percent: float) -> torch.Tensor:
    """Run `op` and return its result, which is in the last of `tensors` (float32). `chain` sets x to x / 2 + 1 / 2
    `wanted` times; `copy` copies `wanted` elements of the first tensor. Both do SHARE x `percent` % more work."""
    steps = wanted + math.ceil(wanted * percent / 100 * SHARE)
    getattr(_backend(tensors[-1].is_cuda), op)(*tensors, steps)
    return tensors[-1]


def _backend(cuda: bool):
    if cuda:
        from . import cuda as backend
    else:
        from . import cpu as backend
    return backend
