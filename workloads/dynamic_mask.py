"""Attention under boolean masks that are known at run time only: patterns by sparsity, forward and backward.

The matrix of flash-dmattn's bubble-reduction guide: patterns random, block, diagonal, structured (and two more, see
_patterns.py), sparsity 0.1 to 0.9, 512 to 32768 tokens. `sparsity` is the fraction that is to be MASKED; `density` in
the reports is the fraction of pairs that is kept, measured, as is the count of 64 x 64 tiles that are masked whole:
only those can be skipped. A random mask has none, so skipping cannot speed it up.

A forward call includes the pre-pass over the mask. A backward call includes making the columns' lists of what the
forward's pre-pass found; it reads the mask itself in tiles that are kept in part.

`original` is the guide's matrix (B2 H8 S512 D64, float16, a mask for each head); `full` goes on to 32768 tokens, from
16384 on with one mask for all heads, which at 32768 takes 1 GiB.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from abprof.kit import Band, Check, Op, Sweep, Unsupported, Work

from . import _attention, _patterns, _peers, _reference
from ._attention import nvtx

__all__ = ["nvtx"]

API = 1
KERNEL = "dmask"
SUITE = "dynamic_mask"
SEED_COLUMNS = ("seqlen", "pattern", "sparsity", "direction")
SCALED = "seqlen"
PHASES = {
    "fwd_prepare": ("dmask_fwd_prepare", "forward: buffers"),
    "fwd_prepass": ("dmask_fwd_prepass", "forward: the mask is read, its tiles classed and listed by row"),
    "fwd_run": ("dmask_fwd_run", "forward: the attention kernel itself"),
    "bwd_prepare": ("dmask_bwd_prepare", "backward: buffers"),
    "bwd_prepass": ("dmask_bwd_prepass", "backward: tiles are listed by column"),
    "bwd_preprocess": ("dmask_bwd_preprocess", "backward: row sums of dout * out"),
    "bwd_run": ("dmask_bwd_run", "backward: the gradient kernels themselves"),
}

# What the guide expects (it never measured it), by nominal sparsity: 90 % 2 to 4 times the dense speed, 70 % of blocks
# 1.5 to 3, 50 % at random 1.2 to 2, 30 % structured 1.1 to 1.5, 10 % none. Each holds here around its density; "none"
# is within 3 %.
SWEEP = Sweep(
    axes=("pattern", "sparsity"),
    density="density",
    bands=(
        Band(density=(0.0, 0.2), speedup=(2.0, 4.0)),
        Band(density=(0.2, 0.4), speedup=(1.5, 3.0)),
        Band(density=(0.4, 0.6), speedup=(1.2, 2.0)),
        Band(density=(0.6, 0.85), speedup=(1.1, 1.5)),
        Band(density=(0.85, 1.0), speedup=(0.97, 1.03)),
    ),
)
TIERS = ((0.30, "High"), (0.60, "Medium"), (0.85, "Low"), (1.0, "None (adaptive)"))  # the guide's words, by density

SPARSITIES = (0.1, 0.3, 0.5, 0.7, 0.9)
SHAPE = ("seqlen", "batch", "nhq", "nhk", "mask_heads")
GUIDE = [(512, 2, 8, 8, 8)]


def _preset(
    shapes: list[tuple[int, ...]], patterns: Sequence[str], sparsities: Sequence[float]
) -> dict[str | tuple[str, ...], list[Any]]:
    return {
        SHAPE: shapes,
        ("pattern", "sparsity"): [("dense", 0.0), *((p, s) for p in patterns for s in sparsities)],
        "direction": ["fwd", "bwd"],
        "hd": [64],
        "dtype": ["fp16"],
    }


def _on(device: str, preset: dict[str | tuple[str, ...], list[Any]]) -> dict[str | tuple[str, ...], list[Any]]:
    """One cell on a CPU, which says why there are no more."""
    return preset if device == "cuda" else {**_preset(GUIDE, (), ()), "direction": ["fwd"]}


ORIGINAL = _patterns.PATTERNS[:4]
PRESETS = {
    "smoke": lambda device: _on(device, _preset(GUIDE, ("block", "tiles"), (0.9,))),
    "default": lambda device: _on(device, _preset([(4096, 2, 8, 8, 8)], (*ORIGINAL, "tiles"), (0.1, 0.5, 0.9))),
    "original": lambda device: _on(device, _preset(GUIDE, ORIGINAL, SPARSITIES)),
    "full": lambda device: _on(
        device,
        _preset(
            [
                *((n, 2, 8, 8, 8) for n in (512, 1024, 2048, 4096)),
                *((n, 1, 8, 8, 8 if n < 16384 else 1) for n in (8192, 16384, 32768)),
            ],
            (*ORIGINAL, "tiles"),
            SPARSITIES,
        ),
    ),
}


def skip(case: Mapping[str, Any], device: torch.device | str) -> str | None:
    """Why this case cannot be, or None."""
    if torch.device(device).type != "cuda":
        return "dmask's kernels are written in Triton and need an NVIDIA GPU"
    return unfit(case)


def unfit(case: Mapping[str, Any]) -> str | None:
    """Why no device could run this case, or None."""
    if case["pattern"] not in _patterns.PATTERNS:
        return f"pattern={case['pattern']} is none of {', '.join(_patterns.PATTERNS)}"
    if not 0 <= case["sparsity"] < 1 or (case["pattern"] == "dense" and case["sparsity"]):
        return f"sparsity={case['sparsity']} is not in [0, 1), or not 0 for pattern=dense"
    if case["mask_heads"] != 1 and not case["mask_heads"] == case["nhq"] == case["nhk"]:
        return f"mask_heads={case['mask_heads']} is neither 1 nor the number of heads, nhq = nhk"
    if case["seqlen"] <= _patterns.TILE:
        return f"seqlen={case['seqlen']} is no more than a tile"
    return _attention.unfit(case)


def inputs(case: Mapping[str, Any], device: torch.device | str, seed: int) -> dict[str, torch.Tensor]:
    """q, k, v (and dout) [batch, seqlen, heads, hd]; mask bool [batch or 1, mask_heads, seqlen, seqlen].

    With one mask for all heads it is one for the batch, too.
    """
    reason = unfit(case)
    if reason:
        raise Unsupported(reason)
    draw = torch.Generator(device).manual_seed(seed)
    size, batch = case["seqlen"], case["batch"] if case["mask_heads"] > 1 else 1
    one = _attention.tensors({**_folded(case), "seqlen": size}, device, draw)
    made = {name: t.unflatten(1, (case["batch"], -1)).transpose(0, 1).contiguous() for name, t in one.items()}
    mask = _patterns.make(case["pattern"], case["sparsity"], size, batch * case["mask_heads"], device, draw)
    return {**made, "mask": mask.view(batch, case["mask_heads"], size, size)}


def facts(case: Mapping[str, Any], inputs: dict[str, torch.Tensor]) -> dict[str, Any]:  # noqa: ARG001
    """The mask's measured density, 64 x 64 tiles in all, masked whole and kept whole, rows without a key; the tier."""
    found = _patterns.measured(inputs["mask"].flatten(0, 1))
    return {**found, "tier": tier(found["density"])}


