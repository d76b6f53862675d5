"""The kernels, all with loads through pointers: what the caches see is then what the program asks for. Tiles are loaded
around L1 (`.cg`), as asynchronous copies of 16 bytes are anyway, but for the softmax, which looks at each tile twice.

q, k, v and out are contiguous [B, H, N, D], N in blocks of T = 64. Scores are in base 2 inside a kernel.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def dot(a, b, acc, UPCAST: tl.constexpr):
    """a·b + acc. Triton 3.6's interpreter multiplies the bit patterns of bfloat16, so upcast for it."""
    if UPCAST:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    else:
        return tl.dot(a, b, acc)


@triton.jit
def _rows(X, first, N, ROWS: tl.constexpr, D: tl.constexpr):
    """Rows first.. of a [N, D] matrix, zero behind its end."""
    rows = first + tl.arange(0, ROWS)
    at = X + rows[:, None] * D + tl.arange(0, D)[None, :]
    return tl.load(at, mask=(rows < N)[:, None], other=0.0, cache_modifier=".cg")


@triton.jit
def _step(q, m_i, l_i, acc, K, V, first, N, s, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr,
          UPCAST: tl.constexpr):  # fmt: skip
    """BN keys from `first` on."""
    k = _rows(K, first, N, BN, D)
    qk = dot(q, tl.trans(k), tl.zeros([BM, BN], tl.float32), UPCAST) * s
    qk = tl.where((first + tl.arange(0, BN) < N)[None, :], qk, -float("inf"))
    m_ij = tl.maximum(m_i, tl.max(qk, 1))
    safe = tl.where(m_ij == -float("inf"), 0.0, m_ij)
    p = tl.math.exp2(qk - safe[:, None])
    alpha = tl.math.exp2(m_i - safe)
    l_i = l_i * alpha + tl.sum(p, 1)
    v = _rows(V, first, N, BN, D)
    acc = dot(p.to(v.dtype), v, acc * alpha[:, None], UPCAST)
    return m_ij, l_i, acc


