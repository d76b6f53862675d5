"""Host side of the kernel: what each rung switches on, descriptors, grid."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from .kernel import ladder_fwd
from .platforms import RUNGS, Config


@dataclass(frozen=True)
class Launch:
    """The kernel with everything it is launched with."""

    kernel: Any
    grid: tuple[int, int]
    args: tuple[Any, ...]
    options: dict[str, Any]


def prepare(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    *,
    scale: float,
    causal: bool,
    rung: str,
    config: Config,
) -> Launch:
    """The launch that writes `out`. Tensors are contiguous [B, H, N, D], and not empty."""
    batch, heads, length, dim = q.shape
    height = RUNGS.index(rung)
    tma = config.tma and height >= RUNGS.index("memory")
    keys = [_boxes(x, config.block_n) if tma else x for x in (k, v)]
    options: dict[str, Any] = {
        "BM": config.block_m,
        "BN": config.block_n,
        "D": dim,
        "CAUSAL": causal,
        "EXP2": height >= RUNGS.index("exp2"),
        "TMA": tma,
        "LONG_FIRST": causal and height >= RUNGS.index("memory"),
        "OWN": height >= RUNGS.index("full"),
        "STAGES": config.num_stages,
        "UPCAST": triton.knobs.runtime.interpret,
        "num_warps": config.num_warps,
    }
    if config.registers is not None:
        options["maxnreg"] = config.registers
    grid = (triton.cdiv(length, config.block_m), batch * heads)
    return Launch(ladder_fwd, grid, (q, *keys, out, scale, length), options)


def _boxes(tensor: torch.Tensor, rows: int) -> TensorDescriptor:
    """A descriptor with the heads as an axis of their own: a box at the end of one reads zeros, not the next one."""
    flat = tensor.view(-1, *tensor.shape[2:])
    return TensorDescriptor.from_tensor(flat, [1, rows, tensor.shape[3]])


def run(launch: Launch, device: torch.device) -> None:
    """Launch on the device's current stream."""
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        launch.kernel[launch.grid](*launch.args, **launch.options)
