"""The public function: checks, the configuration of this GPU, the launch, and gradients."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention
from torch.profiler import record_function

from .platforms import CUTILE_RUNGS, CUTILE_TILES, FAMILIES, RUNGS, TABLE, Config, CutileConfig

DTYPES = (torch.float16, torch.bfloat16)
HEAD_DIMS = (64, 128)


class UnsupportedOption(NotImplementedError):
    """Something that no rung computes here; the message is the reason, in one line."""


def fmha(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float | None = None,
    causal: bool = True,
    rung: str = "full",
    config: Config | CutileConfig | None = None,
) -> torch.Tensor:
    """softmax(scale * q kᵀ) v, by one rung of the ladder: `basic`, `exp2`, `memory` or `full`, or one of cuTile's.

    q, k, v: [B, H, N, D] of one shape, D 64 or 128, float16 or bfloat16, on one NVIDIA GPU. causal: row i sees keys
    j <= i. scale: positive, 1/sqrt(D) if None. config: instead of the platform table's, a Config or, for a rung of
    cuTile's, a CutileConfig.

    Returns out, like q and contiguous. Differentiable once in q, k and v: the forward is the rung's, the gradients are
    those of torch's scaled_dot_product_attention on the same inputs, for which it computes the forward again. Raises
    ValueError on bad arguments and UnsupportedOption on a device, dtype, size or library that is not there.
    """
    _check(q, k, v, rung)
    factor = q.shape[3] ** -0.5 if scale is None else float(scale)
    if not (math.isfinite(factor) and factor > 0):
        raise ValueError(f"scale must be positive and finite, not {factor}")
    chosen = config or configuration(rung, q.device)
    if torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v)):
        attention: Any = _Attention.apply  # untyped in torch
        out: torch.Tensor = attention(q, k, v, factor, causal, rung, chosen)
        return out
    return _forward(q, k, v, factor, causal, rung, chosen)


def configuration(rung: str, device: torch.device | str = "cuda") -> Config | CutileConfig:
    """What the rung is compiled with on this device. Raises UnsupportedOption where there is no row for it."""
    row = family(torch.device(device))
    if rung in CUTILE_RUNGS:
        return CutileConfig(*CUTILE_TILES[row], occupancy=2 if rung == CUTILE_RUNGS[-1] else 1)
    return TABLE[row][rung]


def family(device: torch.device) -> str:
    """The row of the platform table. In Triton's interpreter the CPU plays sm90."""
    import triton

    if triton.knobs.runtime.interpret:
        return "sm90"
    if device.type != "cuda" or not torch.cuda.is_available() or torch.version.hip:
        raise UnsupportedOption(f"needs an NVIDIA GPU, and this is {device.type}")
    major, minor = torch.cuda.get_device_capability(device)
    if major not in FAMILIES:
        raise UnsupportedOption(f"needs compute capability 8.0 or later, and this GPU has {major}.{minor}")
    return FAMILIES[major]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        scale: float,
        causal: bool,
        rung: str,
        config: Config | CutileConfig,
    ) -> torch.Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.scale, ctx.causal = scale, causal
        return _forward(q, k, v, scale, causal, rung, config)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        with torch.enable_grad():
            leaves = [t.detach().requires_grad_() for t in ctx.saved_tensors]
            out = scaled_dot_product_attention(*leaves, is_causal=ctx.causal, scale=ctx.scale)
        return (*torch.autograd.grad(out, leaves, dout), None, None, None, None)


def _forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    causal: bool,
    rung: str,
    config: Config | CutileConfig,
) -> torch.Tensor:
    from . import launch

    with record_function("fmha_prepare"):
        q, k, v = map(_aligned, (q, k, v))
        out = torch.empty_like(q)
        if not q.numel():
            return out
        options: dict[str, Any] = {"scale": scale, "causal": causal, "rung": rung, "config": config}
        made = None if rung in CUTILE_RUNGS else launch.prepare(q, k, v, out, **options)
    with record_function("fmha_run"):
        if made is None:
            _run_cutile(q, k, v, out, **options)
        else:
            launch.run(made, q.device)
    return out


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """Contiguous, and at 16 bytes for TMA: a part of another tensor may begin anywhere."""
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()


def _run_cutile(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, **options: Any) -> None:
    if not q.is_cuda:
        raise UnsupportedOption("cuTile has no interpreter")
    try:
        from . import cutile
    except ImportError as error:
        raise UnsupportedOption(f"cuTile (package cuda-tile) is not installed: {error}") from error
    try:
        cutile.run(q, k, v, out, **options)
    except cutile.Unable as error:
        line = str(error).strip().split("\n")[0]
        raise UnsupportedOption(f"cuTile cannot compile for this GPU: {line}") from error


def _check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rung: str) -> None:
    if rung not in (*RUNGS, *CUTILE_RUNGS):
        raise ValueError(f"rung must be one of {', '.join((*RUNGS, *CUTILE_RUNGS))}, not {rung!r}")
    if q.ndim != 4:
        raise ValueError(f"q must be [B, H, N, D], not of shape {list(q.shape)}")
    for name, tensor in (("k", k), ("v", v)):
        if tensor.shape != q.shape:
            raise ValueError(f"q and {name} must have equal shapes, not {list(q.shape)} and {list(tensor.shape)}")
        if tensor.dtype != q.dtype or tensor.device != q.device:
            raise ValueError(f"{name} is {tensor.dtype} on {tensor.device}, but q {q.dtype} on {q.device}")
    if q.dtype not in DTYPES:
        raise UnsupportedOption(f"dtype {str(q.dtype).removeprefix('torch.')}; float16 and bfloat16 are there")
    if q.shape[3] not in HEAD_DIMS:
        raise UnsupportedOption(f"head dimension {q.shape[3]}; 64 and 128 are there")
    if q.shape[0] * q.shape[1] > 65535:
        raise UnsupportedOption(f"{q.shape[0] * q.shape[1]} heads in all; at most 65535 fit the grid")
