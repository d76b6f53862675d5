"""kernels/dmask without a GPU: Triton's interpreter against float64, the pre-pass, arguments."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.dmask import masked_attention

QUICK = ("classes", "lists", "choice", "random_sparse", "one_query")


def test_lists_choice_and_gradients_in_the_interpreter(interpreted: Callable[..., None]) -> None:
    interpreted("dmask_prepass", *QUICK)


def tensors(**changes: Any) -> dict[str, torch.Tensor]:
    made = {
        "q": torch.zeros(2, 10, 4, 64, dtype=torch.bfloat16),
        "k": torch.zeros(2, 12, 2, 64, dtype=torch.bfloat16),
        "v": torch.zeros(2, 12, 2, 64, dtype=torch.bfloat16),
        "mask": torch.ones(2, 4, 10, 12, dtype=torch.bool),
    }
    return made | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": torch.zeros(10, 4, 64, dtype=torch.bfloat16)}, r"q must be \[batch, tokens, heads, head dim\]"),
        ({"k": torch.zeros(2, 12, 2, 64)}, "share dtype and device: k is float32 on cpu, q bfloat16"),
        ({"v": torch.zeros(2, 11, 2, 64, dtype=torch.bfloat16)}, "k and v must have equal shapes"),
        ({"q": torch.zeros(1, 10, 4, 64, dtype=torch.bfloat16)}, "equal batch and head dimension"),
        ({"q": torch.zeros(2, 10, 3, 64, dtype=torch.bfloat16)}, "multiple of key heads, not 3 and 2"),
        ({"mask": torch.ones(2, 4, 10, 12)}, "mask must be bool on cpu, not float32"),
        ({"mask": torch.ones(2, 2, 10, 12, dtype=torch.bool)}, r"\[2 or 1, 4 or 1, 10, 12\], not \[2, 2, 10, 12\]"),
        ({"mask": torch.ones(10, 12, dtype=torch.bool)}, r"not \[10, 12\]"),
    ],
)
def test_bad_arguments_give_one_line(changes: dict[str, torch.Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message) as reported:
        masked_attention(**tensors(**changes))
    assert "\n" not in str(reported.value)


def test_the_packages_import_without_abprof_and_triton() -> None:
    code = (
        "import sys, kernels.dmask, kernels.ladder, kernels.memtraffic\n"
        "assert not {name.split('.')[0] for name in sys.modules} & {'abprof', 'triton'}"
    )
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=True)
