"""Attention forward in plain Triton: any slice, any block size, tails everywhere. Runs where `dispatch.py` finds the
Gluon kernel's conditions unmet, and in Triton's interpreter.

Online softmax in base 2 (FlashAttention-2, arXiv 2307.08691, algorithm 1). Tiles that every row sees whole take no
mask.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
# Sizes that take no part in compilation: one binary serves every length and every count of heads.
SIZES = ("n_items", "heads_per_group", "Sq", "Sk", "H", "Hk", "group", "list_len", "q_block", "k_block")


@triton.jit
def dot(a, b, acc, UPCAST: tl.constexpr):
    """a·b + acc in float32. Triton 3.6's interpreter multiplies the bit patterns of bfloat16, so upcast for it."""
    if UPCAST:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    else:
        return tl.dot(a, b, acc)


@triton.jit
def _tile(q, m_i, l_i, acc, K, V, start, k_hi, limit, s, stride, BN: tl.constexpr, D: tl.constexpr,
          MASK: tl.constexpr, UPCAST: tl.constexpr):  # fmt: skip
    """One tile of keys start.. below k_hi; with MASK row i sees keys up to limit[i] only."""
    keys = start + tl.arange(0, BN)
    at = keys.to(tl.int64)[:, None] * stride + tl.arange(0, D)[None, :]
    if MASK:
        here = (keys < k_hi)[:, None]
        k = tl.load(K + at, mask=here, other=0.0)
        v = tl.load(V + at, mask=here, other=0.0)
    else:
        k = tl.load(K + at)
        v = tl.load(V + at)
    qk = dot(q, tl.trans(k), tl.zeros([q.shape[0], BN], tl.float32), UPCAST) * s
    if MASK:
        seen = (keys[None, :] <= limit[:, None]) & (keys < k_hi)[None, :]
        qk = tl.where(seen, qk, -float("inf"))
        m_ij = tl.maximum(m_i, tl.max(qk, 1))
        # A row that has seen no key yet keeps m = -inf, and -inf - -inf would be NaN.
        safe = tl.where(m_ij == -float("inf"), 0.0, m_ij)
    else:
        m_ij = tl.maximum(m_i, tl.max(qk, 1))
        safe = m_ij
    p = tl.math.exp2(qk - safe[:, None])
    alpha = tl.math.exp2(m_i - safe)
    l_i = l_i * alpha + tl.sum(p, 1)
    acc = dot(p.to(v.dtype), v, acc * alpha[:, None], UPCAST)
    return m_ij, l_i, acc


@triton.jit
def head_and_item(pid, n_items, heads_per_group):
    """Heads go in groups whose K and V fit the L2 cache together; inside a group the long items come first."""
    item = (pid % (n_items * heads_per_group)) // heads_per_group
    head = pid // (n_items * heads_per_group) * heads_per_group + pid % heads_per_group
    return item, head


@triton.jit(do_not_specialize=SIZES)
def ffa_fwd_general(Q, K, V, OUT, LSE, WORK, IDX, sm_scale, n_items, heads_per_group, Sq, Sk, H, group, list_len,
                    q_block, k_block, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BLOCKS: tl.constexpr,
                    WHOLE: tl.constexpr, UPCAST: tl.constexpr):  # fmt: skip
    """Grid (n_items * H,). Q, OUT: [Sq, H, D]; K, V: [Sk, H/group, D]; LSE: float32 [H, Sq], natural logarithm.

    BLOCKS = False: WORK is int32 [n_items, 5] (q0, q1, k0, k1, off): rows q0..min(q0+BM, q1), row i of them sees keys
    k0..min(k1, i + off + 1). BLOCKS = True: WORK is kv_num [H/group, nq], IDX kv_indices [H/group, nq, list_len], and
    each block of q_block rows makes cdiv(q_block, BM) items; WHOLE promises key blocks that are whole tiles.
    """
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
    dims = tl.arange(0, D)
    at = rows.to(tl.int64)[:, None] * (H * D) + head * D + dims[None, :]
    q = tl.load(Q + at, mask=(rows < q1)[:, None], other=0.0)
    K += kv_head * D
    V += kv_head * D
    m_i = tl.full([BM], -float("inf"), tl.float32)
    l_i = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    if BLOCKS:
        parts = tl.cdiv(k_block, BN)
        IDX += entry * list_len
        for t in tl.range(0, tl.load(WORK + entry) * parts):
            first = tl.load(IDX + t // parts) * k_block
            k_hi = tl.minimum(first + k_block, Sk)
            start = first + t % parts * BN
            m_i, l_i, acc = _tile(q, m_i, l_i, acc, K, V, start, k_hi, limit, s, stride, BN, D, not WHOLE, UPCAST)
    else:
        k_end = tl.minimum(k1, q1 + off)
        whole = k0 + tl.maximum(tl.minimum(k_end, q0 + off + 1) - k0, 0) // BN * BN
        for start in tl.range(k0, whole, BN):
            m_i, l_i, acc = _tile(q, m_i, l_i, acc, K, V, start, k1, limit, s, stride, BN, D, False, UPCAST)
        for start in tl.range(whole, k_end, BN):
            m_i, l_i, acc = _tile(q, m_i, l_i, acc, K, V, start, k1, limit, s, stride, BN, D, True, UPCAST)
    acc = acc / tl.where(l_i != 0.0, l_i, 1.0)[:, None]
    tl.store(OUT + at, acc.to(q.dtype), mask=(rows < q1)[:, None])
    # m + log2(0) is -inf for a row that sees nothing, as it should be.
    lse = tl.where(l_i != 0.0, (m_i + tl.math.log2(tl.where(l_i != 0.0, l_i, 1.0))) * LN2, -float("inf"))
    tl.store(LSE + head.to(tl.int64) * Sq + rows, lse, mask=rows < q1)