def tier(density: float) -> str:
    """The benefit that the guide expects at this density, in its words."""
    return next(name for limit, name in TIERS if density <= limit)


def prepare(kernel: Any, variant: str | None, case: Mapping[str, Any], inputs: dict[str, torch.Tensor]) -> Op:
    """`out` [batch, seqlen, nhq, hd] is what a forward call returns, (dq, dk, dv) a backward one."""
    attention, mask = _attention.entry(kernel, variant, "masked_attention"), inputs["mask"]
    return _attention.operation(case, inputs, lambda q, k, v: attention(q, k, v, mask))


def reference(case: Mapping[str, Any], inputs: dict[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    """See _reference.py for what is sampled and why that is enough. Batch entries are heads there."""
    flat = {name: _fold(t) for name, t in inputs.items() if name != "mask"}
    return _reference.reference(_folded(case), flat, Planes(inputs["mask"], case["nhk"]))


def check(case: Mapping[str, Any], outputs: Any, expected: dict[str, dict[str, torch.Tensor]]) -> Check:
    """See _reference.py for the tolerance. A row that sees no key must be zero, but for a millionth of the largest."""
    outs = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
    for out, heads in zip(outs, (case["nhq"], case["nhk"], case["nhk"]), strict=False):
        shape = (case["batch"], case["seqlen"], heads, case["hd"])
        if tuple(out.shape) != shape:
            return Check(False, f"shape {tuple(out.shape)}, expected {shape}")
    return _reference.check(_folded(case), [_fold(out) for out in outs], expected)


class Planes:
    """mask bool [batch or 1, heads or 1, S, S], called with a key head of the folded tensors."""

    def __init__(self, mask: torch.Tensor, heads: int) -> None:
        self.mask, self.heads = mask, heads

    def allowed(self, head: int, rows: torch.Tensor) -> torch.Tensor:
        batch, head = divmod(head, self.heads)
        return self.mask[min(batch, self.mask.shape[0] - 1), min(head, self.mask.shape[1] - 1), rows]


def _fold(t: torch.Tensor) -> torch.Tensor:
    """[batch, tokens, heads, hd] as [tokens, batch * heads, hd]."""
    return t.transpose(0, 1).flatten(1, 2)


def _folded(case: Mapping[str, Any]) -> dict[str, Any]:
    """The case with its batch entries as heads."""
    return {**case, "nhq": case["batch"] * case["nhq"], "nhk": case["batch"] * case["nhk"]}


def work(case: Mapping[str, Any]) -> Work:
    """FLOPs of the kept pairs (`_patterns.expected_pairs`): fwd 4 pairs nhq hd, bwd 2.5 times that. Bytes: each tensor
    once, and the mask, a byte a pair, once."""
    pairs = _patterns.expected_pairs(case["pattern"], case["sparsity"], case["seqlen"])
    folded = _folded(case)
    planes = case["mask_heads"] * (case["batch"] if case["mask_heads"] > 1 else 1)
    convention = {"fwd": "fwd-kept-pairs", "bwd": "bwd-2.5x-kept-pairs"}[case["direction"]]
    moved = _attention.ideal_bytes(folded) + planes * case["seqlen"] ** 2
    return Work(_attention.flops(folded, pairs), float(moved), convention)


def sdpa(case: Mapping[str, Any], inputs: dict[str, torch.Tensor]) -> Op:
    """PyTorch's attention with the mask, by the backend of its choice: what a user without a kernel would call."""
    grouped = case["nhq"] != case["nhk"]

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = scaled_dot_product_attention(q, k, v, attn_mask=inputs["mask"], enable_gqa=grouped)
        return out

    return _attention.operation(case, inputs, _by_heads(attend))


def flex(name: str, case: Mapping[str, Any], inputs: dict[str, torch.Tensor]) -> Op:
    """Compiled flex_attention. Its block mask, what our pre-pass makes in every call, is made once and not timed."""
    device = inputs["q"].device
    _peers.compiled_flex(device, name)  # a device without it makes no block mask
    return _attention.operation(case, inputs, _by_heads(_peers.flex(flex_mask(inputs["mask"]), device, name)))


def flex_mask(mask: torch.Tensor) -> Any:
    """The BlockMask of mask bool [batch or 1, heads or 1, S, S]."""
    from torch.nn.attention.flex_attention import create_block_mask

    batch, heads, rows, keys = mask.shape
    batch_step, head_step = int(batch > 1), int(heads > 1)

    def seen(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return mask[b * batch_step, h * head_step, q, k]

    return create_block_mask(seen, batch if batch > 1 else None, heads if heads > 1 else None, rows, keys, mask.device)


def _by_heads(attend: _peers.Attend) -> _peers.Attend:
    """A function of [B, H, N, D] as one of [B, N, H, D]."""
    return lambda q, k, v: attend(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)


PEERS = {
    "sdpa": sdpa,
    "flex": partial(flex, "flex"),
    "flex_tma": partial(flex, "flex_tma"),
}
