"""kernels/memtraffic without a GPU: Triton's interpreter against float64, bytes asked for, machine code, arguments."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels import memtraffic
from kernels.memtraffic import BlockLists

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
ROOT = Path(__file__).resolve().parents[2]
QUICK = (
    "fused-full-150-64-float16",
    "fused-blocks0.5-300-64-float16",
    "unfused-full-1-64-float32",
    "unfused-blocks0.5-300-64-float16",
)


def run(module: str, *args: str, **env: str) -> list[str]:
    """The lines that `python -m module` prints; it must exit with 0."""
    command = [sys.executable, "-m", f"tests.kernels.{module}", *args]
    variables = os.environ | {"OMP_NUM_THREADS": "1"} | env
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@needs_triton
def test_quick_cases_in_the_interpreter() -> None:
    assert run("memtraffic_interpret", *QUICK, TRITON_INTERPRET="1") == [f"{name}: right" for name in QUICK]


# ---------------------------------------------------------------- arguments


def lists(*sizes: int, dtype: torch.dtype = torch.int32) -> BlockLists:
    return BlockLists(*(torch.zeros(n, dtype=dtype) for n in sizes))


ONE = torch.zeros(1, 2, 100, 64)


@pytest.mark.parametrize("variant", memtraffic.VARIANTS)
@pytest.mark.parametrize(
    ("arguments", "error", "said"),
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
def test_bad_arguments_are_told_in_one_line(
    variant: str, arguments: tuple[Any, ...], error: type[Exception], said: str
) -> None:
    functions = getattr(memtraffic, variant)
    with pytest.raises(error, match=said) as told:
        (functions.block_attention if len(arguments) > 3 else functions.full_attention)(*arguments)
    assert "\n" not in str(told.value)


def test_an_infinite_scale_is_refused() -> None:
    with pytest.raises(ValueError, match="scale = inf is not finite"):
        memtraffic.fused.full_attention(ONE, ONE, ONE, scale=float("inf"))


def test_gradients_are_torchs() -> None:
    """Of a stand-in for the kernel that computes nothing: the backward does not depend on it."""
    from kernels.memtraffic.checks import Attention
    from kernels.memtraffic.lists import every_block

    leaves = [torch.randn(1, 2, 128, 8, dtype=torch.float64, requires_grad=True) for _ in "qkv"]
    everything = every_block(2, torch.device("cpu"))
    for visited, mask in ((None, None), (everything, None), (BlockLists(*_diagonal()), _two_blocks())):
        out = Attention.apply(*leaves, lambda q, k, v, scale: q.clone(), visited, 0.3)
        dout = torch.randn_like(out)
        expected = torch.nn.functional.scaled_dot_product_attention(*leaves, attn_mask=mask, scale=0.3)
        for mine, exact in zip(
            torch.autograd.grad(out, leaves, dout), torch.autograd.grad(expected, leaves, dout), strict=True
        ):
            torch.testing.assert_close(mine, exact)


def _diagonal() -> list[torch.Tensor]:
    return [torch.tensor(t, dtype=torch.int32) for t in ([0, 1, 2], [0, 1], [0, 1])]


def _two_blocks() -> torch.Tensor:
    at = torch.arange(128) // 64
    return at[:, None] == at[None, :]


def test_no_range_is_named_as_a_kernel() -> None:
    """The phases' pass tells ranges from kernels by name."""
    for package in ("memtraffic", "dmask"):
        text = "".join(path.read_text() for path in (ROOT / "kernels" / package).glob("*.py"))
        ranges = set(re.findall(r'record_function\("(\w+)"\)', text))
        assert len(ranges) >= 5
        assert ranges.isdisjoint(re.findall(r"^def (\w+)\(", text, re.M))
