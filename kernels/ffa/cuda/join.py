"""dK and dV of those items of the Gluon backward that were cut into pieces: their parts added up, in order."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["n_items", "Hk", "n_whole", "cuts"])
def ffa_bwd_join(PARTS, DK, DV, WORK, sm_scale, n_items, Hk, n_whole, cuts, BK: tl.constexpr, D: tl.constexpr,
                 ROWS: tl.constexpr):  # fmt: skip
    """Grid (tail * BK / ROWS,). PARTS: float32 [tail * cuts, 2, BK, D] (dK unscaled, dV) of the items n_whole.. of the
    launch, which counts them head by head. DK, DV: [Sk, Hk, D]. WORK: int32 [n_items, 5], k0 and k1 first."""
    nth = tl.program_id(0) // (BK // ROWS)
    item = (n_whole + nth) % n_items
    kv_head = (n_whole + nth) // n_items
    k0 = tl.load(WORK + item * 5)
    k1 = tl.load(WORK + item * 5 + 1)
    rows = tl.program_id(0) % (BK // ROWS) * ROWS + tl.arange(0, ROWS)
    dims = tl.arange(0, D)
    dk = tl.zeros([ROWS, D], tl.float32)
    dv = tl.zeros([ROWS, D], tl.float32)
    at = PARTS + nth.to(tl.int64) * cuts * (2 * BK * D) + rows[:, None] * D + dims[None, :]
    for _ in range(cuts):
        dk += tl.load(at)
        dv += tl.load(at + BK * D)
        at += 2 * BK * D
    keys = tl.maximum(tl.minimum(k0, k1 - BK), 0) + rows
    to = keys.to(tl.int64)[:, None] * (Hk * D) + kv_head * D + dims[None, :]
    mine = ((keys >= k0) & (keys < k1))[:, None]
    tl.store(DK + to, (dk * sm_scale).to(DK.dtype.element_ty), mask=mine)
    tl.store(DV + to, dv.to(DV.dtype.element_ty), mask=mine)
