"""What both variants accept, and their gradient."""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention

from .lists import BLOCK, BlockLists

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
Compute = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor]


def attend(
    compute: Compute,
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    lists: BlockLists | None,
    scale: float | None,
    dims: tuple[int, ...],
) -> torch.Tensor:
    """`compute(q, k, v, scale)` after the checks, differentiable. Raises ValueError and NotImplementedError."""
    q, k, v = tensors
    if q.ndim != 4 or k.shape != q.shape or v.shape != q.shape:
        shapes = ", ".join(str(list(t.shape)) for t in tensors)
        raise ValueError(f"q, k and v must be of one shape [batch, heads, tokens, head dim], not {shapes}")
    if len({(t.dtype, t.device) for t in tensors}) > 1:
        raise ValueError("q, k and v must share dtype and device")
    factor = q.shape[3] ** -0.5 if scale is None else float(scale)
    if not math.isfinite(factor):
        raise ValueError(f"scale = {factor} is not finite")
    if lists is not None:
        _check_lists(lists, -(-q.shape[2] // BLOCK), q.device)
    _check_supported(q, dims)
    attention: Any = Attention.apply
    out: torch.Tensor = attention(q, k, v, compute, lists, factor)
    return out


def _check_lists(lists: BlockLists, blocks: int, device: torch.device) -> None:
    for name in ("begin", "rows", "columns"):
        tensor: torch.Tensor = getattr(lists, name)
        if tensor.dtype != torch.int32 or tensor.device != device or tensor.ndim != 1:
            raise ValueError(f"lists.{name} must be int32 of one dimension on {device}")
    if lists.begin.numel() != blocks + 1 or lists.rows.shape != lists.columns.shape:
        raise ValueError(
            f"lists must have begin [{blocks + 1}] and as many rows as columns, not {lists.begin.numel()}, "
            f"{lists.rows.numel()} and {lists.columns.numel()}"
        )


def _check_supported(q: torch.Tensor, dims: tuple[int, ...]) -> None:
    if q.dtype not in DTYPES:
        raise NotImplementedError(f"memtraffic computes in float16, bfloat16 and float32, not in {q.dtype}")
    if q.shape[3] not in dims:
        raise NotImplementedError(f"head dimension {q.shape[3]}; {', '.join(map(str, dims))} are there")
    if importlib.util.find_spec("triton") is None:
        raise NotImplementedError("memtraffic needs Triton, which is not installed")
    if q.device.type != "cuda" and not importlib.import_module("triton").knobs.runtime.interpret:
        raise NotImplementedError(f"memtraffic needs an NVIDIA GPU: its tensors are on {q.device}")


class Attention(torch.autograd.Function):
    """out of (q, k, v, compute, lists, scale). The gradient is torch's, computed anew: subjects are forward kernels."""

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        compute: Compute,
        lists: BlockLists | None,
        scale: float,
    ) -> torch.Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.lists, ctx.scale = lists, scale
        if not q.numel():
            return torch.zeros_like(q)
        return compute(q.contiguous(), k.contiguous(), v.contiguous(), scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        leaves = [t.detach().requires_grad_() for t in ctx.saved_tensors]
        mask = None if ctx.lists is None else _mask(ctx.lists, leaves[0].shape[2])
        with torch.enable_grad():
            out = scaled_dot_product_attention(*leaves, attn_mask=mask, scale=ctx.scale)
            grads = torch.autograd.grad(out, leaves, dout)
        return *grads, None, None, None


def _mask(lists: BlockLists, tokens: int) -> torch.Tensor:
    """bool [tokens, tokens]."""
    n = lists.begin.numel() - 1
    blocks = torch.zeros(n, n, dtype=torch.bool, device=lists.begin.device)
    blocks[lists.rows.long(), lists.columns.long()] = True
    return blocks.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[:tokens, :tokens]
