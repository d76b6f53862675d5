"""Block-sparse attention of MagiAttention's branch profile: each query block keeps some random key blocks.

`full` is that benchmark's matrix: 20 cells at 49152 tokens, 64 heads of 128, bfloat16; `product` takes every pair of
query and key block sizes instead of equal ones: 40 cells. With dense's 8 that makes 28 and 48.
`sparsity_ratio` is the fraction of key blocks that is KEPT, as in the original.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from abprof.kit import Check, Op, Unsupported, Work

from . import _attention, _peers, _reference
from ._attention import PHASES, nvtx

__all__ = ["PHASES", "nvtx"]

API = 1
KERNEL = "ffa"
SUITE = "block_sparse"
SEED_COLUMNS = (
    "seqlen",
    "sparsity_ratio",
    "q_block_size",
    "k_block_size",
    "swap_ab",
    "pack_gqa",
    "sparse_load",
    "kblockm",
    "kblockn",
    "direction",
)
BLOCKS = ("q_block_size", "k_block_size", "kblockm", "kblockn")


def _preset(
    seqlen: int, ratios: list[float], blocks: list[tuple[int, int]], nhq: int, nhk: int, hd: int, dtype: str
) -> dict[str | tuple[str, ...], list[Any]]:
    """`blocks`: (q_block_size, k_block_size) pairs; the kernel's own tile (kblockm, kblockn) is the same pair."""
    return {
        "seqlen": [seqlen],
        "sparsity_ratio": ratios,
        BLOCKS: [(m, n, m, n) for m, n in blocks],
        "direction": ["fwd", "bwd"],
        "nhq": [nhq],
        "nhk": [nhk],
        "hd": [hd],
        "dtype": [dtype],
        "pack_gqa": [False],
        "swap_ab": [False],
        "sparse_load": [False],
    }


def _default(device: str) -> dict[str | tuple[str, ...], list[Any]]:
    if device == "cuda":
        return _preset(16384, [0.1, 0.5], [(64, 64), (128, 128)], 16, 16, 128, "bf16")
    return _preset(4096, [0.1, 0.5], [(64, 64)], 4, 4, 64, "fp32")


def _smoke(device: str) -> dict[str | tuple[str, ...], list[Any]]:
    return _preset(1024, [0.2], [(64, 64)], 4, 2, 64, "bf16" if device == "cuda" else "fp32")


_RATIOS = [0.05, 0.1, 0.2, 0.5, 1.0]
PRESETS = {
    "smoke": _smoke,
    "default": _default,
    "full": _preset(49152, _RATIOS, [(64, 64), (128, 128)], 64, 64, 128, "bf16"),
    "product": _preset(49152, _RATIOS, [(64, 64), (64, 128), (128, 64), (128, 128)], 64, 64, 128, "bf16"),
}


def skip(case: Mapping[str, Any], device: torch.device | str) -> str | None:  # noqa: ARG001 - the contract's argument
    """Why this case cannot be, or None."""
    for axis in ("q_block_size", "k_block_size"):
        if case["seqlen"] % case[axis]:
            return f"seqlen={case['seqlen']} is no multiple of {axis}={case[axis]}"
    if not 0 < case["sparsity_ratio"] <= 1:
        return f"sparsity_ratio={case['sparsity_ratio']} is not in (0, 1]"
    return _attention.unfit(case)


