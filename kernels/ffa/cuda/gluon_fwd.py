"""Attention forward for Hopper in Gluon: warp-specialised, TMA loads, asynchronous wgmma.

A CTA computes 64 * NC query rows of one head after the other. A producer warp streams tiles of K through a ring of NB
buffers and of V through one of NV; NC consumer warpgroups (64 rows each; one for blocks of 64 queries, else two) run the
online softmax of FlashAttention (Dao, arXiv 2307.08691) in base 2, with the P·V product of a tile left in flight under
the next tile's Q·Kᵀ and softmax (arXiv 2407.08608, section 3.2). Tiles go from the last keys to the first: those that
need a mask come first, and the loop over the others has none. Outputs leave from buffers of their own, so the next rows'
Q is loaded under this one's last product. With one consumer a program has one tile of rows, and two programs share a
multiprocessor.

Tiles are read through TMA at any row, so a slice may begin anywhere; a slice's last key tile ends at the slice's own
end and hides the keys that the tile before them takes. No tile reads another slice's keys, so a NaN there
cannot leak. That needs at least BN keys in the slice: `dispatch.py` sends shorter ones to the Triton kernels.
"""
# ruff: noqa: RUF005 - the kernel language has no starred lists

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


MARGIN = gl.constexpr(8.0)
"""How much a row's largest score may grow, in base 2, before what was summed up is scaled down to it. So almost all scaling
is left out, and P is 256 at most instead of 1, as FlashAttention-4 does."""


def _scale(n: int) -> tuple[gl.constexpr, gl.constexpr]:
    """Assembly of `_scaled` and its constraints, for a thread that holds n values: two of one row, two of another, and so
    on."""
    products = "".join(f"mul.f32 ${i}, ${i}, ${2 * n + i};" for i in range(n))
    text = (
        f"{{.reg .pred p, q; setp.neu.f32 p, ${2 * n}, 0f3F800000; setp.neu.f32 q, ${2 * n + 2}, 0f3F800000;"
        f" or.pred p, p, q; vote.sync.any.pred p, p, 0xffffffff; @!p bra done; {products} done:}}"
    )
    return gl.constexpr(text), gl.constexpr(",".join([*["=f"] * n, *map(str, range(n)), *["f"] * n]))


SCALE_64, CONSTRAINTS_64 = _scale(32)
SCALE_128, CONSTRAINTS_128 = _scale(64)


