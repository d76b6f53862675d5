"""Shapes and block lists for kernels/memtraffic, and the tolerances."""

import random
from dataclasses import dataclass
from functools import partial

import torch

from kernels import memtraffic
from kernels.memtraffic import BlockLists
from tests.kernels.ffa_cases import judge, poisoned

BLOCK = 64


@dataclass(frozen=True)
class Case:
    """`density`: None for full attention, else the share of blocks in the lists (the last row of blocks has none)."""

    variant: str
    tokens: int
    dim: int
    dtype: torch.dtype
    density: float | None = None
    batch: int = 2
    heads: int = 1

    def __str__(self) -> str:
        what = "full" if self.density is None else f"blocks{self.density}"
        return f"{self.variant}-{what}-{self.tokens}-{self.dim}-{str(self.dtype).removeprefix('torch.')}"


HALF, BRAIN, SINGLE = torch.float16, torch.bfloat16, torch.float32
CASES = [
    Case("fused", 150, 64, HALF),
    Case("fused", 128, 128, BRAIN, batch=1),
    Case("fused", 70, 256, HALF, batch=1, heads=2),
    Case("fused", 1, 64, SINGLE),
    Case("fused", 300, 64, HALF, 0.5, heads=2),
    Case("fused", 256, 128, BRAIN, 0.4, batch=1),
    Case("fused", 200, 256, HALF, 0.5, batch=1),
    Case("fused", 150, 512, SINGLE, 0.6, batch=1),
    Case("unfused", 150, 64, HALF),
    Case("unfused", 1, 64, SINGLE),
    Case("unfused", 300, 64, HALF, 0.5, heads=2),
    Case("unfused", 256, 128, BRAIN, 0.4, batch=1),
    Case("unfused", 150, 512, SINGLE, 0.6, batch=1),
]


def lists(case: Case, device: torch.device | str) -> BlockLists | None:
    """Random lists, the last row's empty; None for full attention."""
    if case.density is None:
        return None
    n = -(-case.tokens // BLOCK)
    draw = random.Random(case.tokens)
    found = [[j for j in range(n) if draw.random() < case.density] if i < n - 1 else [] for i in range(n)]
    begin = [sum(map(len, found[:i])) for i in range(n + 1)]
    flat = ([i for i, row in enumerate(found) for _ in row], [j for row in found for j in row])
    return BlockLists(*(torch.tensor(t, dtype=torch.int32, device=device) for t in (begin, *flat)))


def draw(case: Case, device: torch.device | str, seed: int) -> list[torch.Tensor]:
    """Fresh q, k, v."""
    generator = torch.Generator(device).manual_seed(seed)
    size = (case.batch, case.heads, case.tokens, case.dim)
    return [torch.randn(size, generator=generator, device=device).to(case.dtype) for _ in "qkv"]


def attend(case: Case, tensors: list[torch.Tensor], visited: BlockLists | None) -> torch.Tensor:
    """The package's output, into memory full of NaN."""
    functions = getattr(memtraffic, case.variant)
    with poisoned():
        return functions.full_attention(*tensors) if visited is None else functions.block_attention(*tensors, visited)


def reference(tensors: list[torch.Tensor], visited: BlockLists | None, dtype: torch.dtype) -> torch.Tensor:
    """By definition, in `dtype` throughout. Rows without a block are zero."""
    q, k, v = (t.to(dtype) for t in tensors)
    n = -(-q.shape[2] // BLOCK)
    seen = torch.ones(n, n, dtype=torch.bool, device=q.device)
    if visited is not None:
        seen = torch.zeros_like(seen)
        seen[visited.rows.long(), visited.columns.long()] = True
    mask = seen.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[: q.shape[2], : q.shape[2]]
    blind = ~mask.any(1, keepdim=True)
    score = (q @ k.transpose(2, 3) * q.shape[3] ** -0.5).masked_fill(~mask, -torch.inf).masked_fill(blind, 0.0)
    return (score.softmax(-1) * ~blind) @ v


def tf32(t: torch.Tensor) -> torch.Tensor:
    """Cut float32 to ten bits of mantissa, as tensor cores do."""
    return (t.contiguous().view(torch.int32) >> 13 << 13).view(torch.float32)


def wrong(case: Case, got: torch.Tensor, tensors: list[torch.Tensor], visited: BlockLists | None) -> str:
    """Return the output's error; "" if it is right."""
    exact = reference(tensors, visited, torch.float64)
    if case.dtype == SINGLE:
        naive = reference([tf32(t) for t in tensors], visited, torch.float64)
    else:
        naive = reference(tensors, visited, case.dtype)
    return judge("out", got, exact, naive)


def interpreted(case: Case) -> str:
    tensors, visited = draw(case, "cpu", seed=3), lists(case, "cpu")
    return wrong(case, attend(case, tensors, visited), tensors, visited)


CHECKS = {str(case): partial(interpreted, case) for case in CASES}
