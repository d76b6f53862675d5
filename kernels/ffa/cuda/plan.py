"""Work lists: which tile each CTA takes, made on the host once per schedule and kept with it on the device.

A kernel's program reads one row of a table. Rows are sorted longest first, so that the short ones fill the end of the
launch (causal and variable-length schedules); tables of equal rows keep their order.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import heapreplace
from itertools import accumulate, chain, pairwise
from typing import TypeVar

import torch

from ..schedule import CAUSAL, Range, Slices

# The diagonal of a full slice: row i sees keys up to i + OPEN, that is all. Row + OPEN stays below 2**31.
OPEN = 2**29
MOST_PIECES = 8  # of an item, where all pieces are more than one wave; with more they share too little of the L2 cache
L2_BYTES = 32 * 2**20  # what a group of heads may occupy of the L2 cache (H200: 60 MB, in two halves)
ITEM_KEYS = 192  # keys in whose time a forward program begins and ends an item
PIECE_TILES = 8  # in whose time a piece of an item loads its keys, writes two float32 tiles, and these are added up
LONG_ROWS, LONG_KEYS = 64, 128  # what the Gluon kernels need of a slice (rows in the backward only)

T = TypeVar("T")


@dataclass(frozen=True)
class Part:
    """Which slices a launch takes: those long enough for the Gluon kernels of a direction, the rest, or all.

    What no slice covers (rows and keys that get zeros) goes with the rest.
    """

    direction: str  # "fwd" or "bwd"
    which: str = "all"  # "all", "long", "rest"


@dataclass(frozen=True)
class Items:
    """Rows of work on the device. `entries` is the second table where there is one, otherwise the first again."""

    table: torch.Tensor
    entries: torch.Tensor
    count: int
    masked: bool  # some tile needs a mask
    even: bool  # all rows are equally long
    tiles: int = 0  # of each row, where every row is one slice's, equally long, and none is masked (key_items)
    lengths: tuple[int, ...] = ()  # of each row, falling: tiles (key_items) or keys (query_items); not known for blocks


@dataclass(frozen=True)
class Order:
    """The order of a launch of items x heads programs: `grouped` items by groups of heads, then the others of all."""

    heads_per_group: int
    grouped: int


@dataclass(frozen=True)
class Split:
    """A launch whose last items are cut up: `whole` programs take an item each, then `pieces` each of `tail` items."""

    whole: int
    tail: int
    pieces: int


def long_slices(slices: Slices, direction: str) -> tuple[bool, ...]:
    """Which slices the Gluon kernels can take: enough keys (fwd); enough rows, and every piece of the key axis between
    two slices' borders long enough and shared with such slices alone (bwd: a key's gradient has one writer)."""

    def make() -> tuple[bool, ...]:
        if direction == "fwd":
            return tuple(k1 - k0 >= LONG_KEYS for k0, k1 in slices.k_ranges)
        enough = [q1 - q0 >= LONG_ROWS for q0, q1 in slices.q_ranges]
        pieces = _pieces(slices)
        changed = True
        while changed:
            changed = False
            for (k0, k1), holders in pieces:
                if k1 - k0 < LONG_KEYS or not all(enough[i] for i in holders):
                    changed |= any(enough[i] for i in holders)
                    for i in holders:
                        enough[i] = False
        return tuple(enough)

    return _kept(slices, ("long", direction), make)


def query_items(slices: Slices, rows: int, keys: int, device: torch.device, part: Part) -> Items | None:
    """Tiles of `rows` queries for tiles of `keys` keys: int32 [n, 5] (q0, q1, k0, k1, off), q1 being the slice's end.

    Row i of the tile sees keys k0..min(k1, i + off + 1). Queries outside all slices come with k0 = k1 = 0. None when
    the part is empty.
    """

    def make() -> Items | None:
        table: list[tuple[int, ...]] = []
        lengths: list[int] = []
        masked = False
        for (q0, q1), (k0, k1), off in _query_ranges(slices, part):
            masked |= off != OPEN or (k1 - k0) % keys != 0 or k0 == k1
            for start in range(q0, q1, rows):
                table.append((start, q1, k0, k1, off))
                lengths.append(max(min(k1, min(start + rows, q1) + off) - k0, 0))
        return _items(table, lengths, table, masked, device)

    return _kept(slices, ("query", rows, keys, str(device), part), make)


def key_items(slices: Slices, keys: int, rows: int, device: torch.device, part: Part) -> Items | None:
    """Tiles of `keys` keys for tiles of `rows` queries: int32 [n, 5] (k0, k1, lo, hi, n) and the entries
    lo..hi, int32 [e, 6] (q0, q1, off, first, whole, end): see gluon_bwd.py. None when the part is empty.

    The key axis is cut at every slice's borders, so a tile lies inside a slice's keys or outside them. A tile that is
    not whole is masked throughout, because the Gluon kernel fills it up with keys of the tile before.
    """

    def make() -> Items | None:
        table: list[tuple[int, ...]] = []
        entries: list[tuple[int, ...]] = []
        lengths: list[int] = []
        masked = False
        long = long_slices(slices, part.direction)
        for (k_begin, k_end), holders in _pieces(slices):
            if part.which != "all" and any(long[i] for i in holders) != (part.which == "long"):
                continue
            for k0 in range(k_begin, k_end, keys):
                k1 = min(k0 + keys, k_end)
                seen_by = [_entry(slices, i, k0, k1, rows, k1 - k0 == keys) for i in holders]
                mine = [entry for entry in seen_by if entry[3] < entry[5]]
                n = sum(entry[5] - entry[3] for entry in mine)
                masked |= any(entry[4] > entry[3] for entry in mine)
                table.append((k0, k1, len(entries), len(entries) + len(mine), n))
                entries.extend(mine)
                lengths.append(n)
        items = _items(table, lengths, entries or [(0, 0, 0, 0, 0, 0)], masked, device)
        alike = items is not None and items.even and not masked and all(hi - lo == 1 for _, _, lo, hi, *_ in table)
        return replace(items, tiles=lengths[0]) if items is not None and alike else items

    return _kept(slices, ("key", keys, rows, str(device), part), make)


def block_items(num: torch.Tensor, indices: torch.Tensor, length: int, block: int, tile: int) -> Items:
    """Tiles of `tile` rows or keys of every block, with the blocks' lists; `num` counts their entries."""
    per_block = -(-block // tile)
    return Items(num.contiguous(), indices.contiguous(), -(-length // block) * per_block, True, True)


def split(items: Items, heads: int, group: int, processors: int) -> Split | None:
    """How to fill the last wave of a launch of items x heads programs, one a multiprocessor at a time: with the pieces
    that end soonest; None where whole items do, or cannot be cut. `group`: query heads of a head, whose tiles a program
    takes. 1,024 programs on 132 multiprocessors take eight waves; with the last 100 cut into five each, 7.8.
    """
    tail = items.count * heads % processors if items.tiles and processors else 0
    pieces = _soonest(tail, items.tiles, group, processors) if tail else 1
    return Split(items.count * heads - tail, tail, pieces) if pieces > 1 else None


@lru_cache(maxsize=256)
def _soonest(tail: int, tiles: int, group: int, processors: int) -> int:
    def end(pieces: int) -> float:
        return -(-tail * pieces // processors) * (tiles * group / pieces + (PIECE_TILES if pieces > 1 else 0))

    return min(range(1, min(tiles, max(processors // tail, MOST_PIECES)) + 1), key=end)


def processors(device: torch.device) -> int:
    """Multiprocessors of the GPU; 0 for a CPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 0


def heads_per_group(heads: int, items: Items, bytes_per_head: int) -> int:
    """How many heads run side by side: those whose streamed operands fit the L2 cache together; 1 for even work."""
    if items.even:
        return 1
    fitting = max(1, L2_BYTES // max(bytes_per_head, 1))
    return max(n for n in range(1, heads + 1) if heads % n == 0 and n <= fitting)


def heads_in_step(heads: int, items: Items, processors: int) -> int:
    """How many key heads run side by side in the backward: those of which half the items fill all processors, as nearly as
    a divisor of `heads` allows; 1 for even work.

    Then the longer half of a group starts together, and each shorter item follows the longer one that leaves it as much
    time: with the directions of gluon_bwd_load.py all are at the same two rows, and read them out of the L2 cache.
    """
    if items.even or not processors:
        return 1
    return min(
        (n for n in range(1, heads + 1) if heads % n == 0),
        key=lambda n: abs(math.log(n * items.count / (2 * processors))),
    )


def order(items: Items, heads: int, group: int, processors: int) -> Order:
    """Heads go in groups of `group`, and the long items of a group first. Where a group is little work for all processors,
    the last group's long items would be left to a few of them: then the shortest items of all heads are kept for the
    end, as much of them as the longest item may leave uneven.
    """
    longest, work = items.lengths[:1], sum(items.lengths)
    if items.even or not longest or longest[0] * processors <= 2 * group * work:
        return Order(group, items.count)
    back, grouped = 0, items.count  # what is kept back for the end, of each head
    while grouped > 1 and 2 * back * heads < processors * longest[0]:
        grouped -= 1
        back += items.lengths[grouped]
    return Order(group, grouped)


@lru_cache(maxsize=64)
def shares(
    lengths: tuple[int, ...], count: int, heads: int, places: Order, programs: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Which of count * heads pieces of work (item * heads + head) each program of a launch takes, one after the other:
    int32 [count * heads], and int32 [programs + 1], where each program's begin. In the order of a launch each goes to
    the program that would be free first. Without `lengths` all take equally long."""
    if not lengths and programs == count * heads:  # one each, head after head
        # Made on the host: a copy waits for its end, so that calls on other streams read what is there.
        numbers = torch.arange(programs + 1, dtype=torch.int32, device="cpu")
        return numbers[:-1].view(count, heads).T.reshape(-1).to(device), numbers.to(device)
    grouped = places.grouped * heads
    own: list[list[int]] = [[] for _ in range(programs)]
    free = [(0, program) for program in range(programs)]
    for at in range(count * heads):
        if at < grouped:
            group, rest = divmod(at, places.grouped * places.heads_per_group)
            item, head = divmod(rest, places.heads_per_group)
            head += group * places.heads_per_group
        else:
            item, head = divmod(at - grouped, heads)
            item += places.grouped
        done, program = free[0]
        own[program].append(item * heads + head)
        heapreplace(free, (done + (lengths[item] if lengths else 0) + ITEM_KEYS, program))
    begins = [0, *accumulate(map(len, own))]
    return tuple(torch.tensor(x, dtype=torch.int32, device=device) for x in ([*chain.from_iterable(own)], begins))  # type: ignore[return-value]


def _diagonal(slices: Slices, i: int) -> int:
    return slices.k_ranges[i][1] - slices.q_ranges[i][1] if slices.mask_types[i] == CAUSAL else OPEN


def _query_ranges(slices: Slices, part: Part) -> list[tuple[Range, Range, int]]:
    """(q range, k range, diagonal) of the part's slices, and of the queries between all slices where it has them."""
    found: list[tuple[Range, Range, int]] = []
    at = 0
    long = long_slices(slices, part.direction)
    for i, (q, k) in enumerate(zip(slices.q_ranges, slices.k_ranges, strict=True)):
        if q[0] > at and part.which != "long":
            found.append(((at, q[0]), (0, 0), 0))
        if part.which == "all" or long[i] == (part.which == "long"):
            found.append((q, k, _diagonal(slices, i)))
        at = q[1]
    if at < slices.q_len and part.which != "long":
        found.append(((at, slices.q_len), (0, 0), 0))
    return found


def _pieces(slices: Slices) -> list[tuple[Range, list[int]]]:
    """The key axis cut at all borders: each piece with the slices that hold it."""
    begins, ends = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    for i, (k0, k1) in enumerate(slices.k_ranges):
        if k0 < k1:
            begins[k0].append(i)
            ends[k1].append(i)
    held, found = set[int](), []
    for b, e in pairwise(sorted({0, slices.k_len, *begins, *ends})):
        held = held.difference(ends[b]).union(begins[b])
        found.append(((b, e), sorted(held)))
    return found


def _entry(slices: Slices, i: int, k0: int, k1: int, rows: int, whole_keys: bool) -> tuple[int, ...]:
    """Slice i for keys k0..k1: (q0, q1, off, first, whole, end), the last three counting tiles of `rows` from q0."""
    q0, q1 = slices.q_ranges[i]
    off = _diagonal(slices, i)
    end = -(-(q1 - q0) // rows)
    first = min(max(k0 - off - q0, 0) // rows, end)
    whole = max(first, min(-(-max(k1 - 1 - off - q0, 0) // rows), end)) if whole_keys else end
    return q0, q1, off, first, whole, end


def _items(
    table: Sequence[tuple[int, ...]],
    lengths: Sequence[int],
    entries: Sequence[tuple[int, ...]],
    masked: bool,
    device: torch.device,
) -> Items | None:
    if not table:
        return None
    order = sorted(range(len(table)), key=lambda i: -lengths[i])
    rows = torch.tensor([table[i] for i in order], dtype=torch.int32, device=device)
    second = rows if entries is table else torch.tensor(entries, dtype=torch.int32, device=device)
    return Items(rows, second, len(table), masked, len(set(lengths)) <= 1, lengths=tuple(sorted(lengths, reverse=True)))


def _kept(slices: Slices, key: object, make: Callable[[], T]) -> T:
    if key not in slices.tables:
        slices.tables[key] = make()
    return slices.tables[key]  # type: ignore[return-value]
