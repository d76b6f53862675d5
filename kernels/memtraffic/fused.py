"""One kernel: scores and probabilities stay on the multiprocessor (FlashAttention-2, arXiv 2307.08691)."""

from __future__ import annotations

import importlib

import torch
from torch.profiler import record_function

from .checks import attend
from .lists import BlockLists

FULL_DIMS = (64, 128, 256)
BLOCK_DIMS = (64, 128, 256, 512)


def full_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float | None = None) -> torch.Tensor:
    """Every query sees every key. q, k, v and the result [B, H, N, D]; D 64, 128 or 256; float16, bfloat16 or float32
    (multiplied in TF32). scale: 1/sqrt(D) if None. Differentiable, by torch's own attention.

    Raises ValueError (one line) on bad arguments, NotImplementedError on what is not there.
    """

    def compute(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
        launch = importlib.import_module(".launch", __package__)
        with record_function("memtraffic_fwd_prepare"):
            out = torch.empty_like(q)
        with record_function("memtraffic_fwd_run"):
            launch.flash2(q, k, v, out, scale).run(q.device)
        return out

    return attend(compute, (q, k, v), None, scale, FULL_DIMS)


def block_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lists: BlockLists, *, scale: float | None = None
) -> torch.Tensor:
    """Queries of block i, 64 to a block, see the blocks of keys that `lists` names. D up to 512; else as full_attention."""

    def compute(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
        launch = importlib.import_module(".launch", __package__)
        with record_function("memtraffic_fwd_prepare"):
            out = torch.empty_like(q)
        with record_function("memtraffic_fwd_run"):
            launch.blocks(q, k, v, out, lists, scale).run(q.device)
        return out

    return attend(compute, (q, k, v), lists, scale, BLOCK_DIMS)
