"""Which queries see which keys: the schedules that the API makes and the backends (cpu, cuda) read.

A backend is a module with
    forward(q, k, v, schedule, scale) -> (out, lse)
    backward(dout, q, k, v, out, lse, schedule, scale) -> (dq, dk, dv)
where q, dout, out are [Sq, Hq, D], k and v [Sk, Hk, D], lse float32 [Hq, Sq] (natural logarithm; -inf for a row that
sees nothing), and `schedule` is `Slices` or `Blocks`. Gradients come back in the inputs' dtype and shapes.
What a backend does not implement it raises as `UnsupportedOption`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise
from operator import index
from typing import Any

import torch

from .transpose import transpose_lists

FULL = 0  # every row of the slice sees every key of the slice
CAUSAL = 1  # bottom-right aligned: row i of sq sees key j of sk when j <= i + sk - sq
MASK_NAMES = {FULL: "FULL", CAUSAL: "CAUSAL"}

Range = tuple[int, int]
Ranges = Sequence[Sequence[int]] | torch.Tensor
Triple = tuple[Range, Range, int]


class UnsupportedOption(NotImplementedError):
    """A backend does not implement this dtype, head dimension or option; the message is the reason, one line."""


@dataclass(frozen=True)
class Options:
    """Kernel options of block-sparse attention. They choose how it is computed, never what."""

    ref_block: tuple[int, int] | None = None  # (query rows, keys) of the kernel's compute tile; None: its own choice
    pack_gqa: bool = False  # rows of the query heads that share a key head go into one tile
    swap_ab: bool = False  # compute the transposed score tile
    sparse_load: bool = False  # gather keys by index instead of loading blocks


@dataclass(frozen=True)
class Slices:
    """Rectangles of the attention matrix, merged by `merge_slices`.

    All are non-empty and inside the matrix, sorted by query, no two share a query row, and every row of every slice
    sees at least one key (a causal slice has at least as many keys as rows). Rows outside all slices see nothing.
    Instances are shared between calls with equal ranges, so a backend may keep device tables in `tables`.
    """

    q_ranges: tuple[Range, ...]  # half-open token ranges
    k_ranges: tuple[Range, ...]
    mask_types: tuple[int, ...]  # FULL or CAUSAL
    q_len: int  # Sq
    k_len: int  # Sk
    tables: dict[object, object] = field(default_factory=dict, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.q_ranges)

    @cached_property
    def covers_all(self) -> bool:
        """Whether every query row is in a slice; if not, a backend starts from out = 0, lse = -inf, gradients = 0."""
        return sum(end - begin for begin, end in self.q_ranges) == self.q_len


@dataclass(frozen=True)
class Blocks:
    """Lists of key blocks for each key head and query block. Query heads of one key head share its lists.

    Block b of queries is rows [b * q_block, min((b + 1) * q_block, q_len)), of keys likewise: tails are blocks too.
    """

    kv_num: torch.Tensor  # int32 [Hk, nq]: how many entries of each list count
    kv_indices: torch.Tensor  # int32 [Hk, nq, max]: key blocks, each at most once, in any order
    q_block: int
    k_block: int
    q_len: int  # Sq
    k_len: int  # Sk
    options: Options = Options()

    @cached_property
    def transposed(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(q_num, q_indices), made at first use: for each key head and key block the query blocks that see it."""
        return transpose_lists(self.kv_num, self.kv_indices, -(-self.k_len // self.k_block))

    @property
    def q_num(self) -> torch.Tensor:
        """int32 [Hk, nk]: how many query blocks see this key block."""
        return self.transposed[0]

    @property
    def q_indices(self) -> torch.Tensor:
        """int32 [Hk, nk, nq]: those query blocks, ascending; entries from q_num on mean nothing."""
        return self.transposed[1]


Schedule = Slices | Blocks


def slices_of(q_ranges: Ranges, k_ranges: Ranges, mask_types: Sequence[int] | torch.Tensor, sq: int, sk: int) -> Slices:
    """The merged schedule of these ranges (see `merge_slices`, which says what raises ValueError)."""
    try:
        masks = tuple(map(index, _listed(mask_types)))
    except TypeError:
        raise ValueError("mask_types must be R integers, each FULL (0) or CAUSAL (1)") from None
    return merge_slices(_pairs(q_ranges, "q_ranges"), _pairs(k_ranges, "k_ranges"), masks, sq, sk)


@lru_cache(maxsize=256)
def merge_slices(q: tuple[Range, ...], k: tuple[Range, ...], masks: tuple[int, ...], sq: int, sk: int) -> Slices:
    """Check the ranges, sort them, drop what sees nothing, join neighbours that form one rectangle.

    Raises ValueError, one line, on unequal lengths, a range outside its tensor or backwards, an unknown mask type, and
    on query ranges that overlap (naming both): each row's softmax belongs to one slice.
    """
    if not len(q) == len(k) == len(masks):
        raise ValueError(f"{len(q)} q_ranges, {len(k)} k_ranges and {len(masks)} mask_types: the numbers must be equal")
    for name, ranges, length in (("q_ranges", q, sq), ("k_ranges", k, sk)):
        for i, (begin, end) in enumerate(ranges):
            if not 0 <= begin <= end <= length:
                raise ValueError(f"{name}[{i}] = [{begin}, {end}) is not a range inside [0, {length})")
    for i, mask in enumerate(masks):
        if mask not in MASK_NAMES:
            raise ValueError(f"mask_types[{i}] = {mask} is neither FULL (0) nor CAUSAL (1)")
    _refuse_overlap(q)
    kept = sorted(_trim(*triple) for triple in zip(q, k, masks, strict=True))
    joined = _join([t for t in kept if t[0][0] < t[0][1] and t[1][0] < t[1][1]])
    return Slices(tuple(t[0] for t in joined), tuple(t[1] for t in joined), tuple(t[2] for t in joined), sq, sk)


def _pairs(ranges: Ranges, name: str) -> tuple[Range, ...]:
    try:
        rows = [tuple(map(index, row)) for row in _listed(ranges)]
    except TypeError:
        rows = [()]
    if any(len(row) != 2 for row in rows):
        raise ValueError(f"{name} must be integers [R, 2]: a begin and an end per range")
    return tuple((row[0], row[1]) for row in rows)


def _listed(values: Any) -> Any:
    return values.tolist() if hasattr(values, "tolist") else values  # of torch or NumPy


def _refuse_overlap(q: tuple[Range, ...]) -> None:
    filled = sorted((begin, end, i) for i, (begin, end) in enumerate(q) if begin < end)
    for (b0, e0, i), (b1, e1, j) in pairwise(filled):
        if b1 < e0:
            raise ValueError(f"q_ranges[{i}] = [{b0}, {e0}) and q_ranges[{j}] = [{b1}, {e1}) overlap")


def _trim(q: Range, k: Range, mask: int) -> Triple:
    """Cut off a causal slice's first rows that see no key: what is left is aligned as before."""
    if mask != CAUSAL:
        return q, k, mask
    blind = max(0, (q[1] - q[0]) - (k[1] - k[0]))
    return (q[0] + blind, q[1]), k, mask


def _join(triples: list[Triple]) -> list[Triple]:
    """Join full slices whose query ranges touch and whose key ranges are equal."""
    joined: list[Triple] = []
    for q, k, mask in triples:
        last = joined[-1] if joined else None
        if last is not None and mask == FULL == last[2] and last[1] == k and last[0][1] == q[0]:
            joined[-1] = ((last[0][0], q[1]), k, mask)
        else:
            joined.append((q, k, mask))
    return joined
