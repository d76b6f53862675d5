"""Attention backward for Hopper in Gluon: five matrix products per tile, dQ reduced in memory by the copy engine.

One CTA owns 128 keys of one key head, held in shared memory for its whole life: two consumer warpgroups take 64 keys
each, a producer warp streams 64-row tiles of Q and dO of all the head's query heads through a ring of NB buffers. Scores
are computed transposed, Sᵀ = K·Qᵀ and dPᵀ = V·dOᵀ, so that P and dS feed dV and dK from registers; dS also goes
through shared memory, in two buffers, for dQ, of which each warpgroup computes one half of the columns and adds it to a
float32 array in memory by TMA reduce. The order of those additions is not fixed, so dQ may differ in its last bits
between runs; dK and dV are exact repeats. The formulas are those of FlashAttention-2 (arXiv 2307.08691, algorithm 2).

What limits a tile is shared memory's 128 bytes a cycle. So LSE and delta are not loaded for each column by each thread,
but subtracted by the tensor cores: a product of ones with each row's three 16-bit parts (gluon_bwd_load.py) begins the
sums of Sᵀ and dPᵀ. And dQ's columns are stored in an order without bank conflicts.

P is computed under dPᵀ, and dQ stored under the next tile's Sᵀ.

With SPLIT the last items, too few to keep all multiprocessors busy, are cut into pieces of their rows, one a CTA; a
piece's dK and dV go to memory in float32, and join.py adds them up in order.

Tiles that would reach over the end of a slice end at the slice's end instead; what a neighbour tile has taken already
is hidden (rows by an LSE of +inf, keys by a mask). That needs 64 rows and 128 keys at least: `dispatch.py`.
"""
# ruff: noqa: RUF005, SIM102 - the kernel language has no starred lists, and takes a constexpr condition alone

from triton._C.libtriton import ir
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from .gluon_bwd_load import load_tiles, thread_barrier
from .gluon_order import place


@builtin
def tma_reduce_add(desc, coord, src, _semantic=None):
    """Add a shared-memory tile to memory through the copy engine; Triton 3.6 has the operation, Gluon no name."""
    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, desc.handle, coord, src.handle)


