"""The autograd function: which kernels run, in which phase. Phases are profiler ranges of every call."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.profiler import record_function

from . import backward, forward, prepass


class MaskedAttention(torch.autograd.Function):
    """out of (q, k, v, mask, scale); mask contiguous bool [B or 1, Hq or 1, Sq, Sk]. No second derivative."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, scale: float
    ) -> torch.Tensor:
        if not (mask.numel() and q.shape[0]):
            ctx.scale = None
            ctx.save_for_backward(q, k, v)
            return torch.zeros_like(q)
        with _on(q.device):
            with record_function("dmask_fwd_prepare"):
                q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
                out = torch.empty_like(q)
                lse = forward.statistics(q)
            with record_function("dmask_fwd_prepass"):
                classes = prepass.classify(mask)
                rows = prepass.row_lists(classes)
            with record_function("dmask_fwd_run"):
                forward.forward_launch(q, k, v, out, lse, classes, rows, mask.shape[:2], scale).run()
        ctx.scale, ctx.planes = scale, mask.shape[:2]
        found = (classes.tiles, classes.counts, classes.words, rows.num, rows.index)
        ctx.save_for_backward(q, k, v, out, lse, *found)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if ctx.scale is None:
            return *(torch.zeros_like(t) for t in ctx.saved_tensors), None, None
        q, k, v, out, lse, *found = ctx.saved_tensors
        classes, rows = prepass.Classes(*found[:3]), prepass.Lists(*found[3:])
        with _on(q.device):
            with record_function("dmask_bwd_prepare"):
                dout = dout.contiguous()
                dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
                delta = torch.empty_like(lse)
            with record_function("dmask_bwd_prepass"):
                columns = prepass.column_lists(classes)
            with record_function("dmask_bwd_preprocess"):
                backward.delta_launch(out, dout, delta).run()
            with record_function("dmask_bwd_run"):
                tensors = (q, k, v, dout, lse, delta)
                backward.dkdv_launch(tensors, dk, dv, classes, columns, ctx.planes, ctx.scale).run()
                backward.dq_launch(tensors, dq, classes, rows, ctx.planes, ctx.scale).run()
        return dq, dk, dv, None, None


def _on(device: torch.device) -> Any:
    """Triton launches on the current device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
