"""Warp-specialised attention on Hopper, plain and pipelined with ping-pong, over the context length.

`default` is the analysis's comparison of four: both variants at 128 and 8192 tokens, batch 1, 32 heads of 128, float16, not
causal, scale 1.3. `full` has 128 ... 16384 tokens, batch 1 and 4, float16 and bfloat16. Bytes are those of q, k, v and out.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from abprof.kit import Check, Op, Work

from . import _batched, _peers
from ._batched import Shape

API = 1
KERNEL = "wsattn"
SUITE = "hopper_ws"
SEED_COLUMNS = ("N_CTX", "B", "H", "D", "dtype", "sm_scale")
VARIANTS = ("ws", "ws_pipelined")
LADDER = VARIANTS
SCALED = "N_CTX"
PHASES = {
    "prepare": ("wsattn_prepare", "output, descriptors and launch arguments"),
    "run": ("wsattn_run", "the attention kernel itself"),
}
LENGTHS = [128, 256, 512, 1024, 2048, 4096, 8192, 16384]


def _preset(lengths: list[int], batches: list[int], heads: int, dtypes: list[str]) -> dict[str, list[Any]]:
    return {"N_CTX": lengths, "B": batches, "H": [heads], "D": [128], "dtype": dtypes, "sm_scale": [1.3]}


def _default(device: str) -> dict[str, list[Any]]:
    return _preset([128, 8192] if device == "cuda" else [128], [1], 32, ["fp16"])


PRESETS = {
    "smoke": _preset([128], [1], 4, ["fp16"]),
    "default": _default,
    "full": _preset(LENGTHS, [1, 4], 32, ["fp16", "bf16"]),
    "product": _preset(LENGTHS, [1, 4], 32, ["fp16", "bf16"]),
}


def shape(case: Mapping[str, Any]) -> Shape:
    """Not causal."""
    return Shape(case["B"], case["H"], case["N_CTX"], case["D"], case["dtype"], False, case["sm_scale"])


def skip(case: Mapping[str, Any], device: torch.device | str) -> str | None:
    """Why this case cannot be, or None. The kernels are for compute capability 9.x; they say so themselves elsewhere."""
    return _batched.unfit(case["dtype"], device, (9, 0))


def inputs(case: Mapping[str, Any], device: torch.device | str, seed: int) -> dict[str, torch.Tensor]:
    """q, k, v [B, H, N, D]."""
    return _batched.inputs(shape(case), device, seed)


def prepare(kernel: Any, variant: str | None, case: Mapping[str, Any], inputs: dict[str, torch.Tensor]) -> Op:
    """`out` [B, H, N, D] is what a call returns; the fact `autotuned` is the configuration it ran with."""
    attention, scale, chosen = kernel.ws_attention, case["sm_scale"], variant or VARIANTS[-1]
    configuration = getattr(kernel, "configuration", None)
    return _batched.operation(
        lambda q, k, v: attention(q, k, v, scale, variant=chosen),
        inputs,
        configuration and (lambda: configuration(*inputs.values(), scale=scale, variant=chosen)),
    )


def reference(case: Mapping[str, Any], inputs: dict[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    """See _reference.py for what is sampled and why that is enough."""
    return _batched.reference(shape(case), inputs)


def check(case: Mapping[str, Any], outputs: Any, expected: dict[str, dict[str, torch.Tensor]]) -> Check:
    """See _reference.py for the tolerance."""
    return _batched.check(shape(case), outputs, expected)


def work(case: Mapping[str, Any]) -> Work:
    """4 B H N^2 D; q, k, v and out once, 4 B H N D elements."""
    made = shape(case)
    return Work(made.full_flops, made.ideal_bytes, "fwd-dense")


def nvtx(case: Mapping[str, Any], arm: str | None) -> tuple[str]:
    """What the analysis's script calls a call in a profiler's timeline; its providers' names for the two variants."""
    providers = {"ws": f"triton-ws-{case['dtype']}", "ws_pipelined": f"triton-ws-pp-{case['dtype']}"}
    name = arm or VARIANTS[-1]
    return (f"bench_{providers.get(name, name)}_B{case['B']}_H{case['H']}_N{case['N_CTX']}_D{case['D']}",)


PEERS = {name: partial(_batched.peer, name, shape) for name in _peers.NAMES if name != "varlen_attn"}
DEFAULT_PEERS = ("sdpa",)