@gluon.jit
def _tile_start(IDX, i, k0, k_last, BN: gl.constexpr, KB: gl.constexpr):
    """First key of tile i: by position in a slice, or by the block list's entry (KB keys per block, 0 for slices)."""
    if KB == 0:
        return gl.minimum(k0 + i * BN, k_last)
    else:
        return gl.load(IDX + i // (KB // BN)) * KB + (i % (KB // BN)) * BN


@gluon.jit
def _item(WORK, IDX, number, n_items, Sq, H, group, list_len, BN: gl.constexpr, KB: gl.constexpr, NC: gl.constexpr):
    """(head, list, q0, q1, k0, k_end, k_last, off, n) of a piece of work; n: its tiles of keys."""
    item = number // H
    head = number % H
    if KB == 0:
        q0 = gl.load(WORK + item * 5)
        q1 = gl.load(WORK + item * 5 + 1)
        k0 = gl.load(WORK + item * 5 + 2)
        k1 = gl.load(WORK + item * 5 + 3)
        off = gl.load(WORK + item * 5 + 4)
        k_end = gl.maximum(gl.minimum(k1, gl.minimum(q0 + 64 * NC, q1) + off), k0)
        k_last = gl.maximum(k1 - BN, 0)
        n = gl.maximum(gl.cdiv(k_end - k0, BN), 1)
        lists = IDX
    else:
        kv_head = head // group
        q0 = item * 64 * NC
        q1 = Sq
        k0 = 0
        off = 0x20000000
        num = gl.load(WORK + kv_head * n_items + item)
        n = gl.maximum(num * (KB // BN), 1)
        k_end = gl.where(num > 0, off, 0)
        k_last = off
        lists = IDX + (kv_head * n_items + item).to(gl.int64) * list_len
    return head, lists, q0, q1, k0, k_end, k_last, off, n


@gluon.jit
def _producer(dq, dk, dv, q_s, k_s, v_s, q_full, q_empty, k_full, k_empty, v_full, v_empty, WORK, IDX, ORDER, first, end,
              n_items, Sq, H, group, list_len, resident,
              BN: gl.constexpr, D: gl.constexpr, NB: gl.constexpr, NV: gl.constexpr, KB: gl.constexpr,
              NC: gl.constexpr):  # fmt: skip
    c = first * 0  # tiles of keys so far
    for j in range(first, end):
        head, lists, q0, _q1, k0, _k_end, k_last, _off, n = _item(
            WORK, IDX, gl.load(ORDER + j), n_items, Sq, H, group, list_len, BN, KB, NC
        )
        q_col = head * D
        k_col = head // group * D
        # One-item programs begin evenly in time, `resident` of them while one runs. Each begins as far into its list as it
        # begins late, so all read the same keys at the same time, out of the L2 cache.
        turn = gl.program_id(0) % resident * n // resident
        for i in range(n):
            at = n - 1 - i
            if NC == 1:
                at = gl.where(at < turn, at + n, at) - turn
            b = (c + i) % NB
            ph = ((c + i) // NB) & 1
            bv = (c + i) % NV
            phv = ((c + i) // NV) & 1
            row = _tile_start(lists, at, k0, k_last, BN, KB)
            mbarrier.wait(k_empty.index(b), ph ^ 1)
            mbarrier.expect(k_full.index(b), dk.block_type.nbytes)
            async_load(dk, [row, k_col], k_full.index(b), k_s.index(b))
            if i == 0:
                for g in gl.static_range(NC):
                    mbarrier.wait(q_empty.index(g), ((j - first) & 1) ^ 1)
                    mbarrier.expect(q_full.index(g), dq.block_type.nbytes)
                    async_load(dq, [q0 + g * 64, q_col], q_full.index(g), q_s.index(g))
            mbarrier.wait(v_empty.index(bv), phv ^ 1)
            mbarrier.expect(v_full.index(bv), dv.block_type.nbytes)
            async_load(dv, [row, k_col], v_full.index(bv), v_s.index(bv))
        c += n


@gluon.jit
def _hide(qk, i, k0, k_last, limit, BN: gl.constexpr, L: gl.constexpr):
    """The scores of tile i with keys hidden that lie past the row's limit or belong to the tile before."""
    lowest = k0 + i * BN
    cols = gl.arange(0, BN, gl.SliceLayout(0, L))[None, :]
    if lowest > k_last:
        qk = gl.where(cols >= lowest - k_last, qk, -float("inf"))
    return gl.where(cols <= (limit - gl.minimum(lowest, k_last))[:, None], qk, -float("inf"))


@gluon.jit
def _softmax(qk, m_i, s, MASK: gl.constexpr):
    highest = gl.max(qk, 1) * s
    m_ij = gl.where(highest > m_i + MARGIN, highest, m_i)
    if MASK:
        # A row that has seen no key yet keeps m = -inf, and -inf - -inf would be NaN.
        top = gl.where(m_ij == -float("inf"), 0.0, m_ij)
    else:
        top = m_ij
    p = gl.exp2(qk * s - top[:, None])
    alpha = gl.exp2(m_i - top)
    # Each thread's own sum: the four threads of a row are added up at the end of the item.
    return p, m_ij, gl.sum(gl.sum(p.reshape([p.shape[0], p.shape[1] // 8, 4, 2]), 3), 1), alpha


@gluon.jit
def _packed(p, dtype: gl.constexpr):
    """P in the inputs' dtype, by assembly: the compiler would move a conversion behind the wait for P·V, where the next
    products wait for it."""
    if dtype == gl.bfloat16:
        return gl.inline_asm_elementwise("cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [p], gl.bfloat16, False, 2)
    else:
        return gl.inline_asm_elementwise("cvt.rn.f16x2.f32 $0, $2, $1;", "=r,r,r", [p], gl.float16, False, 2)


@gluon.jit
def _scaled(acc, alpha, LO: gl.constexpr):
    """acc [64, D] times alpha of each row. A warp none of whose rows changes skips the products: a branch that the language
    has not, because its conditions are those of all warps."""
    factors = gl.convert_layout(alpha, gl.SliceLayout(1, LO))[:, None].broadcast_to(acc.shape[0], acc.shape[1])
    if acc.shape[1] == 128:
        return gl.inline_asm_elementwise(SCALE_128, CONSTRAINTS_128, [acc, factors], gl.float32, False, 64)
    else:
        return gl.inline_asm_elementwise(SCALE_64, CONSTRAINTS_64, [acc, factors], gl.float32, False, 32)


@gluon.jit
def _step(i, c, n, acc, pb, m_i, l_i, q, k_s, v_s, k_full, k_empty, v_full, v_empty, s, k0, k_last, limit,
          BN: gl.constexpr, NB: gl.constexpr, NV: gl.constexpr, MASK: gl.constexpr, L: gl.constexpr, LO: gl.constexpr):  # fmt: skip
    t = c + i
    kb = t % NB
    vb = (t - 1) % NV
    z = gl.zeros([64, BN], gl.float32, L)
    qk = warpgroup_mma(q, k_s.index(kb).permute((1, 0)), z, use_acc=False, is_async=True)
    mbarrier.wait(v_full.index(vb), ((t - 1) // NV) & 1)
    acc_t = warpgroup_mma(pb, v_s.index(vb), acc, is_async=True)
    qk = warpgroup_mma_wait(1, deps=(qk,))
    if MASK:
        qk = _hide(qk, n - 1 - i, k0, k_last, limit, BN, L)
    p, m_i, part, alpha = _softmax(qk, m_i, s, MASK)
    l_i = l_i * gl.convert_layout(alpha, gl.SliceLayout(1, l_i.type.layout))[:, None] + part
    pb = gl.convert_layout(_packed(p, q.dtype), gl.DotOperandLayout(0, LO, 2))
    # Waiting for the next K here, and not at the top, also splits the basic block: without it ptxas hoists the wait
    # for P·V above the softmax and the overlap is gone.
    mbarrier.wait(k_full.index((t + 1) % NB), ((t + 1) // NB) & 1, pred=i + 1 < n)
    acc = warpgroup_mma_wait(0, deps=(acc_t,))
    mbarrier.arrive(k_empty.index(kb), count=1)
    mbarrier.arrive(v_empty.index(vb), count=1)
    return _scaled(acc, alpha, LO), pb, m_i, l_i


@gluon.jit
def _consumer(do, OUT, LSE, q_s, o_s, k_s, v_s, q_full, q_empty, k_full, k_empty, v_full, v_empty, WORK, IDX, ORDER,
              first, end, n_items, Sq, H, group, list_len, s, CID: gl.constexpr, BN: gl.constexpr,
              D: gl.constexpr, NB: gl.constexpr, NV: gl.constexpr, MASK: gl.constexpr, KB: gl.constexpr,
              NC: gl.constexpr):  # fmt: skip
    BM: gl.constexpr = 64
    L: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])
    LO: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    rows: gl.constexpr = gl.SliceLayout(1, L)
    rowsO: gl.constexpr = gl.SliceLayout(1, LO)
    dtype: gl.constexpr = q_s.dtype
    QL: gl.constexpr = gl.DotOperandLayout(0, L, 2)
    c = first * 0  # tiles of keys so far
    for j in range(first, end):
        head, _lists, q0, q1, k0, k_end, k_last, off, n = _item(
            WORK, IDX, gl.load(ORDER + j), n_items, Sq, H, group, list_len, BN, KB, NC
        )
        q_col = head * D
        row0 = q0 + CID * BM
        limit = gl.minimum(row0 + gl.arange(0, BM, rows) + off, k_end - 1)
        # Tiles that every row of this warpgroup sees whole; block lists hold whole blocks.
        if KB == 0:
            n_whole = gl.minimum(gl.maximum(gl.minimum(row0 + off + 1, k_end) - k0, 0) // BN, n)
        else:
            n_whole = n
        m_i = gl.full([BM], -float("inf"), gl.float32, rows)
        acc = gl.zeros([BM, D], gl.float32, LO)
        z = gl.zeros([BM, BN], gl.float32, L)

        mbarrier.wait(q_full.index(CID), (j - first) & 1)
        if NC == 1:
            q = q_s.index(CID).load(QL)
            mbarrier.arrive(q_empty.index(CID), count=1)
        else:
            q = q_s.index(CID)
        mbarrier.wait(k_full.index(c % NB), (c // NB) & 1)
        qk = warpgroup_mma(q, k_s.index(c % NB).permute((1, 0)), z, use_acc=False, is_async=True)
        qk = warpgroup_mma_wait(0, deps=(qk,))
        mbarrier.arrive(k_empty.index(c % NB), count=1)
        if MASK:
            qk = _hide(qk, n - 1, k0, k_last, limit, BN, L)
        p, m_i, l_i, _alpha = _softmax(qk, m_i, s, MASK)
        pb = gl.convert_layout(p.to(dtype), gl.DotOperandLayout(0, LO, 2))
        if n > 1:
            mbarrier.wait(k_full.index((c + 1) % NB), ((c + 1) // NB) & 1)
        masked = gl.maximum(n - n_whole, 1)  # tiles with a mask, the first of all among them
        if MASK and KB == 0:
            for i in range(1, masked):
                acc, pb, m_i, l_i = _step(i, c, n, acc, pb, m_i, l_i, q, k_s, v_s, k_full, k_empty, v_full, v_empty,
                                          s, k0, k_last, limit, BN, NB, NV, True, L, LO)  # fmt: skip
        for i in range(masked, n):
            acc, pb, m_i, l_i = _step(i, c, n, acc, pb, m_i, l_i, q, k_s, v_s, k_full, k_empty, v_full, v_empty,
                                      s, k0, k_last, limit, BN, NB, NV, False, L, LO)  # fmt: skip
        if NC == 2:
            mbarrier.arrive(q_empty.index(CID), count=1)
        c += n
        vb = (c - 1) % NV
        mbarrier.wait(v_full.index(vb), ((c - 1) // NV) & 1)
        acc = warpgroup_mma(pb, v_s.index(vb), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(v_empty.index(vb), count=1)

        l_i = gl.convert_layout(gl.sum(l_i, 1), rows)
        if MASK:
            seen = gl.convert_layout(l_i, rowsO) != 0.0  # a NaN was seen
            acc = acc * gl.convert_layout(1.0 / gl.where(l_i != 0.0, l_i, 1.0), rowsO)[:, None]
            acc = gl.where(seen[:, None], acc, 0.0)
        else:
            acc = acc * gl.convert_layout(1.0 / l_i, rowsO)[:, None]
        lse_rows = row0 + gl.arange(0, BM, rows)
        gl.store(LSE + head.to(gl.int64) * Sq + lse_rows, (m_i + gl.log2(l_i)) * 0.6931471805599453, mask=lse_rows < q1)
        if row0 + BM <= q1:
            tma.store_wait(0)
            o_s.index(CID).store(acc.to(dtype))
            fence_async_shared()
            async_store(do, [row0, q_col], o_s.index(CID))
        else:
            # The tile reaches into the next slice's rows, which are another CTA's.
            o_rows = row0 + gl.arange(0, BM, rowsO)
            o_cols = q_col + gl.arange(0, D, gl.SliceLayout(0, LO))
            at = o_rows.to(gl.int64)[:, None] * (H * D) + o_cols[None, :]
            gl.store(OUT + at, acc.to(dtype), mask=(o_rows < q1)[:, None])
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["n_items", "Sq", "H", "group", "list_len", "resident"])
def ffa_fwd(dq, dk, dv, do, OUT, LSE, WORK, IDX, ORDER, BEGIN, sm_scale, n_items, Sq, H, group,
            list_len, resident, BN: gl.constexpr, D: gl.constexpr, NB: gl.constexpr, NV: gl.constexpr, MASK: gl.constexpr,
            KB: gl.constexpr, NC: gl.constexpr):  # fmt: skip
    """A program does the pieces of work ORDER[BEGIN[program]..BEGIN[program + 1]], item * H + head, one after the other
    (plan.shares); the loads of one begin while the one before ends. With NC = 2 there is a program for each multiprocessor,
    with NC = 1 one for each piece, and `resident` run at a time. dq, do: [Sq, H*D] in [64, D] boxes; dk, dv: [Sk,
    H/group*D] in [BN, D] boxes; OUT: as do, for rows of partial tiles; LSE: float32 [H, Sq], natural logarithm.

    KB = 0: WORK is int32 [n_items, 5] (q0, q1, k0, k1, off): rows q0..min(q0 + 64 * NC, q1), row i sees keys k0..min(k1, i +
    off + 1). KB > 0: items are tiles of 64 * NC rows; WORK is kv_num [H/group, n_items], IDX kv_indices [H/group,
    n_items, list_len] of blocks of KB keys. MASK = False promises whole tiles and at least one key for every row.
    """
    pid = gl.program_id(0)
    first = gl.load(BEGIN + pid)
    end = gl.load(BEGIN + pid + 1)
    q_s = gl.allocate_shared_memory(dq.dtype, [NC] + dq.block_type.shape, dq.layout)
    o_s = gl.allocate_shared_memory(do.dtype, [NC] + do.block_type.shape, do.layout)
    k_s = gl.allocate_shared_memory(dk.dtype, [NB] + dk.block_type.shape, dk.layout)
    v_s = gl.allocate_shared_memory(dv.dtype, [NV] + dv.block_type.shape, dv.layout)
    ML: gl.constexpr = mbarrier.MBarrierLayout()
    q_full = gl.allocate_shared_memory(gl.int64, [NC, 1], ML)
    q_empty = gl.allocate_shared_memory(gl.int64, [NC, 1], ML)
    k_full = gl.allocate_shared_memory(gl.int64, [NB, 1], ML)
    k_empty = gl.allocate_shared_memory(gl.int64, [NB, 1], ML)
    v_full = gl.allocate_shared_memory(gl.int64, [NV, 1], ML)
    v_empty = gl.allocate_shared_memory(gl.int64, [NV, 1], ML)
    for i in gl.static_range(NC):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(q_empty.index(i), count=1)
    for i in gl.static_range(NB):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(k_empty.index(i), count=NC)
    for i in gl.static_range(NV):
        mbarrier.init(v_full.index(i), count=1)
        mbarrier.init(v_empty.index(i), count=NC)
    fence_async_shared()  # the copy engine sees the barriers
    s = sm_scale * 1.4426950408889634
    if NC == 2:
        gl.warp_specialize(
            [
                (_consumer, (do, OUT, LSE, q_s, o_s, k_s, v_s, q_full, q_empty, k_full, k_empty, v_full, v_empty, WORK, IDX,
                             ORDER, first, end, n_items, Sq, H, group, list_len, s, 0, BN, D, NB, NV, MASK, KB, NC)),
                (_consumer, (do, OUT, LSE, q_s, o_s, k_s, v_s, q_full, q_empty, k_full, k_empty, v_full, v_empty, WORK, IDX,
                             ORDER, first, end, n_items, Sq, H, group, list_len, s, 1, BN, D, NB, NV, MASK, KB, NC)),
                (_producer, (dq, dk, dv, q_s, k_s, v_s, q_full, q_empty, k_full, k_empty, v_full, v_empty, WORK, IDX, ORDER,
                             first, end, n_items, Sq, H, group, list_len, resident, BN, D, NB, NV, KB, NC)),
            ],
            [4, 1],
            [240, 24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_consumer, (do, OUT, LSE, q_s, o_s, k_s, v_s, q_full, q_empty, k_full, k_empty, v_full, v_empty, WORK, IDX,
                             ORDER, first, end, n_items, Sq, H, group, list_len, s, 0, BN, D, NB, NV, MASK, KB, NC)),
                (_producer, (dq, dk, dv, q_s, k_s, v_s, q_full, q_empty, k_full, k_empty, v_full, v_empty, WORK, IDX, ORDER,
                             first, end, n_items, Sq, H, group, list_len, resident, BN, D, NB, NV, KB, NC)),
            ],
            [1],
            [24],
        )  # fmt: skip
