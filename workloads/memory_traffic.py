"""Attention forward as a subject for memory tables: FlashAttention-2 and BigBird, fused and as three kernels.

`full` has the shapes of FractalTensor's Table 6: full attention with batch 32, 8 heads of 128 and 256, float16, 128 to
4096 tokens; BigBird with batch 32, one head of 512, float32 (multiplied in TF32, as Triton does by itself), blocks of
64, 4096 and 8192 tokens. BigBird here: block 0 of queries sees all blocks of keys (global, 1); another block i sees
block 0, blocks i-1, i and i+1 (window, 3) and 3 more at random, the same for all batch entries.

A report has the least bytes of a call for DRAM, L2 and L1 (_traffic.py says how they are counted); `least` has them by
kernel. Each kernel named there is launched once a call.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import torch

from abprof.kit import Check, Op, Unsupported, Work

from . import _attention, _batched, _reference, _traffic
from ._batched import Shape

API = 1
KERNEL = "memtraffic"
SUITE = "memory_traffic"
VARIANTS = ("unfused", "fused")
LADDER = ("unfused", "fused")
SCALED = "seqlen"
SEED_COLUMNS = ("subject", "seqlen", "hd")
PHASES = {
    "prepare": ("memtraffic_fwd_prepare", "the output, and unfused the scores, are allocated"),
    "run": ("memtraffic_fwd_run", "the fused kernel"),
    "qk": ("memtraffic_fwd_qk", "unfused: scores"),
    "softmax": ("memtraffic_fwd_softmax", "unfused: softmax of the scores, in place"),
    "pv": ("memtraffic_fwd_pv", "unfused: probabilities times V"),
}
SUBJECTS = ("flash2", "bigbird")
BLOCK, WINDOW, RANDOM = _traffic.BLOCK, 3, 3
TF32 = 5e-3  # tolerance of float32: products of ten bits, the others cut off, erred by 0.0031 in the worst of 2048 rows

SHAPE = ("subject", "seqlen", "batch", "nhq", "hd", "dtype")


def _flash2(length: int, dim: int = 128, batch: int = 32) -> tuple[Any, ...]:
    return "flash2", length, batch, 8, dim, "fp16"


def _bigbird(length: int, batch: int = 32) -> tuple[Any, ...]:
    return "bigbird", length, batch, 1, 512, "fp32"


LENGTHS = (128, 256, 512, 768, 1024, 1536, 2048, 4096)
SMOKE = [_flash2(256, batch=2), _bigbird(1024, batch=2)]
ON_A_GPU = {
    "smoke": SMOKE,
    "default": [_flash2(1024), _flash2(4096), _bigbird(4096)],
    "full": [*(_flash2(n, d) for d in (128, 256) for n in LENGTHS), _bigbird(4096), _bigbird(8192)],
}


def _preset(name: str, device: str) -> dict[tuple[str, ...], list[Any]]:
    """On a CPU one cell, which says why there are no more."""
    return {SHAPE: ON_A_GPU[name] if device == "cuda" else SMOKE[:1]}


PRESETS = {
    "smoke": lambda device: _preset("smoke", device),
    "default": lambda device: _preset("default", device),
    "full": lambda device: _preset("full", device),
}


def shape(case: Mapping[str, Any]) -> Shape:
    """The scale is 1/sqrt(hd)."""
    size = (case["batch"], case["nhq"], case["seqlen"], case["hd"])
    return Shape(*size, dtype=case["dtype"], causal=False, scale=case["hd"] ** -0.5)


def skip(case: Mapping[str, Any], device: torch.device | str) -> str | None:
    """Why this case cannot be, or None."""
    return unfit(case) or _batched.unfit(case["dtype"], device, (8, 0))


def unfit(case: Mapping[str, Any]) -> str | None:
    """Why no device could run this case, or None."""
    if case["subject"] not in SUBJECTS:
        return f"subject={case['subject']} is neither {' nor '.join(SUBJECTS)}"
    if case["seqlen"] % BLOCK:
        return f"seqlen={case['seqlen']} is no multiple of the block, {BLOCK}"
    return None


def inputs(case: Mapping[str, Any], device: torch.device | str, seed: int) -> dict[str, torch.Tensor]:
    """q, k, v [batch, nhq, seqlen, hd]; for BigBird also begin, rows and columns, int32: its lists by row."""
    reason = unfit(case)
    if reason:
        raise Unsupported(reason)
    made = _batched.inputs(shape(case), device, seed)
    if case["subject"] == "bigbird":
        lists = bigbird(case["seqlen"] // BLOCK, seed)
        flat = [(i, j) for i, row in enumerate(lists) for j in row]
        begin = [sum(map(len, lists[:i])) for i in range(len(lists) + 1)]
        for name, values in (("begin", begin), ("rows", [i for i, _ in flat]), ("columns", [j for _, j in flat])):
            made[name] = torch.tensor(values, dtype=torch.int32, device=device)
    return made


def bigbird(blocks: int, seed: int) -> list[list[int]]:
    """For each block of queries the blocks of keys that it sees, ascending."""
    draw = random.Random(seed)
    rows = [list(range(blocks))]
    for i in range(1, blocks):
        fixed = {0, *range(max(0, i - WINDOW // 2), min(blocks, i + WINDOW // 2 + 1))}
        others = [j for j in range(blocks) if j not in fixed]
        rows.append(sorted(fixed.union(draw.sample(others, min(RANDOM, len(others))))))
    return rows


def problem(case: Mapping[str, Any]) -> _traffic.Problem:
    """What the traffic depends on; the random blocks' places are not part of it."""
    blocks = case["seqlen"] // BLOCK
    entries = sum(map(len, bigbird(blocks, 0))) if case["subject"] == "bigbird" else None
    itemsize = _attention.DTYPES[case["dtype"]].itemsize
    return _traffic.Problem(case["batch"] * case["nhq"], case["seqlen"], case["hd"], itemsize, entries)


