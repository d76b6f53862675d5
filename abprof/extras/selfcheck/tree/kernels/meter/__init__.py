"""Kernels that take a set time: a chain of multiplications and a copy.

SHARE is the part of a case's injected work that is done: 0 on main, 1 on the branch. Only a loop's run-time bound differs, so
both sides have the same machine code.
"""

from __future__ import annotations

import math

import torch

SHARE = 0.0


def build(*, verbose: bool) -> None:
    """Compile for the CPU; the GPU's kernels compile at their first call, which the builder makes."""
    if not torch.cuda.is_available():
        _backend(cuda=False).build()


def chain(out: torch.Tensor, wanted: int, percent: float) -> torch.Tensor:
    """`out` (float32) tends to 1 by x <- x / 2 + 1 / 2, `wanted` times."""
    _backend(out.is_cuda).chain(out, _steps(wanted, percent))
    return out


def copy(source: torch.Tensor, out: torch.Tensor, wanted: int, percent: float) -> torch.Tensor:
    """The first `wanted` elements of `source` in `out` (float32); the injected work copies elements after them."""
    _backend(out.is_cuda).copy(source, out, _steps(wanted, percent))
    return out[:wanted]


def _steps(wanted: int, percent: float) -> int:
    return wanted + math.ceil(wanted * percent / 100 * SHARE)


def _backend(cuda: bool):
    if cuda:
        from . import cuda as backend
    else:
        from . import cpu as backend
    return backend
