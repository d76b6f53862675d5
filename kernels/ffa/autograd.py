"""The autograd function over both backends, and the choice of backend by device."""

from __future__ import annotations

import importlib
from typing import Any, Protocol, cast

import torch
from torch.autograd.function import once_differentiable
from torch.profiler import record_function

from .schedule import Blocks, Schedule, Slices, UnsupportedOption

BACKENDS = {"cpu": ".cpu", "cuda": ".cuda"}  # device type -> module of this package, imported at first use


class Backend(Protocol):
    """What a backend module offers (shapes in schedule.py)."""

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, schedule: Schedule, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]: ...

    def backward(
        self,
        dout: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        schedule: Schedule,
        scale: float,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]: ...


def backend_for(device: torch.device) -> Backend:
    """The backend of this device. Raises UnsupportedOption when there is none."""
    name = BACKENDS.get(device.type)
    if name is None:
        raise UnsupportedOption(f"no backend for device {device.type!r}, only for {', '.join(BACKENDS)}")
    return cast("Backend", importlib.import_module(name, __package__))


class Attention(torch.autograd.Function):
    """(out, lse) of (q, k, v); lse carries no gradient, and there is no second derivative."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, schedule: Schedule, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if _sees_nothing(schedule):
            out, lse = torch.zeros_like(q), q.new_full((q.shape[1], q.shape[0]), -torch.inf, dtype=torch.float32)
        else:
            out, lse = backend_for(q.device).forward(q, k, v, schedule, scale)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.schedule, ctx.scale = schedule, scale
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        if grads[0] is None:
            return None, None, None, None, None
        if _sees_nothing(ctx.schedule):
            return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v), None, None
        if isinstance(ctx.schedule, Blocks):
            with record_function("ffa_bwd_range_merge"):
                _ = ctx.schedule.transposed
        dq, dk, dv = backend_for(q.device).backward(grads[0], q, k, v, out, lse, ctx.schedule, ctx.scale)
        return dq, dk, dv, None, None


def _sees_nothing(schedule: Schedule) -> bool:
    """No work that a kernel could be launched for."""
    if isinstance(schedule, Slices):
        return not len(schedule)
    return not (schedule.q_len and schedule.k_len and schedule.kv_indices.shape[-1])
