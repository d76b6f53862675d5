"""The public function: checks its arguments and calls the autograd function."""

from __future__ import annotations

import importlib
import importlib.util
import math
from typing import Any

import torch

DTYPES = (torch.bfloat16, torch.float16)
HEAD_DIMS = (64, 128)


def masked_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, *, scale: float | None = None
) -> torch.Tensor:
    """Attention in which query i of a head sees key j where mask[b, h, i, j] is True.

    q [B, Sq, Hq, D]; k, v [B, Sk, Hk, D]; Hq a multiple of Hk, query head h reading key head h // (Hq / Hk); D 64 or
    128; bfloat16 or float16. mask: bool [B or 1, Hq or 1, Sq, Sk]; a size of 1 (or a stride of 0, as `expand` makes)
    shares it, and its tiles are then looked at once. scale: of the scores before the softmax, 1/sqrt(D) if None. All
    on one CUDA device.

    Returns out [B, Sq, Hq, D] in the inputs' dtype. A row that sees no key has out = 0 and gets and gives no gradient.
    Differentiable in q, k and v, once; the same inputs give the same bits, forward and backward. Nothing is copied to the
    host. Values in what is masked must be finite: a tile that is visited is multiplied whole.

    Raises ValueError (one line) on bad arguments, NotImplementedError on a device, dtype or head dimension that is
    not there.
    """
    _check_shapes(q, k, v, mask)
    _check_supported(q)
    factor = q.shape[3] ** -0.5 if scale is None else float(scale)
    if not math.isfinite(factor):
        raise ValueError(f"scale = {factor} is not finite")
    attention: Any = importlib.import_module(".autograd", __package__).MaskedAttention.apply
    out: torch.Tensor = attention(q, k, v, _planes(mask), factor)
    return out


def _check_shapes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> None:
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.ndim != 4:
            raise ValueError(f"{name} must be [batch, tokens, heads, head dim], not of shape {list(tensor.shape)}")
        if tensor.dtype != q.dtype or tensor.device != q.device:
            here, there = (f"{_name(t.dtype)} on {t.device}" for t in (tensor, q))
            raise ValueError(f"q, k and v must share dtype and device: {name} is {here}, q {there}")
    if k.shape != v.shape:
        raise ValueError(f"k and v must have equal shapes, not {list(k.shape)} and {list(v.shape)}")
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(f"q {list(q.shape)} and k {list(k.shape)} must have equal batch and head dimension")
    if not q.shape[2] or not k.shape[2] or q.shape[2] % k.shape[2]:
        raise ValueError(f"query heads must be a multiple of key heads, not {q.shape[2]} and {k.shape[2]}")
    if mask.dtype != torch.bool or mask.device != q.device:
        raise ValueError(f"mask must be bool on {q.device}, not {_name(mask.dtype)} on {mask.device}")
    batch, sq, heads, _ = q.shape
    fits = mask.ndim == 4 and mask.shape[0] in (1, batch) and mask.shape[1] in (1, heads)
    if not fits or mask.shape[2:] != (sq, k.shape[1]):
        wanted = f"[{batch} or 1, {heads} or 1, {sq}, {k.shape[1]}]"
        raise ValueError(f"mask must be [B or 1, Hq or 1, Sq, Sk] = {wanted}, not {list(mask.shape)}")


def _check_supported(q: torch.Tensor) -> None:
    if q.dtype not in DTYPES:
        raise NotImplementedError(f"dmask computes in bfloat16 and float16, not in {_name(q.dtype)}")
    if q.shape[3] not in HEAD_DIMS:
        raise NotImplementedError(f"dmask has head dimensions 64 and 128, not {q.shape[3]}")
    if q.device.type != "cuda" and not _interpreted():
        raise NotImplementedError(f"dmask needs an NVIDIA GPU: its tensors are on {q.device}")
    if importlib.util.find_spec("triton") is None:
        raise NotImplementedError("dmask needs Triton, which is not installed")


def _interpreted() -> bool:
    """Whether Triton's interpreter stands in for a GPU (TRITON_INTERPRET=1), as in the tests."""
    if importlib.util.find_spec("triton") is None:
        return False
    return bool(importlib.import_module("triton").knobs.runtime.interpret)


def _planes(mask: torch.Tensor) -> torch.Tensor:
    """The mask with what is expanded cut down to one, contiguous."""
    for dim in (0, 1):
        if mask.stride(dim) == 0:
            mask = mask.narrow(dim, 0, 1)
    return mask.contiguous()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
