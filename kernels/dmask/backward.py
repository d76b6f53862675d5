"""The backward kernels: dK and dV walk the columns' lists, dQ the rows' (FlashAttention-2, arXiv 2307.08691, alg. 2).

Seven matrix products a tile instead of five, and in return no addition whose order is open: gradients repeat bit for
bit. K and V (dQ: Q and dO) of a tile are loaded once; of the others, those that the lists name.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .forward import LOG2E, SIZES, dot, options, sizes
from .launch import Launch
from .prepass import TILE, Classes, Lists, entry, pairs, to_visit


@triton.jit(do_not_specialize=["Sq", "H"])
def dmask_delta(OUT, DO, DELTA, Sq, H, D: tl.constexpr, T: tl.constexpr):
    """Grid (nq * B * H,). DELTA float32 [B, H, nq * T], 0 behind Sq, = row sums of OUT * DO, both [B, Sq, H, D]."""
    tiles = tl.cdiv(Sq, T)
    head = tl.program_id(0) // tiles
    rows = tl.program_id(0) % tiles * T + tl.arange(0, T)
    here = rows < Sq
    at = (((head // H).to(tl.int64) * Sq + rows)[:, None] * H + head % H) * D + tl.arange(0, D)[None, :]
    o = tl.load(OUT + at, mask=here[:, None], other=0.0).to(tl.float32)
    do = tl.load(DO + at, mask=here[:, None], other=0.0).to(tl.float32)
    tl.store(DELTA + head.to(tl.int64) * tiles * T + rows, tl.sum(o * do, 1))


@triton.jit
def _dkdv_tile(k, v, dk, dv, Q, DO, LSE, DELTA, WORDS, tile, at_word, Sq, s, stride, T: tl.constexpr,
               D: tl.constexpr, MASKED: tl.constexpr, UPCAST: tl.constexpr):  # fmt: skip
    """One tile of queries, transposed: keys by rows. With MASKED the mask is applied, and it may reach over the end."""
    rows = tile * T + tl.arange(0, T)
    at = rows.to(tl.int64)[:, None] * stride + tl.arange(0, D)[None, :]
    if MASKED:
        here = rows < Sq
        q = tl.load(Q + at, mask=here[:, None], other=0.0)
        do = tl.load(DO + at, mask=here[:, None], other=0.0)
    else:
        q = tl.load(Q + at)
        do = tl.load(DO + at)
    lse = tl.load(LSE + rows)
    delta = tl.load(DELTA + rows)
    zero = tl.zeros([T, T], tl.float32)
    p = tl.math.exp2(dot(k, tl.trans(q), zero, UPCAST) * s - lse[None, :])
    if MASKED:
        p = tl.where(pairs(WORDS, at_word, T, True), p, 0.0)
    dv = dot(p.to(q.dtype), do, dv, UPCAST)
    ds = p * (dot(v, tl.trans(do), zero, UPCAST) - delta[None, :])
    dk = dot(ds.to(q.dtype), q, dk, UPCAST)
    return dk, dv


@triton.jit(do_not_specialize=SIZES)
def dmask_dkdv(Q, K, V, DO, LSE, DELTA, DK, DV, WORDS, COUNTS, NUM, INDEX, sm_scale, Sq, Sk, nq, nk, H, group, plane_b,
               plane_h, T: tl.constexpr, D: tl.constexpr, UPCAST: tl.constexpr):  # fmt: skip
    """Grid (nk * B * H / group,). DO like Q, DK and DV like K, DELTA like LSE; NUM and INDEX of the columns; the rest
    as in dmask_forward."""
    j = tl.program_id(0) % nk
    key_heads = H // group
    b = (tl.program_id(0) // nk // key_heads).to(tl.int64)
    key_head = tl.program_id(0) // nk % key_heads
    keys = j * T + tl.arange(0, T)
    mine = keys < Sk
    at = ((b * Sk + keys)[:, None] * key_heads + key_head) * D + tl.arange(0, D)[None, :]
    k = tl.load(K + at, mask=mine[:, None], other=0.0)
    v = tl.load(V + at, mask=mine[:, None], other=0.0)
    dk = tl.zeros([T, D], tl.float32)
    dv = tl.zeros([T, D], tl.float32)
    s = sm_scale * LOG2E
    stride = H * D
    for g in range(group):
        h = key_head * group + g
        plane = b * plane_b + h * plane_h
        QH = Q + b * Sq * stride + h * D
        DOH = DO + b * Sq * stride + h * D
        stat = (b * H + h) * nq * T
        OWN = WORDS + plane * nq * nk * 2 * T
        LIST = INDEX + (plane * nk + j) * nq
        listed, full, both = to_visit(COUNTS, NUM, plane, nk, j, nq)
        for t in tl.range(0, full):
            tile = tl.load(LIST + t)
            dk, dv = _dkdv_tile(k, v, dk, dv, QH, DOH, LSE + stat, DELTA + stat, OWN, tile, tile * nk + j, Sq, s, stride,
                                T, D, False, UPCAST)  # fmt: skip
        for t in tl.range(full, both):
            tile = entry(LIST, t, listed)
            dk, dv = _dkdv_tile(k, v, dk, dv, QH, DOH, LSE + stat, DELTA + stat, OWN, tile, tile * nk + j, Sq, s, stride,
                                T, D, True, UPCAST)  # fmt: skip
    tl.store(DK + at, (dk * sm_scale).to(k.dtype), mask=mine[:, None])
    tl.store(DV + at, dv.to(k.dtype), mask=mine[:, None])


@triton.jit
def _dq_tile(q, do, dq, lse, delta, K, V, WORDS, tile, Sk, s, stride, T: tl.constexpr, D: tl.constexpr,
             MASKED: tl.constexpr, UPCAST: tl.constexpr):  # fmt: skip
    keys = tile * T + tl.arange(0, T)
    at = keys.to(tl.int64)[:, None] * stride + tl.arange(0, D)[None, :]
    if MASKED:
        here = keys < Sk
        k = tl.load(K + at, mask=here[:, None], other=0.0)
        v = tl.load(V + at, mask=here[:, None], other=0.0)
    else:
        k = tl.load(K + at)
        v = tl.load(V + at)
    zero = tl.zeros([T, T], tl.float32)
    p = tl.math.exp2(dot(q, tl.trans(k), zero, UPCAST) * s - lse[:, None])
    if MASKED:
        p = tl.where(pairs(WORDS, tile, T, False), p, 0.0)
    ds = p * (dot(do, tl.trans(v), zero, UPCAST) - delta[:, None])
    return dot(ds.to(q.dtype), k, dq, UPCAST)


@triton.jit(do_not_specialize=SIZES)
def dmask_dq(Q, K, V, DO, LSE, DELTA, DQ, WORDS, COUNTS, NUM, INDEX, sm_scale, Sq, Sk, nq, nk, H, group, plane_b,
             plane_h, T: tl.constexpr, D: tl.constexpr, UPCAST: tl.constexpr):  # fmt: skip
    """Grid (nq * B * H,). DQ like Q; NUM and INDEX of the rows; the rest as in dmask_dkdv."""
    i = tl.program_id(0) % nq
    head = tl.program_id(0) // nq
    b = (head // H).to(tl.int64)
    h = head % H
    plane = b * plane_b + h * plane_h
    rows = i * T + tl.arange(0, T)
    mine = rows < Sq
    stride = H // group * D
    at = ((b * Sq + rows)[:, None] * H + h) * D + tl.arange(0, D)[None, :]
    q = tl.load(Q + at, mask=mine[:, None], other=0.0)
    do = tl.load(DO + at, mask=mine[:, None], other=0.0)
    stat = head.to(tl.int64) * nq * T + rows
    lse = tl.load(LSE + stat)
    delta = tl.load(DELTA + stat)
    K += b * Sk * stride + h // group * D
    V += b * Sk * stride + h // group * D
    s = sm_scale * LOG2E
    dq = tl.zeros([T, D], tl.float32)
    LIST = INDEX + (plane * nq + i) * nk
    WORDS += (plane * nq + i) * nk * 2 * T
    listed, full, both = to_visit(COUNTS, NUM, plane, nq, i, nk)
    for t in tl.range(0, full):
        tile = tl.load(LIST + t)
        dq = _dq_tile(q, do, dq, lse, delta, K, V, WORDS, tile, Sk, s, stride, T, D, False, UPCAST)
    for t in tl.range(full, both):
        tile = entry(LIST, t, listed)
        dq = _dq_tile(q, do, dq, lse, delta, K, V, WORDS, tile, Sk, s, stride, T, D, True, UPCAST)
    tl.store(DQ + at, (dq * sm_scale).to(q.dtype), mask=mine[:, None])


def delta_launch(out: torch.Tensor, dout: torch.Tensor, delta: torch.Tensor) -> Launch:
    """Writes delta [B, H, nq * TILE]; out and dout contiguous [B, Sq, H, D]."""
    batch, sq, heads, dim = out.shape
    programs = triton.cdiv(sq, TILE) * batch * heads
    return Launch(dmask_delta, programs, (out, dout, delta, sq, heads), {"D": dim, "T": TILE})


def dkdv_launch(
    tensors: tuple[torch.Tensor, ...],
    dk: torch.Tensor,
    dv: torch.Tensor,
    classes: Classes,
    columns: Lists,
    planes: torch.Size,
    scale: float,
) -> Launch:
    """Writes dk and dv. tensors: q, k, v, dout, lse, delta; all contiguous."""
    extents = sizes(tensors[0], tensors[1], planes)
    args = (*tensors, dk, dv, classes.words, classes.counts, columns.num, columns.index, scale, *extents)
    return Launch(
        dmask_dkdv, extents[3] * dk.shape[0] * dk.shape[2], args, options(dk.shape[3], 8 if dk.shape[3] == 128 else 4)
    )


def dq_launch(
    tensors: tuple[torch.Tensor, ...],
    dq: torch.Tensor,
    classes: Classes,
    rows: Lists,
    planes: torch.Size,
    scale: float,
) -> Launch:
    """Writes dq; as dkdv_launch."""
    extents = sizes(tensors[0], tensors[1], planes)
    args = (*tensors, dq, classes.words, classes.counts, rows.num, rows.index, scale, *extents)
    return Launch(dmask_dq, extents[2] * dq.shape[0] * dq.shape[2], args, options(dq.shape[3]))