@gluon.jit
def _start(it, more, buffers, barriers, of: gl.constexpr, W: gl.constexpr, BQ: gl.constexpr, NB: gl.constexpr,
           LS: gl.constexpr):  # fmt: skip
    """Start a tile's Sᵀ - LSE / s (of = 0) or dPᵀ - delta (of = 1). Without `more` there is no such tile, and what is
    started is never looked at."""
    b = it % NB
    mbarrier.wait(barriers[1 + of].index(b), (it // NB) & 1, pred=more)
    parts = buffers[6].index(2 * b + of).permute((1, 0))
    z = gl.zeros([64, BQ], gl.float32, LS)
    stats = warpgroup_mma(buffers[7], parts, z, use_acc=False, is_async=True)
    keys = buffers[of].slice(64 * W, 64)
    return warpgroup_mma(keys, buffers[2 + of].index(b).permute((1, 0)), stats, is_async=True)


@gluon.jit
def _note(it, buffers, which: gl.constexpr, NB: gl.constexpr):
    """A number that the producer sent with a tile."""
    return gl.max(buffers[9].index(2 * (it % NB) + which).load(gl.BlockedLayout([1], [32], [4], [0])), 0)


@gluon.jit
def _step(it, n, score, dk, dv, ddq, buffers, barriers, key_lo, key_hi, s, W: gl.constexpr, BQ: gl.constexpr,
          D: gl.constexpr, NB: gl.constexpr, LS: gl.constexpr):  # fmt: skip
    """A tile from its Sᵀ on; and the next tile's Sᵀ."""
    k_s, _v_s, q_s, o_s, ds_s, dq_s, _parts_s, _ones_s, last_s, _notes_s = buffers
    _kv_full, _q_full, _o_full, qo_empty, ds_full = barriers
    LD: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    LQ: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D // 2, 16])
    LA: gl.constexpr = gl.DotOperandLayout(0, LD, 2)
    dt: gl.constexpr = q_s.dtype
    b = it % NB
    dp_t = _start(it, True, buffers, barriers, 1, W, BQ, NB, LS)
    pt = gl.exp2(score * s)
    if _note(it, buffers, 1, NB) != 0:
        # Keys count from the tile's first row in memory; column i sees keys up to the producer's diagonal.
        key = 64 * W + gl.arange(0, 64, gl.SliceLayout(1, LS))
        key = gl.where((key >= key_lo) & (key < key_hi), key.to(gl.float32), float("inf"))
        last = last_s.index(b).load(gl.SliceLayout(0, LS))
        pt = gl.where(key[:, None] <= last[None, :], pt, 0.0)
    dst = pt * warpgroup_mma_wait(0, deps=(dp_t,))
    dv_t = warpgroup_mma(gl.convert_layout(pt.to(dt), LA), o_s.index(b), dv, is_async=True)
    dsb = dst.to(dt)
    # The other warpgroup has its dQ of two tiles ago: it came here for the tile before.
    ds = ds_s.index(it & 1)
    ds.slice(64 * W, 64).store(dsb)
    fence_async_shared()
    mbarrier.arrive(ds_full, count=1)
    dk_t = warpgroup_mma(gl.convert_layout(dsb, LA), q_s.index(b), dk, is_async=True)
    mbarrier.wait(ds_full, it & 1)
    half = k_s.slice((D // 2) * W, D // 2, dim=1)
    zq = gl.zeros([BQ, D // 2], gl.float32, LQ)
    dq_t = warpgroup_mma(ds.permute((1, 0)), half, zq, use_acc=False, is_async=True)
    dv = warpgroup_mma_wait(2, deps=(dv_t,))
    dk = warpgroup_mma_wait(1, deps=(dk_t,))
    to_row = _note(it, buffers, 0, NB)
    mbarrier.arrive(qo_empty.index(b), count=1)
    # The next tile's scores run under what is left of this one. They are waited for before the loop goes round: ptxas
    # serialises every wgmma of a loop that carries one in flight over its end.
    st = _start(it + 1, it + 1 < n, buffers, barriers, 0, W, BQ, NB, LS)
    dq = warpgroup_mma_wait(2, deps=(dq_t,))
    tma.store_wait(0)
    # A thread's eight columns of 32 side by side, as triton_bwd.summed_at says.
    dq_s.index(W).store(dq.reshape([BQ, D // 64, 4, 4, 2]).permute((0, 1, 3, 2, 4)).reshape([BQ, D // 2]))
    fence_async_shared()
    thread_barrier()
    tma_reduce_add(ddq, [to_row, (D // 2) * W], dq_s.index(W))
    score = warpgroup_mma_wait(0, deps=(st,))
    return score, dk, dv


@gluon.jit
def _consumer(DK, DV, ddq, buffers, barriers, k_row, k0, k1, n, k_col, Hk, s, sm_scale, PARTS, slot, pieces,
              W: gl.constexpr, BQ: gl.constexpr, D: gl.constexpr, NB: gl.constexpr, SPLIT: gl.constexpr):  # fmt: skip
    LS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BQ, 16])
    LD: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    dt: gl.constexpr = buffers[0].dtype
    dk = gl.zeros([64, D], gl.float32, LD)
    dv = gl.zeros([64, D], gl.float32, LD)
    mbarrier.wait(barriers[0], 0)
    score = warpgroup_mma_wait(0, deps=(_start(0, n > 0, buffers, barriers, 0, W, BQ, NB, LS),))
    for it in range(n):
        score, dk, dv = _step(it, n, score, dk, dv, ddq, buffers, barriers, k0 - k_row, k1 - k_row, s, W, BQ, D, NB, LS)
    tma.store_wait(0)
    if SPLIT:
        if pieces > 1:
            row = 64 * W + gl.arange(0, 64, gl.SliceLayout(1, LD))
            part = PARTS + slot.to(gl.int64) * (256 * D)
            part_at = row[:, None] * D + gl.arange(0, D, gl.SliceLayout(0, LD))[None, :]
            gl.store(part + part_at, dk)
            gl.store(part + 128 * D + part_at, dv)
            k1 = k0  # nothing below is this piece's to write
    # Through shared memory into 16 bytes a thread: what a wgmma leaves in a thread is 4 bytes here and there.
    LS8: gl.constexpr = gl.BlockedLayout([1, 8], [32 * 8 // D, D // 8], [4, 1], [1, 0])
    keys = k_row + 64 * W + gl.arange(0, 64, gl.SliceLayout(1, LS8))
    cols = k_col + gl.arange(0, D, gl.SliceLayout(0, LS8))
    at = keys.to(gl.int64)[:, None] * (Hk * D) + cols[None, :]
    mine = ((keys >= k0) & (keys < k1))[:, None]
    gl.store(DK + at, gl.convert_layout((dk * sm_scale).to(dt), LS8), mask=mine)
    gl.store(DV + at, gl.convert_layout(dv.to(dt), LS8), mask=mine)


@gluon.jit(do_not_specialize=["n_items", "n_first", "heads_per_group", "Sq", "Hk", "group", "list_len", "resident",
                              "n_whole", "cuts"])  # fmt: skip
def ffa_bwd(dkd, dvd, dqd, ddo, ddq, LSE, DELTA, DK, DV, WORK, ENTRIES, PARTS, sm_scale, n_items, n_first, heads_per_group,
            Sq, Hk, group, list_len, resident, n_whole, cuts, BQ: gl.constexpr, BK: gl.constexpr, D: gl.constexpr, NB: gl.constexpr,
            QB: gl.constexpr, KB: gl.constexpr, SPLIT: gl.constexpr):  # fmt: skip
    """Grid (n_items * Hk,). dkd, dvd: [Sk, Hk*D] in [128, D] boxes; dqd, ddo: [Sq, Hk*group*D] in [64, D] boxes; ddq:
    float32 [Hk*group*Sq, D], head by head, in [64, D/2] boxes, zeroed: dQ before scaling is added to it. LSE (base 2;
    +inf for a row that sees nothing) and DELTA = rowsum(O * dO): float32 [Hk*group, Sq]. DK, DV: as dkd, written whole.

    QB = 0: WORK is int32 [n_items, 5] (k0, k1, lo, hi, n): keys k0..k1 (BK at most), the entries of its slices
    ENTRIES[lo:hi], and how many tiles there are in them. ENTRIES: int32 [., 6] (q0, q1, off, first, whole, end): row i of
    q0..q1 sees key j when j <= i + off; tiles first..whole of BQ rows need a mask, whole..end don't. QB > 0: items are
    BK-key tiles; WORK is q_num [Hk, n_blocks], ENTRIES q_indices [Hk, n_blocks, list_len] of blocks of QB rows, n_blocks =
    n_items * BK / KB; `resident` programs run at a time.

    SPLIT: the grid is n_whole + tail * cuts programs; those from n_whole on are the pieces, `cuts` of each of the last
    `tail` items, whose sums go to PARTS, float32 [tail * cuts, 2, BK, D] (dK unscaled, dV). QB = 0, no tile needs a
    mask, and every item has one entry.
    """
    pid = gl.program_id(0)
    slot = pid
    piece = 0
    pieces = 1
    if SPLIT:
        slot = pid - n_whole
        if slot >= 0:
            piece = slot % cuts
            pieces = cuts
            pid = n_whole + slot // cuts
    item, kv_head = place(pid, n_first, heads_per_group, Hk)
    if QB == 0:
        k0 = gl.load(WORK + item * 5)
        k1 = gl.load(WORK + item * 5 + 1)
        lo = gl.load(WORK + item * 5 + 2)
        num = gl.load(WORK + item * 5 + 3) - lo
        n = gl.load(WORK + item * 5 + 4)
        if SPLIT:
            n = n * (piece + 1) // pieces - n * piece // pieces
        n = n * group
        k_row = gl.maximum(gl.minimum(k0, k1 - BK), 0)
        lists = ENTRIES
    else:
        k0 = item * BK
        k1 = k0 + BK
        k_row = k0
        block = kv_head * (n_items // (KB // BK)) + item // (KB // BK)
        lo = 0
        num = gl.load(WORK + block)
        n = num * (QB // BQ) * group
        lists = ENTRIES + block.to(gl.int64) * list_len
    k_s = gl.allocate_shared_memory(dkd.dtype, dkd.block_type.shape, dkd.layout)
    v_s = gl.allocate_shared_memory(dvd.dtype, dvd.block_type.shape, dvd.layout)
    q_s = gl.allocate_shared_memory(dqd.dtype, [NB] + dqd.block_type.shape, dqd.layout)
    o_s = gl.allocate_shared_memory(ddo.dtype, [NB] + ddo.block_type.shape, ddo.layout)
    SL: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BK, BQ], dkd.dtype)
    ds_s = gl.allocate_shared_memory(dkd.dtype, [2, BK, BQ], SL)
    dq_s = gl.allocate_shared_memory(ddq.dtype, [2] + ddq.block_type.shape, ddq.layout)
    PL: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BQ, 16], dkd.dtype)
    parts_s = gl.allocate_shared_memory(dkd.dtype, [2 * NB, BQ, 16], PL)
    L: gl.constexpr = gl.BlockedLayout([1, 8], [16, 2], [4, 1], [1, 0])
    first = (gl.arange(0, 16, gl.SliceLayout(0, L)) < 3)[None, :] & (gl.arange(0, 64, gl.SliceLayout(1, L)) >= 0)[
        :, None
    ]
    ones_s = gl.allocate_shared_memory(dkd.dtype, [64, 16], PL, first.to(gl.float32).to(dkd.dtype))
    last_s = gl.allocate_shared_memory(gl.float32, [NB, BQ], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    notes_s = gl.allocate_shared_memory(gl.int32, [2 * NB, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    ML: gl.constexpr = mbarrier.MBarrierLayout()
    kv_full = gl.allocate_shared_memory(gl.int64, [1], ML)
    q_full = gl.allocate_shared_memory(gl.int64, [NB, 1], ML)
    o_full = gl.allocate_shared_memory(gl.int64, [NB, 1], ML)
    qo_empty = gl.allocate_shared_memory(gl.int64, [NB, 1], ML)
    ds_full = gl.allocate_shared_memory(gl.int64, [1], ML)
    mbarrier.init(kv_full, count=1)
    mbarrier.init(ds_full, count=2)
    for i in gl.static_range(NB):
        mbarrier.init(q_full.index(i), count=2)  # the copy, and what the producer writes itself
        mbarrier.init(o_full.index(i), count=1)
        mbarrier.init(qo_empty.index(i), count=2)
    fence_async_shared()
    buffers = (k_s, v_s, q_s, o_s, ds_s, dq_s, parts_s, ones_s, last_s, notes_s)
    barriers = (kv_full, q_full, o_full, qo_empty, ds_full)
    s = sm_scale * 1.4426950408889634
    k_col = kv_head * D
    gl.warp_specialize(
        [
            (_consumer, (DK, DV, ddq, buffers, barriers, k_row, k0, k1, n, k_col, Hk, s, sm_scale,
                         PARTS, slot, pieces, 0, BQ, D, NB, SPLIT)),
            (_consumer, (DK, DV, ddq, buffers, barriers, k_row, k0, k1, n, k_col, Hk, s, sm_scale,
                         PARTS, slot, pieces, 1, BQ, D, NB, SPLIT)),
            (load_tiles, (LSE, DELTA, lists, dkd, dvd, (dqd, ddo), buffers, barriers, k_row, lo, num, kv_head, Sq,
                          group, resident, s, piece, pieces, BQ, D, NB, QB, SPLIT)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip
