"""The producer warp of the Hopper backward: tiles of Q and dO, and what goes with each, into a ring of NB buffers."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

# Later Triton has other names for these, and in the end no more those of 3.6.
async_load = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
thread_barrier = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier


@gluon.jit
def _entry(ENTRIES, e, BQ: gl.constexpr, QB: gl.constexpr):
    """Entry e of a CTA's list: its rows q0..q1, its diagonal, its tiles first..end, of which those below whole need a mask."""
    if QB == 0:
        q0 = gl.load(ENTRIES + e * 6)
        q1 = gl.load(ENTRIES + e * 6 + 1)
        off = gl.load(ENTRIES + e * 6 + 2)
        first = gl.load(ENTRIES + e * 6 + 3)
        whole = gl.load(ENTRIES + e * 6 + 4)
        end = gl.load(ENTRIES + e * 6 + 5)
    else:
        q0 = gl.load(ENTRIES + e) * QB
        q1 = q0 + QB
        off = 0
        first = 0
        whole = 0
        end = QB // BQ
    return q0, q1, off, first, whole, end


@gluon.jit
def _load_tile(it, taken, row, to_row, diagonal, masked, boxes, LSE, DELTA, buffers, barriers, q_col,
               BQ: gl.constexpr, NB: gl.constexpr, MASK: gl.constexpr):  # fmt: skip
    dq, ddo = boxes
    _k_s, _v_s, q_s, o_s, _ds_s, _dq_s, ld_s, at_s = buffers
    _kv_full, q_full, o_full, qo_empty, _ds_full = barriers
    b = it % NB
    LR: gl.constexpr = gl.BlockedLayout([2], [32], [1], [0])
    one = gl.arange(0, 1, gl.BlockedLayout([1], [32], [1], [0]))
    i = gl.arange(0, BQ, LR)
    mbarrier.wait(qo_empty.index(b), ((it // NB) & 1) ^ 1)
    mbarrier.expect(q_full.index(b), dq.block_type.nbytes)
    async_load(dq, [row, q_col], q_full.index(b), q_s.index(b))
    mbarrier.expect(o_full.index(b), ddo.block_type.nbytes)
    async_load(ddo, [row, q_col], o_full.index(b), o_s.index(b))
    # Rows that the tile before took: P = exp2(S - inf) = 0.
    lse = gl.load(LSE + row + i, mask=row + i >= taken, other=float("inf"))
    delta = gl.load(DELTA + row + i)
    ld_s.index(3 * b).store(lse)
    ld_s.index(3 * b + 1).store(delta)
    at_s.index(2 * b).store(one + to_row)
    if MASK:
        at_s.index(2 * b + 1).store(one + masked.to(gl.int32))
        ld_s.index(3 * b + 2).store((i + diagonal).to(gl.float32))
    thread_barrier()
    mbarrier.arrive(q_full.index(b), count=1)


@gluon.jit
def load_tiles(LSE, DELTA, ENTRIES, dk, dv, boxes, buffers, barriers, k_row, lo, num, kv_head, Sq, group,
          piece, pieces, item, BQ: gl.constexpr, D: gl.constexpr, NB: gl.constexpr, MASK: gl.constexpr, QB: gl.constexpr,
          SPLIT: gl.constexpr, ROT: gl.constexpr):  # fmt: skip
    """The producer warp. With each tile go three vectors in ld_s (LSE, delta, and the last key that a row sees, when
    masked) and two numbers in at_s: the row of dQ's sum that the tile begins at, and whether it needs a mask.

    The group's query heads take turns at every tile of rows. CTAs that see more than half of a slice's rows go up from
    the end, the others down from their first: CTAs that start together, and the short ones that follow the long ones,
    then read the same rows at the same time, out of the L2 cache.
    """
    mbarrier.expect(barriers[0], dk.block_type.nbytes + dv.block_type.nbytes)
    async_load(dk, [k_row, kv_head * D], barriers[0], buffers[0])
    async_load(dv, [k_row, kv_head * D], barriers[0], buffers[1])
    it = 0
    for e in range(lo, lo + num):
        q0, q1, off, first, whole, end = _entry(ENTRIES, e, BQ, QB)
        up = 2 * (end - first) * BQ > q1 - q0
        if SPLIT:
            span = end - first
            end = first + span * (piece + 1) // pieces
            first = first + span * piece // pieces
        for th in range((end - first) * group):
            t = gl.where(up, end - 1 - th // group, first + th // group)
            if ROT:
                head = kv_head * group + (th + item) % group
            else:
                head = kv_head * group + th % group
            stat = head.to(gl.int64) * Sq
            row = gl.minimum(q0 + t * BQ, q1 - BQ)
            _load_tile(it, q0 + t * BQ, row, row + head * Sq, row + off - k_row, t < whole, boxes, LSE + stat,
                       DELTA + stat, buffers, barriers, head * D, BQ, NB, MASK)  # fmt: skip
            it += 1
