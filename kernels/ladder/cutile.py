"""The same ladder in cuTile (package cuda-tile): one kernel, what a rung adds is a constant.

| rung | what it adds |
|---|---|
| `cutile_basic` | one fused kernel, natural exponential |
| `cutile_exp2` | base-2 exponential that flushes denormal numbers, the scale folded in |
| `cutile_memory` | K loaded transposed, latency hints of 2 for K and 4 for V, long causal rows first |
| `cutile_full` | two thread blocks per multiprocessor, approximate division |
"""

from __future__ import annotations

import cuda.tile as ct
import torch

from .platforms import CUTILE_RUNGS, CutileConfig

LOG2E = 1.4426950408889634
Unable = (ct.TileCompilerExecutionError, ct.TileUnsupportedFeatureError)  # no compiler, or none for this GPU


def _body(Q, K, V, OUT, scale: float, n: int, BM: ct.Constant[int], BN: ct.Constant[int], D: ct.Constant[int],
          CAUSAL: ct.Constant[bool], HEIGHT: ct.Constant[int]):  # fmt: skip
    """Grid (tiles, B*H). Q, K, V, OUT: [B*H, n, D]. HEIGHT: 0 for the first rung, 3 for the last."""
    tile = ct.bid(0)
    head = ct.bid(1)
    if HEIGHT >= 2 and CAUSAL:
        tile = ct.num_blocks(0) - 1 - tile
    first = tile * BM
    rows = first + ct.arange(BM, dtype=ct.int32)[:, None]
    q = ct.load(Q, index=(head, tile, 0), shape=(1, BM, D), padding_mode=ct.PaddingMode.ZERO).reshape((BM, D))
    top = ct.full((BM, 1), -float("inf"), dtype=ct.float32)
    total = ct.full((BM, 1), 0.0, dtype=ct.float32)
    acc = ct.full((BM, D), 0.0, dtype=ct.float32)
    s = scale * LOG2E if HEIGHT >= 1 else scale
    end = min(first + BM, n) if CAUSAL else n
    whole = (min(first + 1, n) if CAUSAL else n) // BN
    for j in range(ct.cdiv(end, BN)):
        if HEIGHT >= 2:
            k = ct.load(K, index=(head, 0, j), shape=(1, D, BN), order=(0, 2, 1), latency=2,
                        padding_mode=ct.PaddingMode.ZERO).reshape((D, BN))  # fmt: skip
        else:
            k = ct.load(K, index=(head, j, 0), shape=(1, BN, D), padding_mode=ct.PaddingMode.ZERO).reshape((BN, D))
            k = ct.transpose(k)
        qk = ct.mma(q, k, ct.full((BM, BN), 0.0, dtype=ct.float32))
        if j >= whole:
            keys = j * BN + ct.arange(BN, dtype=ct.int32)[None, :]
            seen = keys < n
            if CAUSAL:
                seen = seen & (keys <= rows)
            qk = ct.where(seen, qk, -float("inf"))
        if HEIGHT >= 1:
            higher = ct.maximum(top, ct.max(qk, axis=1, keepdims=True) * s)
            p = ct.exp2(qk * s - higher, flush_to_zero=True)
            alpha = ct.exp2(top - higher, flush_to_zero=True)
        else:
            higher = ct.maximum(top, ct.max(qk, axis=1, keepdims=True) * s)
            p = ct.exp(qk * s - higher)
            alpha = ct.exp(top - higher)
        top = higher
        total = total * alpha + ct.sum(p, axis=1, keepdims=True)
        latency = 4 if HEIGHT >= 2 else None
        v = ct.load(V, index=(head, j, 0), shape=(1, BN, D), latency=latency,
                    padding_mode=ct.PaddingMode.ZERO).reshape((BN, D))  # fmt: skip
        acc = ct.mma(p.astype(V.dtype), v, acc * alpha)
    if HEIGHT >= 3:
        acc = ct.truediv(acc, total, flush_to_zero=True, rounding_mode=ct.RoundingMode.APPROX)
    else:
        acc = acc / total
    ct.store(OUT, index=(head, tile, 0), tile=acc.astype(OUT.dtype).reshape((1, BM, D)))


KERNELS = {1: ct.kernel(_body), 2: ct.kernel(_body, occupancy=2)}  # by occupancy


def run(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    *,
    scale: float,
    causal: bool,
    rung: str,
    config: CutileConfig,
) -> None:
    """Write `out` on the current stream. Tensors are contiguous [B, H, N, D]. Raises one of Unable."""
    batch, heads, length, dim = q.shape
    flat = [x.view(-1, length, dim) for x in (q, k, v, out)]
    grid = (-(-length // config.block_m), batch * heads, 1)
    height = CUTILE_RUNGS.index(rung)
    args = (*flat, scale, length, config.block_m, config.block_n, dim, causal, height)
    with torch.cuda.device(q.device):
        ct.launch(torch.cuda.current_stream(), grid, KERNELS[config.occupancy], args)
