"""What dense.py and block_sparse.py share: inputs, the operation that is timed, ideal bytes, phases.

Layout everywhere: q and out [seqlen, nhq, hd], k and v [seqlen, nhk, hd]; query head h reads key head h // (nhq / nhk).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from abprof.kit import Op, Unsupported, directed

Case = Mapping[str, Any]
Tensors = dict[str, torch.Tensor]
Forward = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

_FORWARD = {
    "range_merge": "ranges that touch are joined",
    "sparse_load_preprocess": "index lists for sparse loads are made",
    "prepare": "buffers and launch arguments",
    "run": "the attention kernel itself",
    "postprocess": "partial results are combined",
    "cast": "output is converted to the inputs' dtype",
}
_BACKWARD = {
    "range_merge": "ranges that touch are joined, per key",
    "prepare": "buffers and launch arguments",
    "preprocess": "row sums of dout * out",
    "run": "the gradient kernels themselves",
    "postprocess": "gradient buffers are combined",
    "cast": "gradients are converted to the inputs' dtype",
}
PHASES = {
    f"{way}_{name}": (f"ffa_{way}_{name}", f"{word}: {text}")
    for way, word, texts in (("fwd", "forward", _FORWARD), ("bwd", "backward", _BACKWARD))
    for name, text in texts.items()
}


def unfit(case: Case) -> str | None:
    """Why no kernel could run this case, or None."""
    if case["nhq"] % case["nhk"]:
        return f"nhq={case['nhq']} is no multiple of nhk={case['nhk']}"
    if case["direction"] not in ("fwd", "bwd"):
        return f"direction={case['direction']} is neither fwd nor bwd"
    if case["dtype"] not in DTYPES:
        return f"dtype={case['dtype']} is none of {', '.join(DTYPES)}"
    return None


def tensors(case: Case, device: str | torch.device, generator: torch.Generator) -> Tensors:
    """q, k, v and, for a backward case, dout: standard normal, so that no kernel is timed on zeros."""
    reason = unfit(case)
    if reason:
        raise Unsupported(reason)

    def normal(heads: int) -> torch.Tensor:
        shape = (case["seqlen"], heads, case["hd"])
        return torch.randn(shape, generator=generator, device=device, dtype=DTYPES[case["dtype"]])

    made = {"q": normal(case["nhq"]), "k": normal(case["nhk"]), "v": normal(case["nhk"])}
    if case["direction"] == "bwd":
        made["dout"] = normal(case["nhq"])
    return made


def operation(case: Case, inputs: Tensors, forward: Forward) -> Op:
    """The timed call: `out` for a forward case, (dq, dk, dv) for a backward one.

    Backward runs the forward once, untimed, and times the gradient alone. Gradients are returned, not accumulated
    into `.grad`, so nothing needs to be put back between calls. NotImplementedError becomes kit.Unsupported.
    """
    if case["direction"] == "fwd":
        return Op(lambda: _run(forward, inputs["q"], inputs["k"], inputs["v"]))
    op = directed(case, inputs, lambda t: _run(forward, t["q"], t["k"], t["v"]), wrt=("q", "k", "v"))
    return Op(lambda: _run(op.call))


def _run(call: Callable[..., Any], *given: torch.Tensor) -> Any:
    try:
        return call(*given)
    except NotImplementedError as error:
        raise Unsupported(str(error)) from error


def nvtx(case: Case, arm: str | None) -> tuple[str]:  # noqa: ARG001 - the contract's argument
    """What the branch-profile scripts call a call in a profiler's timeline."""
    return ("forward_pass" if case["direction"] == "fwd" else "backward_pass",)


def entry(kernel: Any, variant: str | None, name: str) -> Callable[..., torch.Tensor]:
    """The kernel package's function. A variant is an attribute of the package that has the same functions."""
    found: Callable[..., torch.Tensor] = getattr(getattr(kernel, variant) if variant else kernel, name)
    return found


def ideal_bytes(case: Case) -> float:
    """Bytes if each tensor crossed memory once.

    Forward: q, k, v read and out written, (2 nhq + 2 nhk) rows. Backward: q, k, v, out, dout read and dq, dk, dv
    written, (4 nhq + 4 nhk) rows, and the forward's row statistics read, 4 bytes each.
    """
    row = case["seqlen"] * case["hd"] * DTYPES[case["dtype"]].itemsize
    heads = case["nhq"] + case["nhk"]
    if case["direction"] == "fwd":
        return float(2 * heads * row)
    return float(4 * heads * row + 4 * case["nhq"] * case["seqlen"])


def flops(case: Case, area: float) -> float:
    """Forward 4 area nhq hd: two matrix products over each head's attended pairs. Backward 2.5 times that."""
    forward: float = 4.0 * area * case["nhq"] * case["hd"]
    return forward if case["direction"] == "fwd" else 2.5 * forward
