"""One kernel for all rungs: a rung adds constexprs, and the tile, warps and stages of `platforms.py`.

The online softmax of FlashAttention-2 (arXiv 2307.08691, algorithm 1). Keys that every row of a tile sees take no mask.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _dot(a, b, acc, UPCAST: tl.constexpr):
    """a·b + acc in float32. Triton 3.6's interpreter multiplies the bit patterns of bfloat16, so upcast for it."""
    if UPCAST:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    else:
        return tl.dot(a, b, acc)


@triton.jit
def _load(X, head, start, N, ROWS: tl.constexpr, D: tl.constexpr, TMA: tl.constexpr, WHOLE: tl.constexpr):
    """Rows start.. of one head; zero past its last one."""
    if TMA:
        return X.load([head, start, 0]).reshape(ROWS, D)
    else:
        rows = start + tl.arange(0, ROWS)
        at = (head.to(tl.int64) * N + rows)[:, None] * D + tl.arange(0, D)[None, :]
        if WHOLE:
            return tl.load(X + at)
        else:
            return tl.load(X + at, mask=(rows < N)[:, None], other=0.0)


@triton.jit
def _tile(q, top, total, acc, K, V, head, start, rows, N, s, BN: tl.constexpr, D: tl.constexpr, MASK: tl.constexpr,
          CAUSAL: tl.constexpr, EXP2: tl.constexpr, TMA: tl.constexpr, OWN: tl.constexpr, UPCAST: tl.constexpr):  # fmt: skip
    """Keys start..start+BN. With MASK those past the end, or a causal row's own place, are hidden."""
    k = _load(K, head, start, N, BN, D, TMA, not MASK)
    qk = _dot(q, tl.trans(k), tl.zeros([q.shape[0], BN], tl.float32), UPCAST)
    if MASK:
        keys = start + tl.arange(0, BN)
        seen = (keys < N)[None, :]
        if CAUSAL:
            seen = seen & (keys[None, :] <= rows[:, None])
        qk = tl.where(seen, qk, -float("inf"))
    if EXP2:
        top_new = tl.maximum(top, tl.max(qk, 1) * s)
        p = tl.math.exp2(qk * s - top_new[:, None])
        alpha = tl.math.exp2(top - top_new)
    else:
        qk = qk * s
        top_new = tl.maximum(top, tl.max(qk, 1))
        p = tl.exp(qk - top_new[:, None])
        alpha = tl.exp(top - top_new)
    v = _load(V, head, start, N, BN, D, TMA, not MASK)
    acc = _dot(p.to(v.dtype), v, acc * alpha[:, None], UPCAST)
    if OWN:
        total = total * alpha[:, None] + tl.sum(tl.sum(tl.reshape(p, [p.shape[0], BN // 8, 4, 2]), 3), 1)
    else:
        total = total * alpha + tl.sum(p, 1)
    return top_new, total, acc


@triton.jit
def _reciprocal(x, UPCAST: tl.constexpr):
    if UPCAST:  # the interpreter knows no assembly
        return 1.0 / x
    else:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit(do_not_specialize=["N"])
def ladder_fwd(Q, K, V, OUT, scale, N, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr,
               EXP2: tl.constexpr, TMA: tl.constexpr, LONG_FIRST: tl.constexpr, OWN: tl.constexpr,
               STAGES: tl.constexpr, UPCAST: tl.constexpr):  # fmt: skip
    """Grid (cdiv(N, BM), B*H). Q, OUT: [B*H, N, D]. K, V: the same, as pointers or, with TMA, descriptors of [1, BN, D]
    boxes. EXP2 needs scale > 0: the largest score is looked for before the scale is applied. OWN: each thread sums what it
    holds of a row, and the four threads of a row add up at the end; the reciprocal of the sum is approximate."""
    tile = tl.program_id(0)
    if LONG_FIRST:
        tile = tl.num_programs(0) - 1 - tile
    head = tl.program_id(1)
    first = tile * BM
    rows = first + tl.arange(0, BM)
    at = (head.to(tl.int64) * N + rows)[:, None] * D + tl.arange(0, D)[None, :]
    q = tl.load(Q + at, mask=(rows < N)[:, None], other=0.0)
    top = tl.full([BM], -float("inf"), tl.float32)
    total = tl.zeros([BM, 4] if OWN else [BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    s = scale * LOG2E if EXP2 else scale
    end = tl.minimum(first + BM, N) if CAUSAL else N
    whole = (tl.minimum(first + 1, N) if CAUSAL else N) // BN * BN
    for start in tl.range(0, whole, BN, num_stages=STAGES):
        top, total, acc = _tile(
            q, top, total, acc, K, V, head, start, rows, N, s, BN, D, False, CAUSAL, EXP2, TMA, OWN, UPCAST
        )
    for start in tl.range(whole, end, BN, num_stages=STAGES):
        top, total, acc = _tile(
            q, top, total, acc, K, V, head, start, rows, N, s, BN, D, True, CAUSAL, EXP2, TMA, OWN, UPCAST
        )
    if OWN:
        acc = acc * _reciprocal(tl.sum(total, 1), UPCAST)[:, None]
    else:
        acc = acc / total[:, None]
    tl.store(OUT + at, acc.to(q.dtype), mask=(rows < N)[:, None])
