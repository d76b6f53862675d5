"""Host side of the kernels: tile shapes, tensor descriptors, grids. One function per kernel; none chooses a kernel.

q, out, dout are [Sq, Hq, D], k and v [Sk, Hk, D], lse, lse2, delta float32 [Hq, Sq]. All are contiguous, but q, k and v of
the Gluon kernels need only be `readable`.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from ..schedule import Blocks, Schedule, Slices
from . import plan
from .dispatch import BWD_TILE, forward_tile
from .gluon_bwd import ffa_bwd
from .gluon_fwd import ffa_fwd
from .join import ffa_bwd_join
from .triton_bwd import ffa_bwd_dkdv, ffa_bwd_dq
from .triton_fwd import ffa_fwd_general

GLUON_DTYPES = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16, torch.float32: gl.float32}
Pair = tuple[Tensor, Tensor]
# 12 warps (two consumer warpgroups, producers padded to one) enter with 168 registers; setmaxnreg deals out 240 and 24.
# With one consumer there are 8 warps, and two programs a multiprocessor: 128 registers.
SPECIALISED = {"num_warps": 4, "maxnreg": 168}

JOIN_ROWS = 16  # a program adds up so many rows


@dataclass(frozen=True)
class Tile:
    """Rows and keys of a Triton tile, its warps, and the depth of the load pipeline."""

    rows: int
    keys: int
    warps: int
    stages: int


@dataclass(frozen=True)
class Work:
    """What to compute: the schedule, which of its slices (Blocks have no parts), and the scale of the scores."""

    schedule: Schedule
    part: plan.Part
    scale: float


@dataclass(frozen=True)
class Launch:
    """A kernel with everything it is launched with; the grid is one-dimensional."""

    kernel: Any
    programs: int
    args: tuple[Any, ...]
    options: dict[str, Any]


# For slices. The forward and dQ keep rows, dK/dV keeps keys.
FWD = Tile(128, 64, 8, 3)
DKDV = Tile(64, 64, 4, 2)
DQ = Tile(128, 64, 8, 3)


def block_tiles(schedule: Blocks) -> tuple[Tile, Tile, Tile]:
    """Tiles for the forward, dK/dV and dQ: the requested compute tile, or what fits the block up to 128 x 64 (64 x 64
    for dK/dV, which would spill).
    """
    rows, keys = (min(max(triton.next_power_of_2(n), 16), 128) for n in (schedule.q_block, schedule.k_block))
    if schedule.options.ref_block is not None:
        rows, keys = schedule.options.ref_block
        walked = rows
    else:
        keys, walked = min(keys, 64), min(rows, 64)
    return (
        Tile(rows, keys, _warps(rows), 2),
        Tile(walked, keys, _warps(keys), 2 if walked * keys > 4096 else 3),
        Tile(rows, keys, _warps(rows), 2 if rows * keys > 8192 else 3),
    )


def _warps(kept: int) -> int:
    return 8 if kept >= 128 else 4


def gluon_forward(q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, work: Work) -> Launch | None:
    """Writes out and lse of the work's part; None when that is empty."""
    sq, heads, dim = q.shape
    sk, kv_heads, _ = k.shape
    rows, keys = forward_tile(work.schedule)
    items, list_len, _, k_block = _query_work(work, rows, keys, q.device)
    if items is None:
        return None
    group = plan.heads_per_group(heads, items, sk * dim * 4 * kv_heads // heads)
    processors = plan.processors(q.device)
    order = plan.order(items, heads, group, processors)
    consumers, pieces = rows // 64, items.count * heads
    resident = min((processors or 1) * 2 // consumers, pieces)
    # With one consumer, two programs share a multiprocessor: one begins an item under the other's products.
    programs = pieces if consumers == 1 else resident
    shares = plan.shares(items.lengths, items.count, heads, order, programs, q.device)
    boxes = (_box(q, 64), _box(k, keys), _box(v, keys), _box(out, 64))
    tensors = (*boxes, out, lse, items.table, items.entries, *shares)
    args = (*tensors, work.scale, items.count, sq, heads, heads // kv_heads, list_len, resident)
    buffers = (3, 2) if dim == 128 and (keys == 128 or consumers == 1) else (4, 4)
    options = {
        "BN": keys,
        "D": dim,
        "NB": buffers[0],
        "NV": buffers[1],
        "MASK": items.masked,
        "KB": k_block,
        "NC": consumers,
    }
    return Launch(ffa_fwd, programs, args, options | SPECIALISED | ({} if consumers == 2 else {"maxnreg": 128}))


def gluon_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    stats: Pair,
    total: Tensor,
    dk: Tensor,
    dv: Tensor,
    work: Work,
    processors: int,
) -> tuple[Launch, ...]:
    """Launches that write dk and dv of the work's part and add its dQ, not yet scaled, to `total`, float32 [Hq, Sq, D]
    (head by head: the copy engine adds to contiguous tiles). stats are (lse2, delta); processors the GPU's. Empty when
    the part is."""
    sq, heads, dim = q.shape
    kv_heads = k.shape[1]
    rows, keys = BWD_TILE
    items, list_len, q_block, k_block = _key_work(work, rows, keys, q.device)
    if items is None:
        return ()
    split = plan.split(items, kv_heads, heads // kv_heads, processors)
    whole, cuts = (split.whole, split.pieces) if split else (items.count * kv_heads, 1)
    slots = split.tail * split.pieces if split else 0
    parts = q.new_empty((slots, 2, keys, dim), dtype=torch.float32) if split else stats[0]
    order = plan.order(items, kv_heads, plan.heads_in_step(kv_heads, items, processors), processors)
    boxes = (
        _box(k, keys),
        _box(v, keys),
        _box(q, rows),
        _box(dout, rows),
        _box(total.view(-1, 1, dim), rows, dim // 2),
    )
    tensors = (*boxes, *stats, dk, dv, items.table, items.entries, parts)
    places = (items.count, order.grouped, order.heads_per_group)
    args = (*tensors, work.scale, *places, sq, kv_heads, heads // kv_heads, list_len, processors or 1, whole, cuts)
    sizes = {"BQ": rows, "BK": keys, "D": dim, "NB": 2, "QB": q_block, "KB": k_block}
    options = sizes | {"SPLIT": split is not None} | SPECIALISED
    made = Launch(ffa_bwd, whole + slots, args, options)
    if split is None:
        return (made,)
    joined = (parts, dk, dv, items.table, work.scale, items.count, kv_heads, whole, cuts)
    return made, Launch(
        ffa_bwd_join, split.tail * (keys // JOIN_ROWS), joined, {"BK": keys, "D": dim, "ROWS": JOIN_ROWS}
    )


def triton_forward(q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, work: Work) -> Launch | None:
    """As gluon_forward."""
    return _by_rows(ffa_fwd_general, (q, k, v, out, lse), (), q, k, work, _tiles(work.schedule)[0])


def triton_dq(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, stats: Pair, dq: Tensor, dq_scale: float, work: Work
) -> Launch | None:
    """Writes dq, times dq_scale: like q, or float32 [Hq, Sq, D] as gluon_backward's sum."""
    tensors = (q, k, v, dout, *stats, dq)
    made = _by_rows(ffa_bwd_dq, tensors, (dq_scale,), q, k, work, _tiles(work.schedule)[2])
    return made and replace(made, options=made.options | {"BY_HEAD": dq.dtype == torch.float32})


def triton_dkdv(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, stats: Pair, dk: Tensor, dv: Tensor, work: Work
) -> Launch | None:
    """Writes dk and dv."""
    sq, heads, dim = q.shape
    sk, kv_heads, _ = k.shape
    tile = _tiles(work.schedule)[1]
    items, list_len, q_block, k_block = _key_work(work, tile.rows, tile.keys, q.device)
    if items is None:
        return None
    group = plan.heads_per_group(kv_heads, items, sq * dim * 4 * heads // kv_heads)
    tensors = (q, k, v, dout, *stats, dk, dv, items.table, items.entries)
    sizes = (items.count, group, sq, sk, kv_heads, heads // kv_heads, list_len, max(q_block, 1), max(k_block, 1))
    options = {"D": dim, "BM": tile.rows, "BN": tile.keys, "BLOCKS": bool(q_block), **_compile_options(tile)}
    return Launch(ffa_bwd_dkdv, items.count * kv_heads, (*tensors, work.scale, *sizes), options)


_CAPTURED: dict[int, Tensor] = {}


def run(launch: Launch | None, device: torch.device) -> None:
    """Launch on the device's current stream; nothing for None. The work tables of what a CUDA graph captures
    stay for the rest of the process: the graph has only their addresses, and a schedule's tables go when many other
    schedules were used."""
    if launch is not None:
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                tables = [arg for arg in launch.args if isinstance(arg, Tensor) and arg.dtype == torch.int32]
                _CAPTURED.update((id(table), table) for table in tables)
            launch.kernel[(launch.programs,)](*launch.args, **launch.options)


def _by_rows(kernel: Any, tensors: Any, scales: Any, q: Tensor, k: Tensor, work: Work, tile: Tile) -> Launch | None:
    sq, heads, dim = q.shape
    sk, kv_heads, _ = k.shape
    items, list_len, q_block, k_block = _query_work(work, tile.rows, tile.keys, q.device)
    if items is None:
        return None
    whole = not k_block or (k_block % tile.keys == 0 and sk % k_block == 0)
    group = plan.heads_per_group(heads, items, sk * dim * 4 * kv_heads // heads)
    sizes = (items.count, group, sq, sk, heads, heads // kv_heads, list_len, max(q_block, 1), max(k_block, 1))
    options = {"D": dim, "BM": tile.rows, "BN": tile.keys, "BLOCKS": bool(k_block), "WHOLE": whole}
    args = (*tensors, items.table, items.entries, work.scale, *scales, *sizes)
    return Launch(kernel, items.count * heads, args, options | _compile_options(tile))


def _query_work(work: Work, rows: int, keys: int, device: torch.device) -> tuple[plan.Items | None, int, int, int]:
    """(items, entries per list, q_block, k_block); the last three are 0 for slices."""
    s = work.schedule
    if isinstance(s, Slices):
        return plan.query_items(s, rows, keys, device, work.part), 0, 0, 0
    items = plan.block_items(s.kv_num, s.kv_indices, s.q_len, s.q_block, rows)
    return items, s.kv_indices.shape[2], s.q_block, s.k_block


def _key_work(work: Work, rows: int, keys: int, device: torch.device) -> tuple[plan.Items | None, int, int, int]:
    """As _query_work, for tiles of keys."""
    s = work.schedule
    if isinstance(s, Slices):
        return plan.key_items(s, keys, rows, device, work.part), 0, 0, 0
    items = plan.block_items(s.q_num, s.q_indices, s.k_len, s.k_block, keys)
    return items, s.q_indices.shape[2], s.q_block, s.k_block


def _tiles(schedule: Schedule) -> tuple[Tile, Tile, Tile]:
    return (FWD, DKDV, DQ) if isinstance(schedule, Slices) else block_tiles(schedule)


def _compile_options(tile: Tile) -> dict[str, Any]:
    return {"UPCAST": triton.knobs.runtime.interpret, "num_warps": tile.warps, "num_stages": tile.stages}


def _box(tensor: Tensor, rows: int, columns: int = 0) -> TensorDescriptor:
    """TMA descriptor of a [tokens, heads, D] tensor as [tokens, heads * D], in boxes of one head's columns."""
    tokens, heads, dim = tensor.shape
    box = (rows, columns or dim)
    layout = _box_layout(box, tensor.dtype)
    return TensorDescriptor(tensor, [tokens, heads * dim], [tensor.stride(0), 1], list(box), layout)


def packed(tensor: Tensor) -> Tensor:
    """The tensor itself where it is contiguous and begins at 16 bytes, else a copy that does: a part of another tensor may
    begin anywhere."""
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()


def readable(tensor: Tensor) -> Tensor:
    """The tensor itself where the copy engine can read it as it lies: heads side by side, tokens at any distance, as
    q, k and v are when split off one product; otherwise a contiguous copy."""
    _, heads, dim = tensor.shape
    side_by_side = tensor.stride(2) == 1 and (heads == 1 or tensor.stride(1) == dim)
    aligned = tensor.stride(0) * tensor.element_size() % 16 == 0 and tensor.data_ptr() % 16 == 0
    apart = tensor.stride(0) >= heads * dim
    return tensor if side_by_side and aligned and apart else tensor.clone(memory_format=torch.contiguous_format)


@cache
def _box_layout(box: tuple[int, int], dtype: torch.dtype) -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout.get_default_for(list(box), GLUON_DTYPES[dtype])
