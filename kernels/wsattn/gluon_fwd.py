"""The two kernels: one producer and one or two consumers, which differ between the variants.

A producer warp streams K and V tiles by TMA through rings of NB buffers. A consumer is a warpgroup of four warps with 64
query rows; it runs the online softmax of FlashAttention (arXiv 2307.08691) in base 2, the scale folded in. Heads are an
axis of the TMA descriptors, so a box at a head's end reads zeros and writes nothing beyond it: tails need no code but the
mask of the last tile's missing keys.
"""
# ruff: noqa: RUF005, SIM102 - the kernel language has no starred lists, and takes a constexpr condition alone

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

# Later Triton has other names for the copies, and in the end no more those of 3.6.
async_load = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
async_store = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global


@gluon.jit
def _producer(dq, dk, dv, q_s, k_s, v_s, q_full, k_full, k_empty, v_full, v_empty, head, row0, n, BM: gl.constexpr,
              BN: gl.constexpr, NB: gl.constexpr, NG: gl.constexpr):  # fmt: skip
    for g in gl.static_range(NG):
        mbarrier.expect(q_full.index(g), dq.block_type.nbytes)
        async_load(dq, [head, row0 + g * BM, 0], q_full.index(g), q_s.index(g))
    for i in range(n):
        b = i % NB
        ph = (i // NB) & 1
        mbarrier.wait(k_empty.index(b), ph ^ 1)
        mbarrier.expect(k_full.index(b), dk.block_type.nbytes)
        async_load(dk, [head, i * BN, 0], k_full.index(b), k_s.index(b))
        mbarrier.wait(v_empty.index(b), ph ^ 1)
        mbarrier.expect(v_full.index(b), dv.block_type.nbytes)
        async_load(dv, [head, i * BN, 0], v_full.index(b), v_s.index(b))


@gluon.jit
def _scores(q, k_s, i, BM: gl.constexpr, BN: gl.constexpr, D: gl.constexpr, NB: gl.constexpr, L: gl.constexpr):
    """Q·Kᵀ of tile i, begun and not waited for."""
    k = k_s.index(i % NB).reshape([BN, D]).permute((1, 0))
    return warpgroup_mma(q, k, gl.zeros([BM, BN], gl.float32, L), use_acc=False, is_async=True)


@gluon.jit
def _softmax(qk, i, n, m_i, l_i, s, Nk, BN: gl.constexpr, TAIL: gl.constexpr, L: gl.constexpr):
    """Every tile has a key, so the largest score is never -inf."""
    if TAIL:
        if i == n - 1:
            seen = i * BN + gl.arange(0, BN, gl.SliceLayout(0, L)) < Nk
            qk = gl.where(seen[None, :], qk, -float("inf"))
    m_ij = gl.maximum(m_i, gl.max(qk, 1) * s)
    p = gl.exp2(qk * s - m_ij[:, None])
    alpha = gl.exp2(m_i - m_ij)
    return p, m_ij, l_i * gl.convert_layout(alpha, gl.SliceLayout(1, l_i.type.layout))[:, None] + _sums(p), alpha


@gluon.jit
def _packed(p, dtype: gl.constexpr):
    """P in the inputs' dtype, by assembly: the compiler would move a conversion behind the wait for P·V, where the next
    products wait for it."""
    if dtype == gl.bfloat16:
        return gl.inline_asm_elementwise("cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [p], gl.bfloat16, False, 2)
    else:
        return gl.inline_asm_elementwise("cvt.rn.f16x2.f32 $0, $2, $1;", "=r,r,r", [p], gl.float16, False, 2)


@gluon.jit
def _sums(p):
    """Each thread's own sums of its rows, [rows, 4]: the four threads of a row are added up at the end."""
    return gl.sum(gl.sum(p.reshape([p.shape[0], p.shape[1] // 8, 4, 2]), 3), 1)


@gluon.jit
def _plain(q, k_s, v_s, k_full, k_empty, v_full, v_empty, n, s, Nk, BM: gl.constexpr, BN: gl.constexpr, D: gl.constexpr,
           NB: gl.constexpr, TAIL: gl.constexpr, L: gl.constexpr, LO: gl.constexpr):  # fmt: skip
    """Each product is waited for where it is begun."""
    m_i = gl.full([BM], -float("inf"), gl.float32, gl.SliceLayout(1, L))
    l_i = _sums(gl.zeros([BM, BN], gl.float32, L))
    acc = gl.zeros([BM, D], gl.float32, LO)
    for i in range(n):
        b = i % NB
        ph = (i // NB) & 1
        mbarrier.wait(k_full.index(b), ph)
        qk = _scores(q, k_s, i, BM, BN, D, NB, L)
        qk = warpgroup_mma_wait(0, deps=(qk,))
        mbarrier.arrive(k_empty.index(b), count=1)
        p, m_i, l_i, alpha = _softmax(qk, i, n, m_i, l_i, s, Nk, BN, TAIL, L)
        acc = acc * gl.convert_layout(alpha, gl.SliceLayout(1, LO))[:, None]
        pb = gl.convert_layout(p.to(q.dtype), gl.DotOperandLayout(0, LO, 2))
        mbarrier.wait(v_full.index(b), ph)
        acc = warpgroup_mma(pb, v_s.index(b).reshape([BN, D]), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(v_empty.index(b), count=1)
    return acc, l_i


@gluon.jit
def _pipelined(q, k_s, v_s, k_full, k_empty, v_full, v_empty, turn, n, s, Nk, CID: gl.constexpr, BM: gl.constexpr,
               BN: gl.constexpr, D: gl.constexpr, NB: gl.constexpr, NG: gl.constexpr, TAIL: gl.constexpr,
               L: gl.constexpr, LO: gl.constexpr):  # fmt: skip
    """P·V of tile i-1 is begun after Q·Kᵀ of tile i and waited for after its softmax; with two consumers each begins its
    products in its turn, so that one's softmax runs under the other's products."""
    m_i = gl.full([BM], -float("inf"), gl.float32, gl.SliceLayout(1, L))
    l_i = _sums(gl.zeros([BM, BN], gl.float32, L))
    acc = gl.zeros([BM, D], gl.float32, LO)
    mbarrier.wait(k_full.index(0), 0)
    if NG == 2:
        mbarrier.wait(turn.index(CID), 0)
    qk = _scores(q, k_s, 0, BM, BN, D, NB, L)
    if NG == 2:
        mbarrier.arrive(turn.index(1 - CID), count=1)
    qk = warpgroup_mma_wait(0, deps=(qk,))
    mbarrier.arrive(k_empty.index(0), count=1)
    p, m_i, l_i, _alpha = _softmax(qk, 0, n, m_i, l_i, s, Nk, BN, TAIL, L)
    pb = gl.convert_layout(p.to(q.dtype), gl.DotOperandLayout(0, LO, 2))
    if n > 1:
        mbarrier.wait(k_full.index(1 % NB), (1 // NB) & 1)
    for i in range(1, n):
        kb = i % NB
        vb = (i - 1) % NB
        if NG == 2:
            mbarrier.wait(turn.index(CID), i & 1)
        qk = _scores(q, k_s, i, BM, BN, D, NB, L)
        mbarrier.wait(v_full.index(vb), ((i - 1) // NB) & 1)
        acc_t = warpgroup_mma(pb, v_s.index(vb).reshape([BN, D]), acc, is_async=True)
        if NG == 2:
            mbarrier.arrive(turn.index(1 - CID), count=1)
        qk = warpgroup_mma_wait(1, deps=(qk,))
        p, m_i, l_i, alpha = _softmax(qk, i, n, m_i, l_i, s, Nk, BN, TAIL, L)
        pb = gl.convert_layout(_packed(p, q.dtype), gl.DotOperandLayout(0, LO, 2))
        # Waiting for the next K here, and not at the top, also splits the basic block: without it ptxas hoists the wait
        # for P·V above the softmax and the overlap is gone.
        mbarrier.wait(k_full.index((i + 1) % NB), ((i + 1) // NB) & 1, pred=i + 1 < n)
        acc = warpgroup_mma_wait(0, deps=(acc_t,))
        mbarrier.arrive(k_empty.index(kb), count=1)
        mbarrier.arrive(v_empty.index(vb), count=1)
        acc = acc * gl.convert_layout(alpha, gl.SliceLayout(1, LO))[:, None]
    vb = (n - 1) % NB
    mbarrier.wait(v_full.index(vb), ((n - 1) // NB) & 1)
    acc = warpgroup_mma(pb, v_s.index(vb).reshape([BN, D]), acc, is_async=True)
    acc = warpgroup_mma_wait(0, deps=(acc,))
    mbarrier.arrive(v_empty.index(vb), count=1)
    return acc, l_i


@gluon.jit
def _consumer(do, q_s, k_s, v_s, q_full, k_full, k_empty, v_full, v_empty, turn, head, row0, n, s, Nk, CID: gl.constexpr,
              BM: gl.constexpr, BN: gl.constexpr, D: gl.constexpr, NB: gl.constexpr, NG: gl.constexpr,
              PIPELINED: gl.constexpr, TAIL: gl.constexpr):  # fmt: skip
    L: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])
    LO: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    q = q_s.index(CID).reshape([BM, D])
    mbarrier.wait(q_full.index(CID), 0)
    if PIPELINED:
        acc, l_i = _pipelined(q, k_s, v_s, k_full, k_empty, v_full, v_empty, turn, n, s, Nk, CID, BM, BN, D, NB, NG,
                              TAIL, L, LO)  # fmt: skip
    else:
        acc, l_i = _plain(q, k_s, v_s, k_full, k_empty, v_full, v_empty, n, s, Nk, BM, BN, D, NB, TAIL, L, LO)
    total = gl.convert_layout(gl.sum(l_i, 1), gl.SliceLayout(1, LO))
    acc = acc * (1.0 / total)[:, None]
    q.store(acc.to(q.dtype))
    fence_async_shared()
    async_store(do, [head, row0 + CID * BM, 0], q_s.index(CID))
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["tiles", "Nk"])
def ws_fwd(dq, dk, dv, do, scale, tiles, Nk, BM: gl.constexpr, BN: gl.constexpr, D: gl.constexpr, NB: gl.constexpr,
           NG: gl.constexpr, PIPELINED: gl.constexpr, TAIL: gl.constexpr, CREG: gl.constexpr, PREG: gl.constexpr):  # fmt: skip
    """Grid (tiles * B*H,). dq, do: [B*H, Nq, D] in [1, BM, D] boxes; dk, dv: [B*H, Nk, D] in [1, BN, D] boxes. NG
    consumers of BM = 64 rows each; tiles = cdiv(Nq, BM * NG). TAIL: BN does not divide Nk. scale > 0."""
    pid = gl.program_id(0)
    head = pid // tiles
    row0 = pid % tiles * (BM * NG)
    q_s = gl.allocate_shared_memory(dq.dtype, [NG] + dq.block_type.shape, dq.layout)
    k_s = gl.allocate_shared_memory(dk.dtype, [NB] + dk.block_type.shape, dk.layout)
    v_s = gl.allocate_shared_memory(dv.dtype, [NB] + dv.block_type.shape, dv.layout)
    ML: gl.constexpr = mbarrier.MBarrierLayout()
    q_full = gl.allocate_shared_memory(gl.int64, [NG, 1], ML)
    k_full = gl.allocate_shared_memory(gl.int64, [NB, 1], ML)
    k_empty = gl.allocate_shared_memory(gl.int64, [NB, 1], ML)
    v_full = gl.allocate_shared_memory(gl.int64, [NB, 1], ML)
    v_empty = gl.allocate_shared_memory(gl.int64, [NB, 1], ML)
    turn = gl.allocate_shared_memory(gl.int64, [2, 1], ML)
    for i in gl.static_range(NG):
        mbarrier.init(q_full.index(i), count=1)
    for i in gl.static_range(NB):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(v_full.index(i), count=1)
        mbarrier.init(k_empty.index(i), count=NG)
        mbarrier.init(v_empty.index(i), count=NG)
    for i in gl.static_range(2):
        mbarrier.init(turn.index(i), count=1)
    mbarrier.arrive(turn.index(0), count=1)  # the first consumer's turn
    fence_async_shared()  # the copy engine sees the barriers
    n = gl.cdiv(Nk, BN)
    s = scale * 1.4426950408889634
    if NG == 2:
        gl.warp_specialize(
            [
                (_consumer, (do, q_s, k_s, v_s, q_full, k_full, k_empty, v_full, v_empty, turn, head, row0, n, s, Nk, 0,
                             BM, BN, D, NB, NG, PIPELINED, TAIL)),
                (_consumer, (do, q_s, k_s, v_s, q_full, k_full, k_empty, v_full, v_empty, turn, head, row0, n, s, Nk, 1,
                             BM, BN, D, NB, NG, PIPELINED, TAIL)),
                (_producer, (dq, dk, dv, q_s, k_s, v_s, q_full, k_full, k_empty, v_full, v_empty, head, row0, n, BM, BN,
                             NB, NG)),
            ],
            [4, 1],
            [CREG, PREG],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_consumer, (do, q_s, k_s, v_s, q_full, k_full, k_empty, v_full, v_empty, turn, head, row0, n, s, Nk, 0,
                             BM, BN, D, NB, NG, PIPELINED, TAIL)),
                (_producer, (dq, dk, dv, q_s, k_s, v_s, q_full, k_full, k_empty, v_full, v_empty, head, row0, n, BM, BN,
                             NB, NG)),
            ],
            [1],
            [PREG],
        )  # fmt: skip
