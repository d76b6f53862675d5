"""Boolean masks of dynamic_mask.py: patterns, the pairs that each keeps, and what a mask measures.

S tokens, sparsity s = the fraction that is to be MASKED. The first four are those of the original benchmark, whose
formulas miss s by much (`block` hardly depends on it), so reports go by the measured density:
    random      each pair by itself kept with probability 1 - s
    block       strips of w = max(16, int(S s / 4)): rows and columns of every other strip masked, from the first on
    diagonal    |i - j| <= w with w = max(8, int(S (1 - s) / 2))
    structured  the first 4 columns, |i - j| <= int(0.7 S (1 - s)) // 2, and int(0.3 S (1 - s)) random columns
and two of this one:
    tiles       random squares of 128 x 128 kept, a share 1 - s of them: what tile skipping is for
    dense       everything kept; s = 0. What speed-ups are counted from
"""
# ruff: noqa: ARG001 - one signature for all patterns

from __future__ import annotations

from collections.abc import Callable

import torch

PATTERNS = ("random", "block", "diagonal", "structured", "tiles", "dense")
TILE = 64  # of the counts
_SQUARE = 128
_FIRST = 4
_SLAB = 2**27  # random numbers at once


def make(
    pattern: str, sparsity: float, size: int, planes: int, device: torch.device | str, draw: torch.Generator
) -> torch.Tensor:
    """Masks [planes, size, size], True where a pair attends."""
    fill = _FILL[pattern]
    return torch.stack([fill(sparsity, size, device, draw) for _ in range(planes)])


def _random(s: float, size: int, device: torch.device | str, draw: torch.Generator) -> torch.Tensor:
    rows = [
        torch.rand(len(some), size, generator=draw, device=device) > s
        for some in torch.arange(size).split(max(1, _SLAB // size))
    ]
    return torch.cat(rows)


def _block(s: float, size: int, device: torch.device | str, draw: torch.Generator) -> torch.Tensor:
    odd = torch.arange(size, device=device) // _strip(s, size) % 2 == 1
    return odd[:, None] & odd[None, :]


def _diagonal(s: float, size: int, device: torch.device | str, draw: torch.Generator) -> torch.Tensor:
    return _window(_reach(s, size), size, device)


def _structured(s: float, size: int, device: torch.device | str, draw: torch.Generator) -> torch.Tensor:
    reach, columns = _structure(s, size)
    seen = torch.zeros(size, dtype=torch.bool, device=device)
    seen[:_FIRST] = True
    seen[torch.randperm(size - _FIRST, generator=draw, device=device)[:columns] + _FIRST] = True
    return _window(reach, size, device) | seen


def _tiles(s: float, size: int, device: torch.device | str, draw: torch.Generator) -> torch.Tensor:
    across = -(-size // _SQUARE)
    order = torch.randperm(across**2, generator=draw, device=device)
    kept = (order < _squares(s, size)).view(across, across)
    return kept.repeat_interleave(_SQUARE, 0).repeat_interleave(_SQUARE, 1)[:size, :size].contiguous()


def _dense(s: float, size: int, device: torch.device | str, draw: torch.Generator) -> torch.Tensor:
    return torch.ones(size, size, dtype=torch.bool, device=device)


_FILL: dict[str, Callable[[float, int, torch.device | str, torch.Generator], torch.Tensor]] = {
    "random": _random,
    "block": _block,
    "diagonal": _diagonal,
    "structured": _structured,
    "tiles": _tiles,
    "dense": _dense,
}


def _window(reach: int, size: int, device: torch.device | str) -> torch.Tensor:
    at = torch.arange(size, device=device)
    return (at >= at[:, None] - reach) & (at <= at[:, None] + reach)  # bytes, where |i - j| would be integers


def _strip(s: float, size: int) -> int:
    return max(16, int(size * s / 4))


def _reach(s: float, size: int) -> int:
    return max(8, int(size * (1 - s) / 2))


def _structure(s: float, size: int) -> tuple[int, int]:
    """(reach of the window, random columns)."""
    return int(size * (1 - s) * 0.7) // 2, min(int(size * (1 - s) * 0.3), size - _FIRST)


def _squares(s: float, size: int) -> int:
    """Kept squares of a plane."""
    return max(1, round((1 - s) * (-(-size // _SQUARE)) ** 2))


def expected_pairs(pattern: str, sparsity: float, size: int) -> float:
    """Kept pairs of one plane: exact for block, diagonal and dense (and tiles, where squares fit), else the mean."""
    if pattern == "random":
        return (1 - sparsity) * size**2
    if pattern == "block":
        strip = _strip(sparsity, size)
        odd = sum(min(strip, size - begin) for begin in range(strip, size, 2 * strip))
        return float(odd**2)
    if pattern == "tiles":
        return float(min(_squares(sparsity, size) / (-(-size // _SQUARE)) ** 2, 1.0) * size**2)
    if pattern == "diagonal":
        return float(sum(_heights(_reach(sparsity, size), size)))
    if pattern == "structured":
        reach, columns = _structure(sparsity, size)
        share = columns / (size - _FIRST)
        rest = _heights(reach, size)[_FIRST:]
        return _FIRST * size + sum(height + (size - height) * share for height in rest)
    return float(size**2)


def _heights(reach: int, size: int) -> list[int]:
    """How many rows of each column lie in the window."""
    return [min(size, at + reach + 1) - max(0, at - reach) for at in range(size)]


def measured(mask: torch.Tensor) -> dict[str, int | float]:
    """Of a mask [planes, Sq, Sk]: its density, its 64 x 64 tiles by kind, its rows that see nothing."""
    pairs = masked = full = blind = 0
    for plane in mask:  # one by one: the sums are of 64-bit integers
        kept = _tile_sums(plane)
        pairs += int(kept.sum())
        masked += int((kept == 0).sum())
        full += int((kept == TILE * TILE).sum())
        blind += int((~plane.any(1)).sum())
    return {
        "density": pairs / mask.numel(),
        "tiles": mask.shape[0] * kept.numel(),
        "masked_tiles": masked,
        "full_tiles": full,
        "masked_rows": blind,
    }


def _tile_sums(plane: torch.Tensor) -> torch.Tensor:
    """Kept pairs of each tile; one that reaches over the edge counts what is inside."""
    rows, keys = (-(-n // TILE) * TILE for n in plane.shape)
    whole = torch.nn.functional.pad(plane, (0, keys - plane.shape[1], 0, rows - plane.shape[0]))
    return whole.view(rows // TILE, TILE, keys // TILE, TILE).sum((1, 3))
