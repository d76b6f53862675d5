"""The ladder without a GPU: arguments, and every rung in Triton's interpreter."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kernels import ladder
from tests.kernels import ladder_cases

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")


def test_every_rung_in_the_interpreter(interpreted: Callable[..., None]) -> None:
    interpreted("ladder_cases", *(name for name in ladder_cases.CHECKS if name.startswith("33 ")))


def test_without_cutile_its_rungs_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels.ladder import api

    class OnGpu:
        is_cuda = True

    q: Any = OnGpu()
    monkeypatch.delitem(sys.modules, "kernels.ladder.cutile", raising=False)
    monkeypatch.setitem(sys.modules, "cuda.tile", None)
    with pytest.raises(ladder.UnsupportedOption, match=r"cuTile \(package cuda-tile\) is not installed"):
        api._run_cutile(q, q, q, q, rung="cutile_full")


def tensors(dtype: torch.dtype = torch.float16, dim: int = 64) -> list[torch.Tensor]:
    return [torch.zeros(1, 1, 16, dim, dtype=dtype) for _ in range(3)]


def test_on_a_cpu_it_says_what_it_needs() -> None:
    with pytest.raises(ladder.UnsupportedOption, match=r"needs an NVIDIA GPU, and this is cpu"):
        ladder.fmha(*tensors())
    with pytest.raises(ladder.UnsupportedOption, match="NVIDIA GPU"):
        ladder.configuration("full", "cpu")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"rung": "top"}, ValueError, "basic, exp2, memory, full, cutile_basic, .*, not 'top'"),
        ({"scale": 0.0}, ValueError, "positive"),
        ({"scale": float("nan")}, ValueError, "finite"),
    ],
)
def test_bad_options(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ladder.fmha(*tensors(), **changes)
