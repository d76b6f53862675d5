"""The public function: checks, the launch under its NVTX range, and gradients."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention
from torch.profiler import record_function

from .configs import VARIANTS, Config

DTYPES = (torch.float16, torch.bfloat16)
HEAD_DIM = 128
RANGES = {"ws": "attention_ws", "ws_pipelined": "attention_ws_pp"}


class UnsupportedOption(NotImplementedError):
    """Something that no kernel here computes; the message is the reason, in one line."""


def ws_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float | None = None,
    *,
    variant: str = "ws_pipelined",
    config: Config | None = None,
) -> torch.Tensor:
    """softmax(scale * q kᵀ) v without a mask, by the `ws` or the `ws_pipelined` kernel.

    q [B, H, Nq, 128], k and v [B, H, Nk, 128], float16 or bfloat16, on one Hopper GPU (compute capability 9.x). scale:
    positive, 1/sqrt(128) if None. config: in place of the one that `configuration` chooses.

    Returns out, like q and contiguous; bit-equal from call to call for one configuration. Differentiable once in q, k and
    v: the forward is the kernel's, the gradients are those of torch's scaled_dot_product_attention on the same inputs, for
    which it computes the forward again. Raises ValueError on bad arguments and UnsupportedOption on a device, dtype or
    size that is not there. The kernel runs in the NVTX range attention_ws_B{}_H{}_N{}_D{} or attention_ws_pp_....
    """
    factor = HEAD_DIM**-0.5 if scale is None else float(scale)
    check(q, k, v, factor, variant)
    if torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v)):
        attention: Any = _Attention.apply  # untyped in torch
        out: torch.Tensor = attention(q, k, v, factor, variant, config)
        return out
    return _forward(q, k, v, factor, variant, config)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        scale: float,
        variant: str,
        config: Config | None,
    ) -> torch.Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.scale = scale
        return _forward(q, k, v, scale, variant, config)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        with torch.enable_grad():
            leaves = [t.detach().requires_grad_() for t in ctx.saved_tensors]
            out = scaled_dot_product_attention(*leaves, scale=ctx.scale)
        return (*torch.autograd.grad(out, leaves, dout), None, None, None)


def _forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, variant: str, config: Config | None
) -> torch.Tensor:
    from . import launch, tune

    with record_function("wsattn_prepare"):
        q, k, v = map(_aligned, (q, k, v))
        out = torch.empty_like(q)
        if not q.numel():
            return out
        made = launch.prepare(q, k, v, out, scale, variant, config or tune.choose(q, k, v, scale, variant))
    batch, heads, length, dim = q.shape
    name = f"{RANGES[variant]}_B{batch}_H{heads}_N{length}_D{dim}"
    with record_function("wsattn_run"), torch.cuda.nvtx.range(name):
        launch.run(made, q.device)
    return out


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """Contiguous, and at 16 bytes for TMA: a part of another tensor may begin anywhere."""
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()


def check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, variant: str) -> None:
    """Raise what is wrong with the arguments."""
    if variant not in VARIANTS:
        raise ValueError(f"variant must be one of {', '.join(VARIANTS)}, not {variant!r}")
    if not (math.isfinite(scale) and scale > 0):
        raise ValueError(f"scale must be positive and finite, not {scale}")
    if q.ndim != 4:
        raise ValueError(f"q must be [B, H, N, D], not of shape {list(q.shape)}")
    if k.shape != v.shape or k.ndim != 4 or (*k.shape[:2], k.shape[3]) != (*q.shape[:2], q.shape[3]):
        raise ValueError(
            f"k and v must be [B, H, Nk, D] with B, H and D of q {list(q.shape)}, not {list(k.shape)} and {list(v.shape)}"
        )
    if q.numel() and not k.shape[2]:
        raise ValueError("k and v have no keys")
    for name, tensor in (("k", k), ("v", v)):
        if tensor.dtype != q.dtype or tensor.device != q.device:
            raise ValueError(f"{name} is {tensor.dtype} on {tensor.device}, but q {q.dtype} on {q.device}")
    if q.dtype not in DTYPES:
        raise UnsupportedOption(f"dtype {str(q.dtype).removeprefix('torch.')}; float16 and bfloat16 are there")
    if q.shape[3] != HEAD_DIM:
        raise UnsupportedOption(f"head dimension {q.shape[3]}; {HEAD_DIM} is there")
    check_device(q.device)


def check_device(device: torch.device) -> None:
    """Raise UnsupportedOption unless this is a Hopper GPU."""
    if device.type != "cuda" or torch.version.hip:
        raise UnsupportedOption(f"needs a Hopper GPU, compute capability 9.x, and this is {device.type}")
    major, minor = torch.cuda.get_device_capability(device)
    if major != 9:
        raise UnsupportedOption(f"needs a Hopper GPU, compute capability 9.x, and this one has {major}.{minor}")
