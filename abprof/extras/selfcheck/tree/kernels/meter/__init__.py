"""Kernels of known duration: a chain of multiplications and a copy.

SHARE is the part of a case's injected work to do: 0 on main, 1 on the branch. Only the run-time bound of a loop differs, so
both sides have the same machine code.
"""

from __future__ import annotations

import math

import torch

SHARE = 0.0


def build(*, verbose: bool) -> None:
    """Compile the CPU's kernels. The GPU's kernels compile at their first call, which the builder makes."""
    if not torch.cuda.is_available():
        _backend(cuda=False).build()


def call(op: str, *tensors: torch.Tensor, wanted: int, percent: float) -> torch.Tensor:
    """Run an operation and return the last of `tensors` (float32). `chain`: apply x <- x / 2 + 1 / 2 `wanted` times. `copy`: copy
    the first `wanted` elements of the other tensor; the injected work copies the elements after them."""
    steps = wanted + math.ceil(wanted * percent / 100 * SHARE)
    getattr(_backend(tensors[-1].is_cuda), op)(*tensors, steps)
    return tensors[-1]


def _backend(cuda: bool):
    if cuda:
        from . import cuda as backend
    else:
        from . import cpu as backend
    return backend
