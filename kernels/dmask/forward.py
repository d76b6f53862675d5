"""The forward kernel: online softmax in base 2 over the tiles that the lists name (FlashAttention-2, arXiv 2307.08691)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .launch import Launch
from .prepass import TILE, Classes, Lists, entry, pairs, to_visit

LOG2E = tl.constexpr(1.4426950408889634)
SIZES = ("Sq", "nq", "nk", "H", "group", "plane_b", "plane_h")  # one binary serves all


@triton.jit
def dot(a, b, acc, UPCAST: tl.constexpr):
    """a·b + acc in float32. Triton 3.6's interpreter multiplies the bit patterns of bfloat16, so upcast for it."""
    if UPCAST:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    else:
        return tl.dot(a, b, acc)


@triton.jit
def _tile(q, m_i, l_i, acc, K, V, WORDS, tile, Sk, s, stride, T: tl.constexpr, D: tl.constexpr,
          MASKED: tl.constexpr, UPCAST: tl.constexpr):  # fmt: skip
    """One tile of keys; with MASKED the mask is applied and the tile may reach over the last key."""
    keys = tile * T + tl.arange(0, T)
    at = keys.to(tl.int64)[:, None] * stride + tl.arange(0, D)[None, :]
    if MASKED:
        here = keys < Sk
        k = tl.load(K + at, mask=here[:, None], other=0.0)
        v = tl.load(V + at, mask=here[:, None], other=0.0)
    else:
        k = tl.load(K + at)
        v = tl.load(V + at)
    qk = dot(q, tl.trans(k), tl.zeros([T, T], tl.float32), UPCAST) * s
    if MASKED:
        qk = tl.where(pairs(WORDS, tile, T, False), qk, -float("inf"))
    m_ij = tl.maximum(m_i, tl.max(qk, 1))
    # A row that has seen no key yet keeps m = -inf, and -inf - -inf would be NaN.
    safe = tl.where(m_ij == -float("inf"), 0.0, m_ij)
    p = tl.math.exp2(qk - safe[:, None])
    alpha = tl.math.exp2(m_i - safe)
    l_i = l_i * alpha + tl.sum(p, 1)
    acc = dot(p.to(v.dtype), v, acc * alpha[:, None], UPCAST)
    return m_ij, l_i, acc


@triton.jit(do_not_specialize=SIZES)
def dmask_forward(Q, K, V, OUT, LSE, WORDS, COUNTS, NUM, INDEX, sm_scale, Sq, Sk, nq, nk, H, group, plane_b, plane_h,
                  T: tl.constexpr, D: tl.constexpr, UPCAST: tl.constexpr):  # fmt: skip
    """Grid (nq * B * H,). Q, OUT [B, Sq, H, D]; K, V [B, Sk, H / group, D]; LSE float32 [B, H, nq * T], base 2, +inf for a
    row that sees nothing, as those behind Sq do (so its loads need no mask, and are wide); WORDS, COUNTS,
    NUM and INDEX as in `Classes` and the rows' `Lists`, of which plane b * plane_b + h * plane_h is this head's."""
    i = tl.program_id(0) % nq
    head = tl.program_id(0) // nq
    b = (head // H).to(tl.int64)
    h = head % H
    plane = b * plane_b + h * plane_h
    rows = i * T + tl.arange(0, T)
    mine = rows < Sq
    dims = tl.arange(0, D)
    stride = H // group * D
    at = ((b * Sq + rows)[:, None] * H + h) * D + dims[None, :]
    q = tl.load(Q + at, mask=mine[:, None], other=0.0)
    K += b * Sk * stride + h // group * D
    V += b * Sk * stride + h // group * D
    s = sm_scale * LOG2E
    m_i = tl.full([T], -float("inf"), tl.float32)
    l_i = tl.zeros([T], tl.float32)
    acc = tl.zeros([T, D], tl.float32)
    LIST = INDEX + (plane * nq + i) * nk
    WORDS += (plane * nq + i) * nk * 2 * T
    listed, full, both = to_visit(COUNTS, NUM, plane, nq, i, nk)
    for t in tl.range(0, full):
        tile = tl.load(LIST + t)
        m_i, l_i, acc = _tile(q, m_i, l_i, acc, K, V, WORDS, tile, Sk, s, stride, T, D, False, UPCAST)
    for t in tl.range(full, both):
        tile = entry(LIST, t, listed)
        m_i, l_i, acc = _tile(q, m_i, l_i, acc, K, V, WORDS, tile, Sk, s, stride, T, D, True, UPCAST)
    saw = l_i != 0.0
    acc = acc * tl.where(saw, 1.0 / tl.where(saw, l_i, 1.0), 0.0)[:, None]
    tl.store(OUT + at, acc.to(q.dtype), mask=mine[:, None])
    lse = tl.where(saw, m_i + tl.math.log2(tl.where(saw, l_i, 1.0)), float("inf"))
    tl.store(LSE + head.to(tl.int64) * nq * T + rows, lse)


def statistics(q: torch.Tensor) -> torch.Tensor:
    """Room for a number a row, float32 [B, H, nq * TILE]."""
    batch, sq, heads, _ = q.shape
    return torch.empty(batch, heads, triton.cdiv(sq, TILE) * TILE, dtype=torch.float32, device=q.device)


def sizes(q: torch.Tensor, k: torch.Tensor, planes: torch.Size) -> tuple[int, ...]:
    """The extents that every kernel of the package takes: Sq, Sk, nq, nk, H, group, plane_b, plane_h. planes: the mask's
    leading two sizes."""
    sq, heads, sk = q.shape[1], q.shape[2], k.shape[1]
    per_head = int(planes[1] > 1)
    per_batch = planes[1] * int(planes[0] > 1)
    tiles = (triton.cdiv(sq, TILE), triton.cdiv(sk, TILE))
    return sq, sk, *tiles, heads, heads // k.shape[2], per_batch, per_head


def forward_launch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    classes: Classes,
    lists: Lists,
    planes: torch.Size,
    scale: float,
) -> Launch:
    """Writes out and lse; all tensors contiguous, lists by row, planes the mask's [B or 1, Hq or 1]."""
    extents = sizes(q, k, planes)
    args = (q, k, v, out, lse, classes.words, classes.counts, lists.num, lists.index, scale, *extents)
    return Launch(dmask_forward, extents[2] * q.shape[0] * q.shape[2], args, options(q.shape[3]))


def options(dim: int, warps: int = 4) -> dict[str, object]:
    """Compile-time options of the tile kernels. Three stages: the list's entry, the tile's loads, the products."""
    return {"T": TILE, "D": dim, "UPCAST": triton.knobs.runtime.interpret, "num_warps": warps, "num_stages": 3}
