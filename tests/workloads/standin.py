"""A kernel package with ffa's functions in plain torch, and ways to be wrong that the checks must find."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch


@dataclass(frozen=True)
class Slips:
    """What is wrong with the package now."""

    scale: float = 1.0  # times the softmax scale
    shift: int = 0  # a causal row sees this many keys too many
    drop_block: tuple[int, int] | None = None  # (key head, query block) that loses its last kept block
    drop_keys: int = 0  # a dense row of the second half does not see these first keys of its document
    round_to: torch.dtype | None = None  # scores lose precision


SLIPS = Slips()


@contextmanager
def slip(**changes: Any) -> Iterator[None]:
    """Make the package wrong for a while."""
    global SLIPS  # noqa: PLW0603 - a package's own state is what is under test
    before, SLIPS = SLIPS, replace(SLIPS, **changes)
    try:
        yield
    finally:
        SLIPS = before


