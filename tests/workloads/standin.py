"""A kernel package with ffa's functions in plain torch, and ways to be wrong that the checks must find."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

FULL, CAUSAL = 0, 1


class UnsupportedOption(NotImplementedError):
    """As ffa's."""


@dataclass(frozen=True)
class Slips:
    """Return the package's current fault."""

    scale: float = 1.0  # times the softmax scale
    shift: int = 0  # a causal row sees this many keys too many
    drop_block: tuple[int, int] | None = None  # (key head, query block) that loses its last kept block
    drop_keys: int = 0  # a dense row of the second half does not see these first keys of its document


SLIPS = Slips()


@contextmanager
def slip(**changes: Any) -> Iterator[None]:
    """Make the package wrong for a while."""
    global SLIPS  # noqa: PLW0603 - the package's own state is under test
    before, SLIPS = SLIPS, replace(SLIPS, **changes)
    try:
        yield
    finally:
        SLIPS = before


def ffa_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_ranges: Sequence[tuple[int, int]],
    k_ranges: Sequence[tuple[int, int]],
    mask_types: Sequence[int],
    *,
    scale: float | None = None,
) -> torch.Tensor:
    allowed = torch.zeros(q.shape[0], k.shape[0], dtype=torch.bool)
    for (q0, q1), (k0, k1), kind in zip(q_ranges, k_ranges, mask_types, strict=True):
        block = torch.ones(q1 - q0, k1 - k0, dtype=torch.bool)
        if kind == CAUSAL:
            block = block.tril((k1 - k0) - (q1 - q0) + SLIPS.shift)
        block[(q1 - q0) // 2 :, : SLIPS.drop_keys] = False
        allowed[q0:q1, k0:k1] = block
    return _attend(q, k, v, allowed.expand(k.shape[1], -1, -1), scale)


def ffa_block_sparse(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    kv_num: torch.Tensor,
    kv_indices: torch.Tensor,
    *,
    q_block: int,
    k_block: int,
    scale: float | None = None,
    ref_block: tuple[int, int] | None = None,
    pack_gqa: bool = False,
    swap_ab: bool = False,
    sparse_load: bool = False,
) -> torch.Tensor:
    if swap_ab:
        raise UnsupportedOption("swap_ab is not here")
    allowed = torch.zeros(k.shape[1], q.shape[0], k.shape[0], dtype=torch.bool)
    for head in range(kv_num.shape[0]):
        for row in range(kv_num.shape[1]):
            kept = kv_indices[head, row, : int(kv_num[head, row])].tolist()
            if SLIPS.drop_block == (head, row):
                kept = kept[:-1]
            for column in kept:
                at = slice(column * k_block, (column + 1) * k_block)
                allowed[head, row * q_block : (row + 1) * q_block, at] = True
    return _attend(q, k, v, allowed, scale)


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, allowed: torch.Tensor, scale: float | None
) -> torch.Tensor:
    """`allowed` [key heads, Sq, Sk]; heads are the second dimension of the others."""
    seen = allowed.repeat_interleave(q.shape[1] // k.shape[1], 0)
    heads_first = [x.transpose(0, 1) for x in (q, k, v)]
    return attend(*heads_first, seen, (scale or q.shape[2] ** -0.5) * SLIPS.scale).transpose(0, 1)


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, allowed: torch.Tensor | None = None, scale: float | None = None
) -> torch.Tensor:
    """Of [..., heads, tokens, dim]. Float32 inside, as flash kernels are, with the probabilities in q's dtype; zero in rows
    that see nothing."""
    k, v = (x.float().repeat_interleave(q.shape[-3] // k.shape[-3], -3) for x in (k, v))
    score = q.float() @ k.mT * (scale or q.shape[-1] ** -0.5)
    if allowed is not None:
        score = score.masked_fill(~allowed, -torch.inf)
    return (score.softmax(-1).nan_to_num(0).to(q.dtype).float() @ v).to(q.dtype)
