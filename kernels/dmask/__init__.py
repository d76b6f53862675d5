"""Attention under any boolean mask, forward and backward, in Triton: tiles that are masked whole are never loaded.

`masked_attention(q, k, v, mask)` is a plain PyTorch function with gradients; docs/KERNELS.md says how it works.
"""

from .api import masked_attention

__all__ = ["masked_attention"]
