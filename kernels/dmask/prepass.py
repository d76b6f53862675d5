"""The pre-pass: what of a mask is empty, full or partial, tile by tile, and lists of the tiles to visit.

Two kernels, nothing copied to the host. `dmask_classify` reads the mask once, gives every TILE x TILE tile a class and
every plane (a batch entry's and head's own mask) its counts, and packs the mask into words of bits, an eighth of its
bytes, which the other kernels read in its place. `dmask_lists` makes lists of the classes: of each row of tiles for the
forward and dQ, of each column for dK and dV. A list names the full tiles first, then the partial ones, both ascending, so
the order of every sum is fixed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .launch import Launch

TILE = 64  # queries and keys of a tile, everywhere in this package
EMPTY, PARTIAL, FULL = 0, 1, 2  # classes; a tile that reaches over the mask's edge is never full
_ACROSS = 2  # tiles that one program of dmask_classify looks at

DENSE_NUM, DENSE_DEN = tl.constexpr(17), tl.constexpr(20)
"""Above a density of 17/20 = 0.85 the kernels walk all tiles. Density here: visited tiles of all tiles, per plane."""


@dataclass(frozen=True)
class Classes:
    """What `classify` finds of a mask of P planes, nq x nk tiles each."""

    tiles: torch.Tensor  # uint8 [P, nq, nk]: EMPTY, PARTIAL or FULL
    counts: torch.Tensor  # int64 [P, 2]: tiles that are not empty, pairs that attend
    words: torch.Tensor  # int32 [P, nq, nk, 2, TILE]: the tile's keys 0 to 31, then 32 to 63, as bits, for each query


@dataclass(frozen=True)
class Lists:
    """For each row (or column) of tiles those to visit."""

    num: torch.Tensor  # int32 [P, n, 2]: how many full ones lead the list, how many there are in all
    index: torch.Tensor  # int32 [P, n, tiles across]; entries from num on mean nothing


@triton.jit
def to_visit(COUNTS, NUM, plane, n, i, across):
    """Of list i of n in this plane, over tiles: whether it counts, its full tiles, its tiles in all.

    Above the density it does not count: all `across` tiles are visited, with the mask applied to each. The choice is
    made here, on the device. It is one loop with another bound and no loop of its own, because ptxas takes turns with
    wgmma instructions (`serialized`) where a branch joins accumulators.
    """
    visited = tl.load(COUNTS + plane * 2)
    listed = visited * DENSE_DEN <= n.to(tl.int64) * across * DENSE_NUM
    line = plane * n + i
    full = tl.load(NUM + line * 2, mask=listed, other=0)
    both = tl.load(NUM + line * 2 + 1, mask=listed, other=0)
    return listed, full, tl.where(listed, both, across)


@triton.jit
def entry(LIST, t, listed):
    """The tile to visit t-th."""
    return tl.where(listed, tl.load(LIST + t, mask=listed, other=0), t)


@triton.jit
def pairs(WORDS, tile, T: tl.constexpr, BY_KEY: tl.constexpr):
    """bool [T, T], queries by keys or, BY_KEY, keys by queries: which attend in tile number `tile` of WORDS."""
    at = tl.arange(0, T)
    WORDS += tile.to(tl.int64) * 2 * T
    low = tl.load(WORDS + at)
    high = tl.load(WORDS + T + at)
    if BY_KEY:
        bits = tl.where(at[:, None] < 32, low[None, :], high[None, :]) >> (at % 32)[:, None]
    else:
        bits = tl.where(at[None, :] < 32, low[:, None], high[:, None]) >> (at % 32)[None, :]
    return bits & 1 != 0


@triton.jit(do_not_specialize=["Sq", "nq", "nk"])
def dmask_classify(MASK, TILES, COUNTS, WORDS, Sq, Sk, nq, nk, TILE: tl.constexpr, ACROSS: tl.constexpr):
    """Grid (cdiv(nk, ACROSS) * nq * P,). MASK uint8 [P, Sq, Sk]; the others as in `Classes`, COUNTS zeroed,
    WORDS as int16."""
    chunks = tl.cdiv(nk, ACROSS)
    chunk = tl.program_id(0) % chunks
    line = tl.program_id(0) // chunks  # plane and row of tiles
    plane = line // nq
    rows = line % nq * TILE + tl.arange(0, TILE)
    keys = chunk * (ACROSS * TILE) + tl.arange(0, ACROSS * TILE)
    at = (plane.to(tl.int64) * Sq + rows)[:, None] * Sk + keys[None, :]
    # True may be any byte but 0: `view` makes such masks.
    seen = (tl.load(MASK + at, mask=(rows < Sq)[:, None] & (keys < Sk)[None, :], other=0) != 0).to(tl.int32)
    kept = tl.sum(tl.reshape(tl.sum(seen, 0), [ACROSS, TILE]), 1)
    tiles = chunk * ACROSS + tl.arange(0, ACROSS)
    found = tl.where(kept == 0, 0, tl.where(kept == TILE * TILE, 2, 1))
    tl.store(TILES + line.to(tl.int64) * nk + tiles, found.to(tl.uint8), mask=tiles < nk)
    # 16 keys at a time, as one thread loads them: little-endian halves of the words.
    part = chunk * (4 * ACROSS) + tl.arange(0, 4 * ACROSS)
    bits = tl.sum(tl.reshape(seen, [TILE, 4 * ACROSS, 16]) << tl.arange(0, 16)[None, None, :], 2)
    word = (line.to(tl.int64) * nk * 2 + part // 2)[None, :] * TILE + tl.arange(0, TILE)[:, None]
    tl.store(WORDS + word * 2 + (part % 2)[None, :], bits.to(tl.int16), mask=(part < 4 * nk)[None, :])
    tl.atomic_add(COUNTS + plane * 2, tl.sum((kept > 0).to(tl.int64)), sem="relaxed")
    tl.atomic_add(COUNTS + plane * 2 + 1, tl.sum(kept.to(tl.int64)), sem="relaxed")


@triton.jit(do_not_specialize=["n", "length", "to_list", "to_next"])
def dmask_lists(TILES, NUM, INDEX, n, length, to_list, to_next, CHUNK: tl.constexpr):
    """Grid (n * P,): list i of a plane is made of the classes at i * to_list + t * to_next, t < length."""
    line = tl.program_id(0).to(tl.int64)
    TILES += line // n * n * length + line % n * to_list
    t = tl.arange(0, CHUNK)
    full = 0
    both = 0
    for first in range(0, length, CHUNK):
        found = tl.load(TILES + (first + t).to(tl.int64) * to_next, mask=first + t < length, other=0)
        full += tl.sum((found == 2).to(tl.int32))
        both += tl.sum((found > 0).to(tl.int32))
    tl.store(NUM + line * 2, full)
    tl.store(NUM + line * 2 + 1, both)
    INDEX += line * length
    whole = 0
    part = full
    for first in range(0, length, CHUNK):
        found = tl.load(TILES + (first + t).to(tl.int64) * to_next, mask=first + t < length, other=0)
        is_full = (found == 2).to(tl.int32)
        is_part = (found == 1).to(tl.int32)
        tl.store(INDEX + whole + tl.cumsum(is_full) - 1, first + t, mask=is_full > 0)
        tl.store(INDEX + part + tl.cumsum(is_part) - 1, first + t, mask=is_part > 0)
        whole += tl.sum(is_full)
        part += tl.sum(is_part)


def classify(mask: torch.Tensor) -> Classes:
    """mask: contiguous bool [.., .., Sq, Sk], the leading two being P planes."""
    planes, (sq, sk) = mask.shape[0] * mask.shape[1], mask.shape[2:]
    tiles = torch.empty(planes, triton.cdiv(sq, TILE), triton.cdiv(sk, TILE), dtype=torch.uint8, device=mask.device)
    words = torch.empty(*tiles.shape, 2, TILE, dtype=torch.int32, device=mask.device)
    classes = Classes(tiles, torch.zeros(planes, 2, dtype=torch.int64, device=mask.device), words)
    classify_launch(mask, classes).run()
    return classes


def classify_launch(mask: torch.Tensor, classes: Classes) -> Launch:
    """Write the classes' tiles and words, and add to their counts."""
    planes, nq, nk = classes.tiles.shape
    args = (
        mask.view(torch.uint8),
        classes.tiles,
        classes.counts,
        classes.words.view(torch.int16),
        *mask.shape[2:],
        nq,
        nk,
    )
    options = {"TILE": TILE, "ACROSS": _ACROSS, "num_warps": 2}
    return Launch(dmask_classify, triton.cdiv(nk, _ACROSS) * nq * planes, args, options)


