"""The producer warp of the Hopper backward: tiles of Q and dO, and what goes with each, into a ring of NB buffers."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

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
def _store_parts(to, x, BQ: gl.constexpr):
    """A row's number in three 16-bit parts, whose sum has all bits of a float32; of an infinite one, in the first."""
    L: gl.constexpr = gl.BlockedLayout([2, 16], [32, 1], [1, 1], [1, 0])
    col = gl.arange(0, 16, gl.SliceLayout(0, L))[None, :]
    high = x.to(to.dtype)
    rest = gl.where(gl.abs(x) == float("inf"), 0.0, x - high.to(gl.float32))
    middle = rest.to(to.dtype)
    low = (rest - middle.to(gl.float32)).to(to.dtype)
    zero = gl.zeros([BQ, 16], to.dtype, L)
    lower = gl.where(col == 1, middle[:, None], gl.where(col == 2, low[:, None], zero))
    to.store(gl.where(col == 0, high[:, None], lower))


@gluon.jit
def _load_tile(it, taken, row, to_row, last, masked, boxes, LSE, DELTA, buffers, barriers, q_col, s, BQ: gl.constexpr,
               NB: gl.constexpr):  # fmt: skip
    dq, ddo = boxes
    _k_s, _v_s, q_s, o_s, _ds_s, _dq_s, parts_s, _ones_s, last_s, notes_s = buffers
    _kv_full, q_full, o_full, qo_empty, _ds_full = barriers
    b = it % NB
    one = gl.arange(0, 1, gl.BlockedLayout([1], [32], [1], [0]))
    i = gl.arange(0, BQ, gl.SliceLayout(1, gl.BlockedLayout([2, 16], [32, 1], [1, 1], [1, 0])))
    mbarrier.wait(qo_empty.index(b), ((it // NB) & 1) ^ 1)
    mbarrier.expect(q_full.index(b), dq.block_type.nbytes)
    async_load(dq, [row, q_col], q_full.index(b), q_s.index(b))
    mbarrier.expect(o_full.index(b), ddo.block_type.nbytes)
    async_load(ddo, [row, q_col], o_full.index(b), o_s.index(b))
    # Rows that the tile before took: P = exp2(S - inf) = 0.
    lse = gl.load(LSE + row + i, mask=row + i >= taken, other=float("inf"))
    delta = gl.load(DELTA + row + i)
    _store_parts(parts_s.index(2 * b), lse * (-1.0 / s), BQ)
    _store_parts(parts_s.index(2 * b + 1), -delta, BQ)
    last_s.index(b).store((i + last).to(gl.float32))
    notes_s.index(2 * b).store(one + to_row)
    notes_s.index(2 * b + 1).store(one + masked.to(gl.int32))
    fence_async_shared()
    thread_barrier()
    mbarrier.arrive(q_full.index(b), count=1)


@gluon.jit
def load_tiles(LSE, DELTA, ENTRIES, dk, dv, boxes, buffers, barriers, k_row, lo, num, kv_head, Sq, group, resident,
               s, piece, pieces, BQ: gl.constexpr, D: gl.constexpr, NB: gl.constexpr, QB: gl.constexpr,
               SPLIT: gl.constexpr):  # fmt: skip
    """The producer warp. With each tile go LSE / s and delta, negative and in parts; the last key that each row sees; and
    two notes: the row of dQ's sum that the tile begins at, and whether it needs a mask.

    The group's query heads take turns at every tile of rows. CTAs that see more than half of a slice's rows go up from
    the end, the others down from their first: CTAs that start together, and the short ones that follow the long ones,
    then read the same rows at the same time, out of the L2 cache. Block lists differ in length, so after a while CTAs begin
    evenly in time, `resident` of them while one runs: each begins as far into its list as it begins late. CTAs with all
    blocks stay in step by themselves.
    """
    mbarrier.expect(barriers[0], dk.block_type.nbytes + dv.block_type.nbytes)
    async_load(dk, [k_row, kv_head * D], barriers[0], buffers[0])
    async_load(dv, [k_row, kv_head * D], barriers[0], buffers[1])
    it = 0
    turn = gl.program_id(0) % resident * num // resident
    for i in range(num):
        e = lo + i
        if QB > 0:  # noqa: SIM102 - the kernel language takes a constexpr condition alone
            if num * QB < Sq:
                e = gl.where(i + turn < num, i, i - num) + turn
        q0, q1, off, first, whole, end = _entry(ENTRIES, e, BQ, QB)
        up = 2 * (end - first) * BQ > q1 - q0
        if SPLIT:
            span = end - first
            end = first + span * (piece + 1) // pieces
            first = first + span * piece // pieces
        for th in range((end - first) * group):
            t = gl.where(up, end - 1 - th // group, first + th // group)
            head = kv_head * group + th % group
            stat = head.to(gl.int64) * Sq
            row = gl.minimum(q0 + t * BQ, q1 - BQ)
            _load_tile(it, q0 + t * BQ, row, row + head * Sq, row + off - k_row, t < whole, boxes, LSE + stat,
                       DELTA + stat, buffers, barriers, head * D, s, BQ, NB)  # fmt: skip
            it += 1
