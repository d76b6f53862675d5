"""The ladder of one attention kernel's optimisations over the sequence length, beside torch's attention.

`full` is the FMHA scaling analysis's matrix: batch 4, 32 heads of 128, float16, causal, 1024 ... 16384 tokens. FLOPs of a
causal case are half of the full ones, as counted there: 2 B H N^2 D (the exact area is larger by a part in N).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from abprof.kit import Check, Op, Work

from . import _batched, _peers
from ._batched import Shape

API = 1
KERNEL = "ladder"
SUITE = "fmha_scaling"
SEED_COLUMNS = ("seq_len", "batch", "n_heads", "head_dim", "dtype", "causal")
LADDER = ("basic", "exp2", "memory", "full")
VARIANTS = (*LADDER, "cutile_basic", "cutile_exp2", "cutile_memory", "cutile_full")
SCALED = "seq_len"
PHASES = {
    "prepare": ("fmha_prepare", "output and launch arguments"),
    "run": ("fmha_run", "the attention kernel itself"),
}


def _preset(lengths: list[int], batch: int, heads: int) -> dict[str, list[Any]]:
    return {
        "seq_len": lengths,
        "batch": [batch],
        "n_heads": [heads],
        "head_dim": [128],
        "dtype": ["fp16"],
        "causal": [True],
    }


def _default(device: str) -> dict[str, list[Any]]:
    return _preset([1024, 4096], 4, 32) if device == "cuda" else _preset([1024], 4, 32)


PRESETS = {
    "smoke": _preset([512], 1, 4),
    "default": _default,
    "full": _preset([1024, 2048, 4096, 8192, 16384], 4, 32),
    "product": _preset([1024, 2048, 4096, 8192, 16384], 4, 32),
}


def shape(case: Mapping[str, Any]) -> Shape:
    """The scale is 1/sqrt(head_dim)."""
    scale = 1 / math.sqrt(case["head_dim"])
    return Shape(
        case["batch"], case["n_heads"], case["seq_len"], case["head_dim"], case["dtype"], case["causal"], scale
    )


def skip(case: Mapping[str, Any], device: torch.device | str) -> str | None:
    """Why this case cannot be, or None: the rungs need a GPU of compute capability 8.0."""
    return _batched.unfit(case["dtype"], device, (8, 0))


def inputs(case: Mapping[str, Any], device: torch.device | str, seed: int) -> dict[str, torch.Tensor]:
    """q, k, v [B, H, N, D]."""
    return _batched.inputs(shape(case), device, seed)


def prepare(kernel: Any, variant: str | None, case: Mapping[str, Any], inputs: dict[str, torch.Tensor]) -> Op:
    """`variant` is the rung; the fact `configuration` is its row of the package's platform table."""
    fmha, rung = kernel.fmha, variant or LADDER[-1]
    configuration = getattr(kernel, "configuration", None)
    return _batched.operation(
        lambda q, k, v: fmha(q, k, v, causal=case["causal"], rung=rung),
        inputs,
        configuration and (lambda: configuration(rung, inputs["q"].device)),
        "configuration",
    )


def reference(case: Mapping[str, Any], inputs: dict[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    """See _reference.py for what is sampled and why that is enough."""
    return _batched.reference(shape(case), inputs)


def check(case: Mapping[str, Any], outputs: Any, expected: dict[str, dict[str, torch.Tensor]]) -> Check:
    """See _reference.py for the tolerance."""
    return _batched.check(shape(case), outputs, expected)


def work(case: Mapping[str, Any]) -> Work:
    """4 B H N^2 D, half of it when causal; q, k, v and out once."""
    made = shape(case)
    flops, convention = (made.full_flops / 2, "fwd-causal-half") if made.causal else (made.full_flops, "fwd-dense")
    return Work(flops, made.ideal_bytes, convention)


PEERS = {name: partial(_batched.peer, name, shape) for name in _peers.NAMES if name != "varlen_attn"}
DEFAULT_PEERS = ("sdpa",)
