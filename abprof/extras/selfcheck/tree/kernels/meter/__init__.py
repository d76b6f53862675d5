"""Kernels that take a set time: a chain of multiplications, a copy, and on a GPU a matrix product.

On main the share of the case's injected work that is done is 0, on the branch 1 (share.py): the machine code is the
same on both sides, only a loop's run-time bound differs.
"""

from __future__ import annotations

import math

import torch

from .share import SHARE


def build(*, verbose: bool) -> None:
    """Compile for the CPU; the GPU's kernels compile at their first call, which the builder makes."""
    del verbose
    if not torch.cuda.is_available():
        from . import cpu

        cpu.build()


def steps(wanted: int, percent: float) -> int:
    """Steps of the loop with this side's share of `percent` more of them."""
    return wanted + math.ceil(wanted * percent / 100 * SHARE)


def chain(out: torch.Tensor, wanted: int, percent: float) -> torch.Tensor:
    """`out` (float32) tends to 1 by x <- x / 2 + 1 / 2, as often as asked."""
    _backend(out).chain(out, steps(wanted, percent))
    return out


def copy(source: torch.Tensor, out: torch.Tensor, wanted: int, percent: float) -> torch.Tensor:
    """The first `wanted` elements of `source` in `out` (float32); the injected work copies elements after them."""
    _backend(out).copy(source, out, steps(wanted, percent))
    return out[:wanted]


def product(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, wanted: int, percent: float) -> torch.Tensor:
    """The mean over steps of products of 128-wide blocks of `a` (M, K) and `b` (K, N), bfloat16, in `out` (M, N) float32."""
    _backend(out).product(a, b, out, steps(wanted, percent))
    return out


def sleep(cycles: int, percent: float) -> None:
    """A device sleep after the kernel: one cycle on main, `percent` of `cycles` more on the branch."""
    torch.cuda._sleep(1 + math.ceil(cycles * percent / 100 * SHARE))


def _backend(tensor: torch.Tensor):
    if tensor.is_cuda:
        from . import cuda

        return cuda
    from . import cpu

    return cpu
