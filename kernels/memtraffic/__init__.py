"""Attention forward by pointer loads, as subjects for memory tables: fused (FlashAttention-2) and as three kernels.

Each variant has `full_attention(q, k, v)` and `block_attention(q, k, v, lists)`; docs/KERNELS.md says what they move.
"""

from . import fused, unfused
from .lists import BlockLists

__all__ = ["VARIANTS", "BlockLists", "fused", "unfused"]

VARIANTS = ("fused", "unfused")
