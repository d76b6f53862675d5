"""Attention under the four dense masks of MagiAttention's branch profile: full, causal, varlen_full, varlen_causal.

`full` is that benchmark's matrix: 8 cells, forward and backward at 8192 tokens, 64 heads of 128, bfloat16.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import torch

from abprof.kit import Check, Op, Unsupported, Work

from . import _attention, _peers, _reference
from ._attention import PHASES, nvtx

__all__ = ["PHASES", "nvtx"]

API = 1
KERNEL = "ffa"
SUITE = "dense"
SEED_COLUMNS = ("seqlen", "mask_type", "direction")
MASKS = ("full", "causal", "varlen_full", "varlen_causal")
FULL, CAUSAL = 0, 1  # mask types of ffa_attention; CAUSAL is aligned at the bottom right of its slice

# Document lengths at 8192 tokens; `lengths` scales them to others. The two masks are different sets of documents.
VARLEN = {
    "varlen_full": (2150, 3051, 419, 356, 130, 895, 54, 1116, 14, 2, 2, 1, 1, 1),
    "varlen_causal": (1408, 177, 2559, 2823, 600, 370, 35, 58, 20, 25, 58, 23, 22, 4, 10),
}


def _preset(seqlen: int, masks: tuple[str, ...], nhq: int, nhk: int, hd: int, dtype: str) -> dict[str, list[Any]]:
    return {
        "seqlen": [seqlen],
        "mask_type": list(masks),
        "direction": ["fwd", "bwd"],
        "nhq": [nhq],
        "nhk": [nhk],
        "hd": [hd],
        "dtype": [dtype],
    }


def _default(device: str) -> dict[str, list[Any]]:
    if device == "cuda":
        return _preset(4096, MASKS, 32, 8, 128, "bf16")
    return _preset(2048, MASKS, 4, 4, 64, "fp32")


def _smoke(device: str) -> dict[str, list[Any]]:
    return _preset(512, ("full", "causal", "varlen_causal"), 4, 4, 64, "bf16" if device == "cuda" else "fp32")


PRESETS = {
    "smoke": _smoke,
    "default": _default,
    "full": _preset(8192, MASKS, 64, 64, 128, "bf16"),
    "product": _preset(8192, MASKS, 64, 64, 128, "bf16"),
}


def lengths(mask_type: str, seqlen: int) -> list[int]:
    """Document lengths, their sum being seqlen; one document for full and causal.

    From the lengths at 8192 tokens, each times seqlen / 8192 and rounded half up; the first takes what is missing or
    too much (taken from the next ones when it has not enough), and empty documents are dropped.
    """
    if mask_type not in VARLEN:
        return [seqlen]
    whole = VARLEN[mask_type]
    scaled = [(2 * n * seqlen + sum(whole)) // (2 * sum(whole)) for n in whole]
    rest = seqlen - sum(scaled)
    for i, length in enumerate(scaled):
        scaled[i] = max(0, length + rest)
        rest -= scaled[i] - length
    return [n for n in scaled if n]


def slices(case: Mapping[str, Any]) -> list[tuple[int, int, int]]:
    """(begin, end, mask type) of each document; queries and keys have the same range."""
    kind = CAUSAL if case["mask_type"].endswith("causal") else FULL
    ends = [0, *accumulate(lengths(case["mask_type"], case["seqlen"]))]
    return [(begin, end, kind) for begin, end in pairwise(ends)]


def area(queries: int, keys: int, mask: int) -> int:
    """Attended pairs of one slice, exact; causal is aligned at the bottom right."""
    if mask == FULL:
        return queries * keys
    return (2 * keys - queries + 1) * queries // 2 if keys > queries else (1 + keys) * keys // 2


def total_area(case: Mapping[str, Any]) -> int:
    """Attended pairs of one head, summed over the documents."""
    return sum(area(end - begin, end - begin, mask) for begin, end, mask in slices(case))


def skip(case: Mapping[str, Any], device: torch.device | str) -> str | None:  # noqa: ARG001 - the contract's argument
    """Why this case cannot be, or None."""
    if case["mask_type"] not in MASKS:
        return f"mask_type={case['mask_type']} is none of {', '.join(MASKS)}"
    return _attention.unfit(case)


def inputs(case: Mapping[str, Any], device: torch.device | str, seed: int) -> dict[str, torch.Tensor]:
    """q, k, v and, for a backward case, dout."""
    reason = skip(case, device)
    if reason:
        raise Unsupported(reason)
    return _attention.tensors(case, device, torch.Generator(device).manual_seed(seed))


def prepare(kernel: Any, variant: str | None, case: Mapping[str, Any], inputs: dict[str, torch.Tensor]) -> Op:
    """`out` [seqlen, nhq, hd] is what a forward call returns, (dq, dk, dv) a backward one.

    The ranges are given as host integers: from a device tensor every call would have to wait for the device.
    """
    attention = _attention.entry(kernel, variant, "ffa_attention")
    ranges = tuple((begin, end) for begin, end, _ in slices(case))
    mask_types = tuple(kind for _, _, kind in slices(case))
    return _attention.operation(case, inputs, lambda q, k, v: attention(q, k, v, ranges, ranges, mask_types))


def reference(case: Mapping[str, Any], inputs: dict[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    """See _reference.py for what is sampled and why that is enough."""
    return _reference.reference(case, inputs, row_intervals(case, inputs["q"].device))


def row_intervals(case: Mapping[str, Any], device: torch.device) -> _reference.RowIntervals:
    """The keys of each query row: its document, up to itself when causal."""
    lo, hi = torch.empty(2, case["seqlen"], dtype=torch.long, device=device)
    for begin, end, mask in slices(case):
        lo[begin:end] = begin
        hi[begin:end] = torch.arange(begin + 1, end + 1, device=device) if mask == CAUSAL else end
    return _reference.RowIntervals(lo, hi, case["seqlen"])


def check(case: Mapping[str, Any], outputs: Any, expected: dict[str, dict[str, torch.Tensor]]) -> Check:
    """See _reference.py for the tolerance."""
    return _reference.check(case, outputs, expected)


def work(case: Mapping[str, Any]) -> Work:
    """FLOPs of the exact attended area: fwd 4 area nhq hd, bwd 2.5 times that (2 for the gradients, 0.5 recomputed)."""
    convention = {"fwd": "fwd-area-exact", "bwd": "bwd-2.5x-area-exact"}[case["direction"]]
    return Work(_attention.flops(case, total_area(case)), _attention.ideal_bytes(case), convention)


def _peer(name: str, case: Mapping[str, Any], inputs: dict[str, torch.Tensor]) -> Op:
    documents = tuple(lengths(case["mask_type"], case["seqlen"]))
    problem = _peers.Problem(documents, case["mask_type"].endswith("causal"), inputs["q"].device)
    return _attention.operation(case, inputs, _peers.tokens_first(_peers.attend(name, problem)))


PEERS = {name: partial(_peer, name) for name in _peers.NAMES}
DEFAULT_PEERS = ("sdpa",)
