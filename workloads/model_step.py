"""A training step of a two-layer transformer with the attention under test in it, judged on wall time.

Whether a faster kernel makes a step faster: forward, loss, gradients and a step of plain gradient descent on one causal
sequence, with everything between the kernels (projections, norms, autograd, launches) as a user's program has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch.nn.functional import gelu, rms_norm, scaled_dot_product_attention

from abprof.kit import Check, Op, Unsupported, Work

from . import _attention, _peers
from ._attention import PHASES

__all__ = ["PHASES"]

API = 1
KERNEL = "ffa"
SUITE = "model_step"
JUDGE = "wall"
SCALED = "seqlen"
CAUSAL = 1  # ffa_attention's mask type
RATE = 1e-4  # of the gradient descent
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
# Relative error of the loss and, in the Frobenius norm, of each gradient. Correct steps of the smoke case were seen to err by
# 8e-7 with float32 and 6e-3 with bfloat16; 16 keys of 256 that half of the rows do not see change the worst gradient by 0.1.
TOLERANCE = {"fp32": 2e-5, "bf16": 3e-2}

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def _preset(lengths: list[int], width: int, nhq: int, nhk: int, hd: int, dtype: str) -> dict[str, list[Any]]:
    return {
        "seqlen": lengths,
        "layers": [2],
        "width": [width],
        "nhq": [nhq],
        "nhk": [nhk],
        "hd": [hd],
        "dtype": [dtype],
    }


def _default(device: str) -> dict[str, list[Any]]:
    return _preset([4096], 2048, 16, 4, 128, "bf16") if device == "cuda" else _preset([512], 256, 4, 4, 64, "fp32")


def _smoke(device: str) -> dict[str, list[Any]]:
    return _preset([256], 128, 2, 1, 64, "bf16" if device == "cuda" else "fp32")


PRESETS = {
    "smoke": _smoke,
    "default": _default,
    "full": _preset([4096, 8192, 16384], 4096, 32, 8, 128, "bf16"),
    "product": _preset([4096, 8192, 16384], 4096, 32, 8, 128, "bf16"),
}


def skip(case: Mapping[str, Any], device: torch.device | str) -> str | None:  # noqa: ARG001 - the contract's argument
    """Why this case cannot be, or None."""
    if case["dtype"] not in DTYPES:
        return f"dtype={case['dtype']} is none of {', '.join(DTYPES)}"
    if case["nhq"] % case["nhk"]:
        return f"nhq={case['nhq']} is no multiple of nhk={case['nhk']}"
    return None


def weight_shapes(case: Mapping[str, Any]) -> list[tuple[int, int]]:
    """(inputs, outputs) of each layer's four products, in order: q, k and v together, out, up, down."""
    width, heads = case["width"], case["nhq"] * case["hd"]
    layer = [(width, heads + 2 * case["nhk"] * case["hd"]), (heads, width), (width, 4 * width), (4 * width, width)]
    return layer * case["layers"]


def inputs(case: Mapping[str, Any], device: torch.device | str, seed: int) -> dict[str, Any]:
    """`x` and `target` [seqlen, width], and the weights, drawn so that activations keep their size."""
    reason = skip(case, device)
    if reason:
        raise Unsupported(reason)
    generator = torch.Generator(device).manual_seed(seed)

    def normal(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator, device=device, dtype=DTYPES[case["dtype"]])

    made = {name: normal(case["seqlen"], case["width"]) for name in ("x", "target")}
    return {**made, "weights": [normal(*shape) * shape[0] ** -0.5 for shape in weight_shapes(case)]}


def model(case: Mapping[str, Any], x: torch.Tensor, weights: list[torch.Tensor], attend: Attend) -> torch.Tensor:
    """The transformer's output [seqlen, width]; attend gets q [N, nhq, hd], k and v [N, nhk, hd]."""
    heads = [case["nhq"], case["nhk"], case["nhk"]]
    for layer in range(case["layers"]):
        qkv, out, up, down = weights[4 * layer : 4 * layer + 4]
        parts = (rms_norm(x, x.shape[1:]) @ qkv).unflatten(1, (-1, case["hd"])).split(heads, 1)
        x = x + attend(*parts).flatten(1) @ out
        x = x + gelu(rms_norm(x, x.shape[1:]) @ up) @ down
    return x


