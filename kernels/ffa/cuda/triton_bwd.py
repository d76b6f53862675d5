"""Attention backward in plain Triton: any slice, any block size, tails everywhere, the same bits on every run.

dK and dV in one kernel that walks query tiles, dQ in another that walks key tiles: two score products more than the
Gluon kernel needs, and no addition whose order is open. Formulas: FlashAttention-2 (arXiv 2307.08691, algorithm 2).
Rows that see nothing have LSE = +inf here (`prepost.py`), so that their P = exp2(S - inf) = 0.
"""

import triton
import triton.language as tl

from .triton_fwd import LOG2E, SIZES, dot, head_and_item


@triton.jit
def _dkdv_tile(k, v, dk, dv, keys, Q, DO, LSE, DELTA, start, q_hi, off, k_hi, s, stride, BM: tl.constexpr,
               D: tl.constexpr, MASK: tl.constexpr, UPCAST: tl.constexpr):  # fmt: skip
    """One tile of rows start.. below q_hi; with MASK key j is seen by rows from j - off on."""
    rows = start + tl.arange(0, BM)
    here = rows < q_hi
    at = rows.to(tl.int64)[:, None] * stride + tl.arange(0, D)[None, :]
    q = tl.load(Q + at, mask=here[:, None], other=0.0)
    lse = tl.load(LSE + rows, mask=here, other=float("inf"))
    z = tl.zeros([k.shape[0], BM], tl.float32)
    st = dot(k, tl.trans(q), z, UPCAST)
    pt = tl.math.exp2(st * s - lse[None, :])
    if MASK:
        seen = (keys[:, None] <= (rows + off)[None, :]) & (keys < k_hi)[:, None]
        pt = tl.where(seen, pt, 0.0)
    do = tl.load(DO + at, mask=here[:, None], other=0.0)
    dv = dot(pt.to(q.dtype), do, dv, UPCAST)
    dpt = dot(v, tl.trans(do), z, UPCAST)
    delta = tl.load(DELTA + rows, mask=here, other=0.0)
    dst = pt * (dpt - delta[None, :])
    dk = dot(dst.to(q.dtype), q, dk, UPCAST)
    return dk, dv


