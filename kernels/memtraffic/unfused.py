"""Three kernels: scores to memory, softmax over them in place, probabilities times V."""

from __future__ import annotations

import importlib

import torch
from torch.profiler import record_function

from .checks import attend
from .lists import BLOCK, BlockLists, every_block

DIMS = (64, 128, 256, 512)


def full_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float | None = None) -> torch.Tensor:
    """As fused.full_attention, D up to 512. The scores, in the inputs' dtype, take B H N^2 elements of memory."""
    everything = None
    if q.ndim == 4:
        everything = every_block(-(-q.shape[2] // BLOCK), q.device)
    return _attend(q, k, v, everything, None, scale)


def block_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lists: BlockLists, *, scale: float | None = None
) -> torch.Tensor:
    """As fused.block_attention. The scores take 64 x 64 elements for each batch entry, head and entry of the lists."""
    return _attend(q, k, v, lists, lists, scale)


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    visited: BlockLists | None,
    lists: BlockLists | None,
    scale: float | None,
) -> torch.Tensor:
    def compute(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
        launch = importlib.import_module(".launch", __package__)
        with record_function("memtraffic_fwd_prepare"):
            out = torch.empty_like(q)
            size = (q.shape[0] * q.shape[1], visited.entries, BLOCK, BLOCK)
            scores = torch.empty(size, dtype=q.dtype, device=q.device)
        with record_function("memtraffic_fwd_qk"):
            launch.qk(q, k, scores, visited, scale).run(q.device)
        with record_function("memtraffic_fwd_softmax"):
            launch.softmax(scores, visited).run(q.device)
        with record_function("memtraffic_fwd_pv"):
            launch.pv(scores, v, out, visited).run(q.device)
        return out

    return attend(compute, (q, k, v), lists, scale, DIMS)