def least(case: Mapping[str, Any], variant: str) -> dict[str, _traffic.Traffic]:
    """The least traffic of each kernel of a call, by its name."""
    return _traffic.least(variant, problem(case))


def prepare(kernel: Any, variant: str | None, case: Mapping[str, Any], inputs: dict[str, torch.Tensor]) -> Op:
    """The lists are made once, outside of what is timed."""
    variant = variant or "fused"
    if case["subject"] == "flash2":
        op = _batched.operation(_attention.entry(kernel, variant, "full_attention"), inputs)
    else:
        attention = _attention.entry(kernel, variant, "block_attention")
        lists = kernel.BlockLists(*(inputs[name] for name in ("begin", "rows", "columns")))
        op = _batched.operation(lambda q, k, v: attention(q, k, v, lists), inputs)
    return Op(op.call, facts=lambda: _facts(case, variant))


def _facts(case: Mapping[str, Any], variant: str) -> dict[str, Any]:
    kernels = least(case, variant)
    total = sum(kernels.values(), _traffic.Traffic(0.0, 0.0, 0.0))
    return {
        "minimum_dram_bytes": total.dram,
        "minimum_l2_bytes": total.l2,
        "minimum_l1_bytes": total.l1,
        "kernels": ", ".join(kernels),
    }


def reference(case: Mapping[str, Any], inputs: dict[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    """See _reference.py for what is sampled and why that is enough."""
    if case["subject"] == "flash2":
        return _batched.reference(shape(case), inputs)
    blocks = case["seqlen"] // BLOCK
    kept = torch.zeros(blocks, blocks, dtype=torch.bool, device=inputs["q"].device)
    kept[inputs["rows"].long(), inputs["columns"].long()] = True
    heads = case["batch"] * case["nhq"]
    mask = _reference.KeptBlocks(kept.expand(heads, -1, -1), BLOCK, BLOCK, case["seqlen"])
    return _batched.reference(shape(case), inputs, mask)


def check(case: Mapping[str, Any], outputs: Any, expected: dict[str, dict[str, torch.Tensor]]) -> Check:
    """See _reference.py for the tolerance; float32 has that of TF32."""
    return _batched.check(shape(case), outputs, expected, TF32 if case["dtype"] == "fp32" else None)


def work(case: Mapping[str, Any]) -> Work:
    """4 B H D flops for each attended pair: N^2, or 64^2 for each entry of BigBird's lists. Bytes: q, k, v read and out
    written once, the least that any variant moves to and from memory."""
    traffic = problem(case)
    flops = 4.0 * traffic.heads * traffic.visited * BLOCK**2 * traffic.dim
    return Work(flops, 4 * traffic.tensor, {"flash2": "fwd-dense", "bigbird": "fwd-block-exact"}[case["subject"]])


def sdpa_flash(case: Mapping[str, Any], inputs: dict[str, torch.Tensor]) -> Op:
    """PyTorch's FlashAttention-2. It has no lists of blocks."""
    if case["subject"] != "flash2":
        raise Unsupported("scaled_dot_product_attention has no lists of blocks")
    return _batched.peer("sdpa_flash", shape, case, inputs)


PEERS = {"sdpa_flash": sdpa_flash}