def loss_and_gradients(
    case: Mapping[str, Any], tensors: Mapping[str, Any], weights: list[torch.Tensor], attend: Attend
) -> list[torch.Tensor]:
    """The loss, squared error summed over the width and averaged over the tokens, and its gradient by each weight."""
    error = model(case, tensors["x"], weights, attend) - tensors["target"]
    loss = error.to(torch.promote_types(error.dtype, torch.float32)).square().sum(1).mean()
    return [loss.detach(), *torch.autograd.grad(loss, weights)]


def _step(case: Mapping[str, Any], inputs: dict[str, Any], attend: Attend) -> Op:
    """The timed step changes weights of its own; they are put back before each call."""
    weights = [weight.clone().requires_grad_() for weight in inputs["weights"]]

    def call() -> list[torch.Tensor]:
        try:
            found = loss_and_gradients(case, inputs, weights, attend)
        except NotImplementedError as error:
            raise Unsupported(str(error)) from error
        with torch.no_grad():
            torch._foreach_add_(weights, found[1:], alpha=-RATE)
        return found

    def reset() -> None:
        with torch.no_grad():
            torch._foreach_copy_(weights, inputs["weights"])

    return Op(call, reset)


def prepare(kernel: Any, variant: str | None, case: Mapping[str, Any], inputs: dict[str, Any]) -> Op:
    """The loss and the gradients are what a call returns."""
    attention = _attention.entry(kernel, variant, "ffa_attention")
    whole = ((0, case["seqlen"]),)
    return _step(case, inputs, lambda q, k, v: attention(q, k, v, whole, whole, (CAUSAL,)))


def _sdpa(case: Mapping[str, Any], device: torch.device, name: str = "sdpa") -> Attend:
    return _peers.tokens_first(_peers.attend(name, _peers.Problem((case["seqlen"],), True, device)))


def reference(case: Mapping[str, Any], inputs: dict[str, Any]) -> list[torch.Tensor]:
    """The same step with torch's own attention, in float64 on a CPU and float32 on a GPU."""
    x = inputs["x"]
    wide = torch.float64 if x.device.type == "cpu" else torch.float32
    tensors = {name: inputs[name].to(wide) for name in ("x", "target")}
    weights = [weight.to(wide).requires_grad_() for weight in inputs["weights"]]

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        # Key heads are repeated, since of torch's kernels those that know groups do not know float32.
        q, k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1).transpose(0, 1)[None] for t in (q, k, v))
        return scaled_dot_product_attention(q, k, v, is_causal=True)[0].transpose(0, 1)

    return loss_and_gradients(case, tensors, weights, attend)


def check(case: Mapping[str, Any], outputs: Any, expected: list[torch.Tensor]) -> Check:
    """Each output within TOLERANCE of the reference, relative to its norm; NaN never passes."""
    if len(outputs) != len(expected):
        return Check(False, f"{len(outputs)} outputs, {len(expected)} expected")
    allowed, worst, largest = TOLERANCE[case["dtype"]], 0.0, 0.0
    for i, (out, want) in enumerate(zip(outputs, expected, strict=True)):
        name = "loss" if i == 0 else f"gradient of weight {i - 1}"
        if out.shape != want.shape:
            return Check(False, f"{name}: shape {tuple(out.shape)}, expected {tuple(want.shape)}")
        got, exact = out.detach().double(), want.to(out.device).double()
        error = float((got - exact).norm() / exact.norm().clamp_min(1e-30))
        worst, largest = max(worst, error), max(largest, float((got - exact).abs().max()))
        if not error <= allowed:
            return Check(False, f"{name}: off by {error:.3g} of its norm, allowed {allowed:g}", largest, worst)
    return Check(True, "", largest, worst)


def work(case: Mapping[str, Any]) -> Work:
    """6 flops for each weight and token (2 forward, 4 for the gradients), and causal attention: 3.5 times its exact area's
    4 area nhq hd. Bytes are not counted."""
    tokens = case["seqlen"]
    weights = sum(rows * columns for rows, columns in weight_shapes(case))
    area = tokens * (tokens + 1) // 2
    attention = 3.5 * 4 * area * case["nhq"] * case["hd"] * case["layers"]
    return Work(6.0 * tokens * weights + attention, None, "step-6-per-weight-3.5x-attention")


def _peer(name: str, case: Mapping[str, Any], inputs: dict[str, Any]) -> Op:
    return _step(case, inputs, _sdpa(case, inputs["x"].device, name))


PEERS = {name: partial(_peer, name) for name in _peers.NAMES if name != "varlen_attn"}
DEFAULT_PEERS = ("sdpa",)