def kept_per_row(case: Mapping[str, Any]) -> int:
    """How many key blocks each query block keeps: the ratio's share rounded down, and at least one."""
    return max(1, int(case["sparsity_ratio"] * (case["seqlen"] // case["k_block_size"])))


def real_density(case: Mapping[str, Any]) -> float:
    """The attended fraction of all pairs, which rounding down makes smaller than `sparsity_ratio`."""
    density: float = kept_per_row(case) * case["k_block_size"] / case["seqlen"]
    return density


def inputs(case: Mapping[str, Any], device: torch.device | str, seed: int) -> dict[str, torch.Tensor]:
    """q, k, v (and dout); kv_num [nhk, nq] and kv_indices [nhk, nq, kept], int32, each row's indices ascending."""
    reason = skip(case, device)
    if reason:
        raise Unsupported(reason)
    generator = torch.Generator(device).manual_seed(seed)
    made = _attention.tensors(case, device, generator)
    indices = kept_blocks(case, device, generator)
    return {**made, "kv_num": torch.full_like(indices[..., 0], indices.shape[2]), "kv_indices": indices}


def kept_blocks(case: Mapping[str, Any], device: str | torch.device, generator: torch.Generator) -> torch.Tensor:
    """[nhk, nq, kept] int32: a uniform random set of key blocks for each key head and query block."""
    rows, columns = case["seqlen"] // case["q_block_size"], case["seqlen"] // case["k_block_size"]
    shape = (rows, columns)
    drawn = []
    for _ in range(case["nhk"]):  # a head at a time: all at once is 64 x 768 x 768 scores and their sort
        scores = torch.rand(shape, generator=generator, device=device)
        drawn.append(scores.topk(kept_per_row(case), dim=1).indices.sort(dim=1).values.int())
    return torch.stack(drawn)


def prepare(kernel: Any, variant: str | None, case: Mapping[str, Any], inputs: dict[str, torch.Tensor]) -> Op:
    """`out` [seqlen, nhq, hd] is what a forward call returns, (dq, dk, dv) a backward one."""
    attention = _attention.entry(kernel, variant, "ffa_block_sparse")
    kv_num, kv_indices = inputs["kv_num"], inputs["kv_indices"]
    options = {
        "q_block": case["q_block_size"],
        "k_block": case["k_block_size"],
        "ref_block": (case["kblockm"], case["kblockn"]),
        "pack_gqa": case["pack_gqa"],
        "swap_ab": case["swap_ab"],
        "sparse_load": case["sparse_load"],
    }
    return _attention.operation(case, inputs, lambda q, k, v: attention(q, k, v, kv_num, kv_indices, **options))


def reference(case: Mapping[str, Any], inputs: dict[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    """See _reference.py for what is sampled and why that is enough."""
    columns = case["seqlen"] // case["k_block_size"]
    indices = inputs["kv_indices"].long()
    kept = torch.zeros(*indices.shape[:2], columns, dtype=torch.bool, device=indices.device).scatter_(2, indices, True)
    mask = _reference.KeptBlocks(kept, case["q_block_size"], case["k_block_size"], case["seqlen"])
    return _reference.reference(case, inputs, mask)


def check(case: Mapping[str, Any], outputs: Any, expected: dict[str, dict[str, torch.Tensor]]) -> Check:
    """See _reference.py for the tolerance."""
    return _reference.check(case, outputs, expected)


def work(case: Mapping[str, Any]) -> Work:
    """Nominal FLOPs, as the original counts them: fwd 4 nhq seqlen^2 hd ratio with the nominal ratio; bwd 2.5 times.

    They overstate the real work by up to 1.04 %; `real_density` is what is attended.
    """
    nominal = case["seqlen"] ** 2 * case["sparsity_ratio"]
    convention = {"fwd": "fwd-block-nominal", "bwd": "bwd-2.5x-block-nominal"}[case["direction"]]
    return Work(_attention.flops(case, nominal), _attention.ideal_bytes(case), convention)


def _flex(name: str, case: Mapping[str, Any], inputs: dict[str, torch.Tensor]) -> Op:
    """Compiled flex_attention under the same lists."""
    lists, group = (inputs["kv_num"], inputs["kv_indices"]), case["nhq"] // case["nhk"]
    blocks, device = (case["q_block_size"], case["k_block_size"]), inputs["q"].device
    _peers.compiled_flex(device, name)  # says at once where there is none: the mask takes time
    if case["direction"] == "bwd" and min(blocks) < 128:
        raise Unsupported(
            "FlashAttention-4's backward takes blocks of 128 on"
            if name == "flex_flash"
            else "flex_attention's backward has no tile for blocks below 128 unless torch tries all, for minutes"
        )
    mask = _peers.block_mask(*lists, *blocks, case["seqlen"], group)
    return _attention.operation(case, inputs, _peers.tokens_first(_peers.flex(mask, device, name)))


PEERS = {name: partial(_flex, name) for name in _peers.FLEX}
DEFAULT_PEERS = ()  # compiling takes many seconds
