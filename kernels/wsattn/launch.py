"""Host side of the kernels: descriptors, grid, options."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from .configs import Config
from .gluon_fwd import ws_fwd

_DTYPES = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}


@dataclass(frozen=True)
class Launch:
    """The kernel with everything it is launched with; the grid is one-dimensional."""

    kernel: Any
    programs: int
    args: tuple[Any, ...]
    options: dict[str, Any]


def prepare(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, scale: float, variant: str, config: Config
) -> Launch:
    """The launch that writes `out`. Tensors are contiguous [B, H, N, D], none of them empty."""
    batch, heads, length, dim = q.shape
    keys = k.shape[2]
    tiles = triton.cdiv(length, config.BLOCK_M)
    boxes = [
        _boxes(x, rows) for x, rows in ((q, config.rows), (k, config.BLOCK_N), (v, config.BLOCK_N), (out, config.rows))
    ]
    entry, consumer, producer = config.registers
    options = {
        "BM": config.rows,
        "BN": config.BLOCK_N,
        "D": dim,
        "NB": config.NUM_BUFFERS,
        "NG": config.NUM_MMA_GROUPS,
        "PIPELINED": variant == "ws_pipelined",
        "TAIL": keys % config.BLOCK_N != 0,
        "CREG": consumer,
        "PREG": producer,
        "num_warps": config.num_warps,
        "num_stages": config.num_stages,
        "maxnreg": entry,
    }
    return Launch(ws_fwd, tiles * batch * heads, (*boxes, scale, tiles, keys), options)


def run(launch: Launch, device: torch.device) -> None:
    """Launch on the device's current stream."""
    with torch.cuda.device(device):
        launch.kernel[(launch.programs,)](*launch.args, **launch.options)


def _boxes(tensor: torch.Tensor, rows: int) -> TensorDescriptor:
    """A descriptor with the heads as an axis of their own, in boxes of one head's rows."""
    batch, heads, length, dim = tensor.shape
    layout = _layout((1, rows, dim), tensor.dtype)
    shape, strides = [batch * heads, length, dim], [length * dim, dim, 1]
    return TensorDescriptor(tensor, shape, strides, [1, rows, dim], layout)


@cache
def _layout(box: tuple[int, ...], dtype: torch.dtype) -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout.get_default_for(list(box), _DTYPES[dtype])
