"""Which blocks of keys each block of queries sees."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

BLOCK = 64  # queries and keys of a block


@dataclass(frozen=True)
class BlockLists:
    """Compressed rows, the same for every batch entry and head. All int32 on one device.

    Their values are the caller's to keep right: looking at them would make the host wait for the device.
    """

    begin: torch.Tensor  # [n + 1]: row i's entries are begin[i] to begin[i + 1]
    rows: torch.Tensor  # [entries]: the row that each entry belongs to
    columns: torch.Tensor  # [entries]: the block of keys that it names

    @property
    def entries(self) -> int:
        return self.columns.numel()


@lru_cache(maxsize=32)
def every_block(n: int, device: torch.device) -> BlockLists:
    """All n x n blocks."""
    blocks = torch.arange(n, dtype=torch.int32, device=device)
    begin = torch.arange(n + 1, dtype=torch.int32, device=device) * n
    return BlockLists(begin, blocks.repeat_interleave(n), blocks.repeat(n))
