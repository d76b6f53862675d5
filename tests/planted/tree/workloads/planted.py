"""Small kernels, each with one thing that a branch changes."""

import torch

from abprof.worker.api import Check, Op

API = 1
KERNEL = "planted"
SUITE = "planted"
N = 1 << 26
PARTS = ["spill", "tuned", "passes", "matmul", "launches", "phases", "blocks", "streams", "strides", "window"]
PRESETS = {"default": {"part": PARTS}}
PHASES = {"main": ("planted_main", "the first kernel"), "post": ("planted_post", "what comes after it")}
SHOWN = 4096


def inputs(case, device, seed):
    torch.manual_seed(seed)
    if case["part"] == "matmul":
        return torch.randn(4096 * 4096, device=device).to(torch.bfloat16) / 64
    return torch.rand(N, device=device)


def prepare(kernel, variant, case, x):
    part, y = kernel.PARTS[case["part"]], torch.zeros_like(x)

    def call():
        part.run(x, y)
        return y

    return Op(call)


def reference(case, x):
    """The first values of the output, in double precision."""
    name = case["part"]
    if name == "matmul":
        square = x.double().view(4096, 4096)
        return (square[0] @ square)[:SHOWN]
    if name == "passes":
        return x.double().view(-1, 1 << 16).sum(1)[:SHOWN]
    first = x[:SHOWN].double()
    if name == "spill":
        y = first.clone()
        for _ in range(48):
            y = y * first + 0.5
        return y
    if name in {"phases", "streams"}:
        return torch.full_like(first, 0.5)  # what it converges to
    return {"tuned": first + 1, "launches": first * 2, "blocks": first + 2, "strides": first * 3, "window": first}[name]


def check(case, y, expected):
    error = (y[: expected.numel()].double() - expected).abs() / expected.abs().clamp(min=1.0)
    allowed = 0.05 if case["part"] == "matmul" else 1e-3
    worst = error.max().item()
    return Check(ok=worst <= allowed, reason="" if worst <= allowed else f"error {worst:.2g}", max_abs=worst)
