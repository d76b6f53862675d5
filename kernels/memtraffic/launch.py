"""Tile shapes and grids. One function per kernel."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import triton

from .kernels import memtraffic_blocks, memtraffic_flash2, memtraffic_pv, memtraffic_qk, memtraffic_softmax
from .lists import BLOCK, BlockLists

FLASH2_ROWS, FLASH2_KEYS = 128, 64  # of a program, and of one step of its loop
QK_COLUMNS, PV_COLUMNS = 128, 256  # of D at once, at most
SOFTMAX_ROWS = 16


@dataclass(frozen=True)
class Launch:
    """A kernel with everything it is launched with; the grid is one-dimensional."""

    kernel: Any
    programs: int
    args: tuple[Any, ...]
    options: dict[str, Any]

    def run(self, device: torch.device) -> None:
        """Launch on the device's current stream."""
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            self.kernel[(self.programs,)](*self.args, **self.options)


def flash2(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, scale: float) -> Launch:
    """Writes out, all [B, H, N, D]."""
    heads, n, dim = _sizes(q)
    wide = dim * q.element_size() > 256
    options = {"BM": FLASH2_ROWS, "BN": FLASH2_KEYS, "D": dim, "num_warps": 8, "num_stages": 2 if wide else 3}
    return Launch(memtraffic_flash2, triton.cdiv(n, FLASH2_ROWS) * heads, (q, k, v, out, scale, n), options | _upcast())


def blocks(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lists: BlockLists, scale: float
) -> Launch:
    """As flash2, of the blocks in the lists. A step takes so many keys that Q, K and V fit the shared memory."""
    heads, n, dim = _sizes(q)
    rows = triton.cdiv(n, BLOCK)
    row = dim * q.element_size()
    keys = 64 if row <= 512 else 32 if row <= 1024 else 16
    stages = 2 if row <= 1024 else 1
    options = {"T": BLOCK, "BN": keys, "D": dim, "num_warps": 4 if row <= 256 else 8, "num_stages": stages}
    args = (q, k, v, out, lists.begin, lists.columns, scale, n, rows)
    return Launch(memtraffic_blocks, rows * heads, args, options | _upcast())


def qk(q: torch.Tensor, k: torch.Tensor, scores: torch.Tensor, lists: BlockLists, scale: float) -> Launch:
    """Writes scores [B * H, entries, 64, 64]."""
    heads, n, dim = _sizes(q)
    options = {"T": BLOCK, "D": dim, "DC": min(dim, QK_COLUMNS), "num_warps": 4, "num_stages": 2}
    args = (q, k, scores, lists.rows, lists.columns, scale, n, lists.entries)
    return Launch(memtraffic_qk, lists.entries * heads, args, options | _upcast())


def softmax(scores: torch.Tensor, lists: BlockLists) -> Launch:
    """Scores to probabilities, in place."""
    rows = lists.begin.numel() - 1
    args = (scores, lists.begin, rows, lists.entries)
    options = {"T": BLOCK, "ROWS": SOFTMAX_ROWS, "num_warps": 4}
    return Launch(memtraffic_softmax, rows * (BLOCK // SOFTMAX_ROWS) * scores.shape[0], args, options)


def pv(scores: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lists: BlockLists) -> Launch:
    """Writes out of probabilities and v."""
    heads, n, dim = _sizes(v)
    columns, rows = min(dim, PV_COLUMNS), triton.cdiv(n, BLOCK)
    # TF32 wants V transposed, and asynchronous copies of its single elements cannot go around L1.
    stages = 1 if v.dtype == torch.float32 else 2
    options = {"T": BLOCK, "D": dim, "DV": columns, "num_warps": 4 if columns < 256 else 8, "num_stages": stages}
    args = (scores, v, out, lists.begin, lists.columns, n, rows, lists.entries)
    return Launch(memtraffic_pv, dim // columns * rows * heads, args, options | _upcast())


def _sizes(q: torch.Tensor) -> tuple[int, int, int]:
    return q.shape[0] * q.shape[1], q.shape[2], q.shape[3]


def _upcast() -> dict[str, bool]:
    return {"UPCAST": triton.knobs.runtime.interpret}