@triton.jit(do_not_specialize=SIZES)
def ffa_bwd_dkdv(Q, K, V, DO, LSE, DELTA, DK, DV, WORK, ENTRIES, sm_scale, n_items, heads_per_group, Sq, Sk, Hk, group,
                 list_len, q_block, k_block, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BLOCKS: tl.constexpr,
                 UPCAST: tl.constexpr):  # fmt: skip
    """Grid (n_items * Hk,). Q, DO: [Sq, Hk*group, D]; K, V, DK, DV: [Sk, Hk, D]; LSE (base 2), DELTA: float32
    [Hk*group, Sq]. BLOCKS = False: WORK int32 [n_items, 5] (k0, k1, lo, hi, n) and ENTRIES int32 [., 6] (q0,
    q1, off, first, whole, end), made for BM and BN as gluon_bwd.py says. BLOCKS = True: WORK is q_num [Hk, nk], ENTRIES
    q_indices [Hk, nk, list_len], and each block of k_block keys makes cdiv(k_block, BN) items.
    """
    item, kv_head = head_and_item(tl.program_id(0), n_items, heads_per_group)
    stride = Hk * group * D
    s = sm_scale * LOG2E
    if BLOCKS:
        tiles = tl.cdiv(k_block, BN)
        block = item // tiles
        k0 = block * k_block + item % tiles * BN
        k1 = tl.minimum(tl.minimum(k0 + BN, block * k_block + k_block), Sk)
        entry = kv_head.to(tl.int64) * (n_items // tiles) + block
        lo = 0
        num = tl.load(WORK + entry)
        ENTRIES += entry * list_len
    else:
        k0 = tl.load(WORK + item * 5)
        k1 = tl.load(WORK + item * 5 + 1)
        lo = tl.load(WORK + item * 5 + 2)
        num = tl.load(WORK + item * 5 + 3) - lo
    keys = k0 + tl.arange(0, BN)
    at = keys.to(tl.int64)[:, None] * (Hk * D) + kv_head * D + tl.arange(0, D)[None, :]
    mine = (keys < k1)[:, None]
    k = tl.load(K + at, mask=mine, other=0.0)
    v = tl.load(V + at, mask=mine, other=0.0)
    dk = tl.zeros([BN, D], tl.float32)
    dv = tl.zeros([BN, D], tl.float32)
    if BLOCKS:
        parts = tl.cdiv(q_block, BM)
        for t in tl.range(0, num * parts * group):
            head = kv_head * group + t // (num * parts)
            part = t % (num * parts)
            first = tl.load(ENTRIES + part // parts) * q_block
            stat = head.to(tl.int64) * Sq
            dk, dv = _dkdv_tile(k, v, dk, dv, keys, Q + head * D, DO + head * D, LSE + stat, DELTA + stat,
                                first + part % parts * BM, tl.minimum(first + q_block, Sq), Sk, k1, s, stride, BM, D,
                                False, UPCAST)  # fmt: skip
    else:
        for eh in range(num * group):
            e = ENTRIES + (lo + eh // group) * 6
            head = kv_head * group + eh % group
            stat = head.to(tl.int64) * Sq
            q0 = tl.load(e)
            q1 = tl.load(e + 1)
            off = tl.load(e + 2)
            first = q0 + tl.load(e + 3) * BM
            whole = q0 + tl.load(e + 4) * BM
            end = q0 + tl.load(e + 5) * BM
            for start in tl.range(first, whole, BM):
                dk, dv = _dkdv_tile(k, v, dk, dv, keys, Q + head * D, DO + head * D, LSE + stat, DELTA + stat, start,
                                    q1, off, k1, s, stride, BM, D, True, UPCAST)  # fmt: skip
            for start in tl.range(whole, end, BM):
                dk, dv = _dkdv_tile(k, v, dk, dv, keys, Q + head * D, DO + head * D, LSE + stat, DELTA + stat, start,
                                    q1, off, k1, s, stride, BM, D, False, UPCAST)  # fmt: skip
    tl.store(DK + at, (dk * sm_scale).to(k.dtype), mask=mine)
    tl.store(DV + at, dv.to(k.dtype), mask=mine)


@triton.jit
def _dq_tile(q, do, dq, lse, delta, K, V, start, k_hi, limit, s, stride, BN: tl.constexpr, D: tl.constexpr,
             MASK: tl.constexpr, UPCAST: tl.constexpr):  # fmt: skip
    keys = start + tl.arange(0, BN)
    at = keys.to(tl.int64)[:, None] * stride + tl.arange(0, D)[None, :]
    if MASK:
        here = (keys < k_hi)[:, None]
        k = tl.load(K + at, mask=here, other=0.0)
        v = tl.load(V + at, mask=here, other=0.0)
    else:
        k = tl.load(K + at)
        v = tl.load(V + at)
    z = tl.zeros([q.shape[0], BN], tl.float32)
    p = tl.math.exp2(dot(q, tl.trans(k), z, UPCAST) * s - lse[:, None])
    if MASK:
        p = tl.where((keys[None, :] <= limit[:, None]) & (keys < k_hi)[None, :], p, 0.0)
    dp = dot(do, tl.trans(v), z, UPCAST)
    ds = p * (dp - delta[:, None])
    return dot(ds.to(q.dtype), k, dq, UPCAST)


@triton.jit
def summed_at(dims):
    """Where dQ's float32 sum has a row's columns: of 32, the eight that a thread of a wgmma holds, two in each eight,
    lie side by side, so that it stores 16 bytes at a time and without bank conflicts. Swapping twice gives dims."""
    return (dims & ~30) | ((dims & 6) << 2) | ((dims & 24) >> 2)


@triton.jit(do_not_specialize=SIZES)
def ffa_bwd_dq(Q, K, V, DO, LSE, DELTA, DQ, WORK, IDX, sm_scale, dq_scale, n_items, heads_per_group, Sq, Sk, H, group,
               list_len, q_block, k_block, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BLOCKS: tl.constexpr,
               WHOLE: tl.constexpr, UPCAST: tl.constexpr, BY_HEAD: tl.constexpr):  # fmt: skip
    """Grid (n_items * H,); DQ: [Sq, H, D], or with BY_HEAD [H, Sq, D] in the order of summed_at, times dq_scale. The rest
    as in ffa_fwd_general."""
    item, head = head_and_item(tl.program_id(0), n_items, heads_per_group)
    kv_head = head // group
    stride = H // group * D
    s = sm_scale * LOG2E
    if BLOCKS:
        tiles = tl.cdiv(q_block, BM)
        block = item // tiles
        q0 = block * q_block + item % tiles * BM
        q1 = tl.minimum(tl.minimum(q0 + BM, block * q_block + q_block), Sq)
        entry = kv_head.to(tl.int64) * (n_items // tiles) + block
        off = Sk
    else:
        q0 = tl.load(WORK + item * 5)
        q1 = tl.minimum(tl.load(WORK + item * 5 + 1), q0 + BM)
        k0 = tl.load(WORK + item * 5 + 2)
        k1 = tl.load(WORK + item * 5 + 3)
        off = tl.load(WORK + item * 5 + 4)
    rows = q0 + tl.arange(0, BM)
    limit = rows + off
    at = rows.to(tl.int64)[:, None] * (H * D) + head * D + tl.arange(0, D)[None, :]
    mine = rows < q1
    q = tl.load(Q + at, mask=mine[:, None], other=0.0)
    do = tl.load(DO + at, mask=mine[:, None], other=0.0)
    lse = tl.load(LSE + head.to(tl.int64) * Sq + rows, mask=mine, other=float("inf"))
    delta = tl.load(DELTA + head.to(tl.int64) * Sq + rows, mask=mine, other=0.0)
    K += kv_head * D
    V += kv_head * D
    dq = tl.zeros([BM, D], tl.float32)
    if BLOCKS:
        parts = tl.cdiv(k_block, BN)
        IDX += entry * list_len
        for t in tl.range(0, tl.load(WORK + entry) * parts):
            first = tl.load(IDX + t // parts) * k_block
            k_hi = tl.minimum(first + k_block, Sk)
            start = first + t % parts * BN
            dq = _dq_tile(q, do, dq, lse, delta, K, V, start, k_hi, limit, s, stride, BN, D, not WHOLE, UPCAST)
    else:
        k_end = tl.minimum(k1, q1 + off)
        whole = k0 + tl.maximum(tl.minimum(k_end, q0 + off + 1) - k0, 0) // BN * BN
        for start in tl.range(k0, whole, BN):
            dq = _dq_tile(q, do, dq, lse, delta, K, V, start, k1, limit, s, stride, BN, D, False, UPCAST)
        for start in tl.range(whole, k_end, BN):
            dq = _dq_tile(q, do, dq, lse, delta, K, V, start, k1, limit, s, stride, BN, D, True, UPCAST)
    if BY_HEAD:
        at = (head.to(tl.int64) * Sq + rows)[:, None] * D + summed_at(tl.arange(0, D))[None, :]
    tl.store(DQ + at, (dq * dq_scale).to(DQ.dtype.element_ty), mask=mine[:, None])
