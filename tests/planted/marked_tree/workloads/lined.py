"""Triton and Gluon kernels, each with a line that a branch changes."""

import torch

from abprof.kit import Check, Op

API = 1
KERNEL = "lined"
SUITE = "lined"
N = 1 << 26
PARTS = ["activate", "decay", "gather", "sums", "relax", "product", "gluon_steps", "blur", "softmax"]
PRESETS = {"default": {"part": PARTS}}
SIDE, SHOWN = 4096, 4096


def inputs(case, device, seed):
    torch.manual_seed(seed)
    return torch.rand(SIDE * SIDE if case["part"] == "product" else N, device=device)


def prepare(kernel, variant, case, x):
    part, y = kernel.PARTS[case["part"]], torch.zeros_like(x)

    def call():
        launched, grid, args, options = part.job(x, y)
        launched[grid](*args, **options)
        return y

    return Op(call)


def reference(case, x):
    """The first values of the output, in double precision."""
    part, first = case["part"], x[:SHOWN].double()
    if part == "product":
        square = x.view(SIDE, SIDE).double()
        return square[0] @ square
    if part == "sums":
        return sum(x[term * (N // 16) : term * (N // 16) + SHOWN].double() for term in range(16))
    if part == "gather":
        width = 256 * 8 + 1
        return sum(x[step * width : step * width + SHOWN].double() for step in range(16)) * x[: 4 * SHOWN : 4].double()
    if part == "blur":
        return 0.6 * first + 0.4 * x[64 : 64 + SHOWN].double()
    if part == "softmax":
        return first.softmax(0) / 2  # SHOWN is a row
    # What it converges to.
    return torch.full_like(first, {"activate": 0.5, "decay": 0.5, "relax": 0.25, "gluon_steps": 0.5}[part])


def check(case, y, expected):
    error = (y[: expected.numel()].double() - expected).abs() / expected.abs().clamp(min=1.0)
    worst = error.max().item()
    return Check(ok=worst <= 0.02, reason="" if worst <= 0.02 else f"error {worst:.2g}", max_abs=worst)
