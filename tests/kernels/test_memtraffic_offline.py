"""kernels/memtraffic without a GPU: Triton's interpreter against float64, arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kernels import memtraffic
from kernels.memtraffic import BlockLists

QUICK = (
    "fused-full-150-64-float16",
    "fused-blocks0.5-300-64-float16",
    "unfused-full-1-64-float32",
    "unfused-blocks0.5-300-64-float16",
)


def test_quick_cases_in_the_interpreter(interpreted: Callable[..., None]) -> None:
    interpreted("memtraffic_cases", *QUICK)


def lists(*sizes: int, dtype: torch.dtype = torch.int32) -> BlockLists:
    return BlockLists(*(torch.zeros(n, dtype=dtype) for n in sizes))


ONE = torch.zeros(1, 2, 100, 64)


@pytest.mark.parametrize("variant", memtraffic.VARIANTS)
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((ONE[0], ONE[0], ONE[0]), ValueError, r"\[batch, heads, tokens, head dim\], not \[2, 100, 64\]"),
        ((ONE, ONE[:, :1], ONE), ValueError, "of one shape"),
        ((ONE, ONE.half(), ONE), ValueError, "share dtype and device"),
        ((ONE, ONE, ONE, lists(2, 4, 4)), ValueError, r"begin \[3\]"),
        ((ONE, ONE, ONE, lists(3, 4, 5)), ValueError, "as many rows as columns"),
        ((ONE, ONE, ONE, lists(3, 4, 4, dtype=torch.int64)), ValueError, "lists.begin must be int32"),
        ((ONE.double(), ONE.double(), ONE.double()), NotImplementedError, "not in torch.float64"),
        ((ONE[..., :32], ONE[..., :32], ONE[..., :32]), NotImplementedError, "head dimension 32"),
        ((ONE, ONE, ONE), NotImplementedError, "NVIDIA GPU: its tensors are on cpu"),
        ((ONE, ONE, ONE, lists(3, 4, 4)), NotImplementedError, "NVIDIA GPU: its tensors are on cpu"),
    ],
)
def test_bad_arguments_give_one_line(
    variant: str, arguments: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    functions = getattr(memtraffic, variant)
    with pytest.raises(error, match=message) as reported:
        (functions.block_attention if len(arguments) > 3 else functions.full_attention)(*arguments)
    assert "\n" not in str(reported.value)
