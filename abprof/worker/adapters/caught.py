"""What a benchmark hands to its timer, caught on its way there."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import torch

from abprof.worker.api import Op


class Caught(BaseException):
    """Raised in the place of timing; no `except Exception` of a benchmark's stops it. Bears the operation."""

    def __init__(self, op: Op) -> None:
        super().__init__()
        self.op = op


def caught(run: Callable[[], Any], nothing: str) -> Op:
    """The operation that `run` hands to its timer. Raises ValueError with `nothing` when it hands over none."""
    try:
        run()
    except Caught as found:
        return found.op
    raise ValueError(nothing)


def as_now(call: Callable[[], Any]) -> Callable[[], Any]:
    """The call without gradients, where they are switched off now: a benchmark's `with torch.no_grad()` is left before
    its call is timed."""
    if torch.is_grad_enabled():
        return call
    mode = torch.inference_mode if torch.is_inference_mode_enabled() else torch.no_grad

    def without_gradients() -> Any:
        with mode():
            return call()

    return without_gradients


def seed(number: int) -> None:
    """All generators that a benchmark draws its inputs from: the same bytes on every side."""
    torch.manual_seed(number)
    random.seed(number)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(number % 2**32)