@triton.jit
def _store(OUT, q0, N, acc, l_i, BM: tl.constexpr, D: tl.constexpr):
    acc = acc * tl.where(l_i > 0.0, 1.0 / tl.where(l_i > 0.0, l_i, 1.0), 0.0)[:, None]
    rows = q0 + tl.arange(0, BM)
    at = rows[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(OUT + at, acc.to(OUT.dtype.element_ty), mask=(rows < N)[:, None])


@triton.jit(do_not_specialize=["N"])
def memtraffic_flash2(Q, K, V, OUT, scale, N, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr,
                      UPCAST: tl.constexpr):  # fmt: skip
    """Grid (cdiv(N, BM) * B * H,)."""
    tiles = tl.cdiv(N, BM)
    head = (tl.program_id(0) // tiles).to(tl.int64) * N * D
    q0 = tl.program_id(0) % tiles * BM
    q = _rows(Q + head, q0, N, BM, D)
    m_i = tl.full([BM], -float("inf"), tl.float32)
    l_i = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    for first in tl.range(0, N, BN):
        m_i, l_i, acc = _step(q, m_i, l_i, acc, K + head, V + head, first, N, scale * LOG2E, BM, BN, D, UPCAST)
    _store(OUT + head, q0, N, acc, l_i, BM, D)


@triton.jit(do_not_specialize=["N", "n"])
def memtraffic_blocks(Q, K, V, OUT, BEGIN, COLUMNS, scale, N, n, T: tl.constexpr, BN: tl.constexpr, D: tl.constexpr,
                      UPCAST: tl.constexpr):  # fmt: skip
    """Grid (n * B * H,), n blocks of T rows; BEGIN and COLUMNS as in `BlockLists`; BN divides T."""
    head = (tl.program_id(0) // n).to(tl.int64) * N * D
    i = tl.program_id(0) % n
    q = _rows(Q + head, i * T, N, T, D)
    m_i = tl.full([T], -float("inf"), tl.float32)
    l_i = tl.zeros([T], tl.float32)
    acc = tl.zeros([T, D], tl.float32)
    PARTS: tl.constexpr = T // BN
    for t in tl.range(tl.load(BEGIN + i) * PARTS, tl.load(BEGIN + i + 1) * PARTS):
        first = tl.load(COLUMNS + t // PARTS) * T + t % PARTS * BN
        m_i, l_i, acc = _step(q, m_i, l_i, acc, K + head, V + head, first, N, scale * LOG2E, T, BN, D, UPCAST)
    _store(OUT + head, i * T, N, acc, l_i, T, D)


@triton.jit(do_not_specialize=["N", "entries"])
def memtraffic_qk(Q, K, S, ROWS, COLUMNS, scale, N, entries, T: tl.constexpr, D: tl.constexpr, DC: tl.constexpr,
                  UPCAST: tl.constexpr):  # fmt: skip
    """Grid (entries * B * H,). S [B * H, entries, T, T]: scores, -inf behind the last key; DC columns at a time."""
    head = (tl.program_id(0) // entries).to(tl.int64)
    e = tl.program_id(0) % entries
    q_rows = tl.load(ROWS + e) * T + tl.arange(0, T)
    k_rows = tl.load(COLUMNS + e) * T + tl.arange(0, T)
    here = k_rows < N
    acc = tl.zeros([T, T], tl.float32)
    for d in tl.range(0, D, DC):
        at = d + tl.arange(0, DC)[None, :]
        q = tl.load(
            Q + head * N * D + q_rows[:, None] * D + at, mask=(q_rows < N)[:, None], other=0.0, cache_modifier=".cg"
        )
        k = tl.load(K + head * N * D + k_rows[:, None] * D + at, mask=here[:, None], other=0.0, cache_modifier=".cg")
        acc = dot(q, tl.trans(k), acc, UPCAST)
    acc = tl.where(here[None, :], acc * scale, -float("inf"))
    tile = tl.arange(0, T)[:, None] * T + tl.arange(0, T)[None, :]
    tl.store(S + (head * entries + e) * (T * T) + tile, acc.to(S.dtype.element_ty))


@triton.jit(do_not_specialize=["n", "entries"])
def memtraffic_softmax(S, BEGIN, n, entries, T: tl.constexpr, ROWS: tl.constexpr):
    """Grid (n * T / ROWS * B * H,). Scores to probabilities, in place: read for maximum and sum, and again."""
    PARTS: tl.constexpr = T // ROWS
    head = (tl.program_id(0) // (n * PARTS)).to(tl.int64)
    i = tl.program_id(0) % (n * PARTS) // PARTS
    rows = tl.program_id(0) % PARTS * ROWS + tl.arange(0, ROWS)
    lo = tl.load(BEGIN + i)
    num = tl.load(BEGIN + i + 1) - lo
    S += (head * entries + lo) * (T * T) + rows[:, None] * T + tl.arange(0, T)[None, :]
    m_i = tl.full([ROWS], -float("inf"), tl.float32)
    l_i = tl.zeros([ROWS], tl.float32)
    for t in tl.range(0, num):
        s = tl.load(S + t * (T * T)).to(tl.float32) * LOG2E
        m_ij = tl.maximum(m_i, tl.max(s, 1))
        safe = tl.where(m_ij == -float("inf"), 0.0, m_ij)
        l_i = l_i * tl.math.exp2(m_i - safe) + tl.sum(tl.math.exp2(s - safe[:, None]), 1)
        m_i = m_ij
    safe = tl.where(m_i == -float("inf"), 0.0, m_i)
    part = tl.where(l_i > 0.0, 1.0 / tl.where(l_i > 0.0, l_i, 1.0), 0.0)
    for t in tl.range(0, num):
        at = S + t * (T * T)
        p = tl.math.exp2(tl.load(at).to(tl.float32) * LOG2E - safe[:, None]) * part[:, None]
        tl.store(at, p.to(S.dtype.element_ty))


@triton.jit(do_not_specialize=["N", "n", "entries"])
def memtraffic_pv(S, V, OUT, BEGIN, COLUMNS, N, n, entries, T: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
                  UPCAST: tl.constexpr):  # fmt: skip
    """Grid (D / DV * n * B * H,), DV columns of OUT each."""
    CUTS: tl.constexpr = D // DV
    d = tl.program_id(0) % CUTS * DV + tl.arange(0, DV)[None, :]
    i = tl.program_id(0) // CUTS % n
    head = (tl.program_id(0) // (CUTS * n)).to(tl.int64)
    lo = tl.load(BEGIN + i)
    num = tl.load(BEGIN + i + 1) - lo
    S += (head * entries + lo) * (T * T) + tl.arange(0, T)[:, None] * T + tl.arange(0, T)[None, :]
    acc = tl.zeros([T, DV], tl.float32)
    for t in tl.range(0, num):
        rows = tl.load(COLUMNS + lo + t) * T + tl.arange(0, T)
        p = tl.load(S + t * (T * T), cache_modifier=".cg")
        v = tl.load(V + head * N * D + rows[:, None] * D + d, mask=(rows < N)[:, None], other=0.0, cache_modifier=".cg")
        acc = dot(p, v, acc, UPCAST)
    rows = i * T + tl.arange(0, T)
    tl.store(OUT + head * N * D + rows[:, None] * D + d, acc.to(OUT.dtype.element_ty), mask=(rows < N)[:, None])