def row_lists(classes: Classes) -> Lists:
    """Which tiles of keys each tile of queries visits."""
    _, _, nk = classes.tiles.shape
    return _lists(classes, 1, (nk, 1))


def column_lists(classes: Classes) -> Lists:
    """Which tiles of queries visit each tile of keys."""
    _, _, nk = classes.tiles.shape
    return _lists(classes, 2, (1, nk))


def _lists(classes: Classes, dim: int, strides: tuple[int, int]) -> Lists:
    planes, n, length = classes.tiles.shape[0], classes.tiles.shape[dim], classes.tiles.shape[3 - dim]
    num = torch.empty(planes, n, 2, dtype=torch.int32, device=classes.tiles.device)
    lists = Lists(num, torch.empty(planes, n, length, dtype=torch.int32, device=classes.tiles.device))
    lists_launch(classes, lists, strides).run()
    return lists


def lists_launch(classes: Classes, lists: Lists, strides: tuple[int, int]) -> Launch:
    """Write the lists. strides: in `classes.tiles`, from list to list and from entry to entry."""
    planes, n, length = lists.index.shape
    args = (classes.tiles, lists.num, lists.index, n, length, *strides)
    return Launch(dmask_lists, n * planes, args, {"CHUNK": 128, "num_warps": 1})
