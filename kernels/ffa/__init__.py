"""Attention over ranges and over lists of blocks, forward and backward, on CPUs and NVIDIA GPUs. See README.md."""

from __future__ import annotations

import importlib
import importlib.util

import torch

from .api import ffa_attention, ffa_block_sparse
from .schedule import CAUSAL, FULL, Blocks, Options, Slices, UnsupportedOption

__all__ = [
    "CAUSAL",
    "FULL",
    "Blocks",
    "Options",
    "Slices",
    "UnsupportedOption",
    "build",
    "ffa_attention",
    "ffa_block_sparse",
]


def build(*, verbose: bool) -> None:
    """Build what this machine needs into $ABPROF_BUILD_DIR (or the user's cache); what it prints is the build log.

    verbose prints more, and changes no flag. Built again with the same content it is a look-up.
    Raises RuntimeError when a compiler is missing or fails, with its first error line.
    """
    importlib.import_module(".cpu", __name__).build(verbose=verbose)
    if torch.cuda.is_available() and importlib.util.find_spec(".cuda", __name__) is not None:
        cuda = importlib.import_module(".cuda", __name__)
        if hasattr(cuda, "build"):
            cuda.build(verbose=verbose)
