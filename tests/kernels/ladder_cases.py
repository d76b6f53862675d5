"""Shapes for the ladder, and how a rung's output is judged."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch

from kernels import ladder
from tests.kernels.ffa_cases import judge, poisoned


@dataclass(frozen=True)
class Case:
    """Shapes of a call of every rung. Lengths that no tile divides, and less than one tile, are among them."""

    length: int
    dim: int
    causal: bool
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.length} {self.dim} {'causal' if self.causal else 'full'} {self.dtype}"


def every_case() -> Iterator[Case]:
    yield Case(128, 128, True, torch.float16)
    yield Case(200, 64, True, torch.float16)
    yield Case(200, 64, False, torch.bfloat16)
    yield Case(257, 128, True, torch.bfloat16)
    yield Case(33, 128, False, torch.bfloat16)
    yield Case(33, 64, True, torch.float16)
    yield Case(1, 64, True, torch.float16)


def naive(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool, dtype: torch.dtype
) -> torch.Tensor:
    """Attention by definition, in `dtype` throughout."""
    q, k, v = (x.to(dtype) for x in (q, k, v))
    score = q @ k.transpose(-1, -2) * scale
    if causal:
        score = score.masked_fill(~torch.ones_like(score, dtype=torch.bool).tril(), -torch.inf)
    return score.softmax(-1) @ v


def wrong(case: Case, rung: str, device: torch.device | str = "cpu", scale: float = 0.11) -> str:
    """Return a rung's error on two heads, the second all NaN, which must not change the first."""
    generator = torch.Generator(device).manual_seed(case.length)
    size = (1, 2, case.length, case.dim)
    q, k, v = (torch.randn(size, generator=generator, device=device).to(case.dtype) for _ in range(3))
    for tensor in (q, k, v):
        tensor[:, 1] = torch.nan
    with poisoned():
        got = ladder.fmha(q, k, v, scale=scale, causal=case.causal, rung=rung)
    if got.dtype != case.dtype:
        return f"{got.dtype}, expected {case.dtype}"
    one = [x[:, :1] for x in (q, k, v)]
    exact, rough = (naive(*one, scale, case.causal, dtype) for dtype in (torch.float64, case.dtype))
    return judge("out", got[:, :1], exact, rough)


CHECKS = {f"{case} {rung}": partial(wrong, case, rung) for case in every_case() for rung in ladder.RUNGS}
