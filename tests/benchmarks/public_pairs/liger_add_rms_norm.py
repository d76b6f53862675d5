"""Root-mean-square norm of a sum of rows by Liger Kernel, forward and backward."""

import torch

from abprof.kit import Op, compare

API, KERNEL = 1, "liger_kernel"
SIZES = ("rows", "width")
PRESETS = {
    "smoke": {SIZES: [(64, 96)], "pass": ["fwd", "bwd"]},
    "default": {
        SIZES: [(4096, 2048), (16384, 2048), (4096, 4096), (16384, 4096), (8192, 8192), (65536, 4096)],
        "pass": ["fwd", "bwd"],
    },
}
EPS = 1e-6


def inputs(case, device, seed):
    draw = torch.Generator(device).manual_seed(seed)

    def randn(*shape):
        return torch.randn(*shape, generator=draw, device=device, dtype=torch.bfloat16)

    shape = case["rows"], case["width"]
    return {name: randn(*shape) for name in ("x", "residual", "dy", "dsum")} | {"weight": randn(case["width"])}


def prepare(kernel, variant, case, inputs):
    from liger_kernel.ops.fused_add_rms_norm import fused_add_rms_norm_backward, fused_add_rms_norm_forward

    weight, dy, dsum = inputs["weight"], inputs["dy"], inputs["dsum"]

    def forward():
        return fused_add_rms_norm_forward(inputs["x"], inputs["residual"], weight, EPS, 0.0, "llama")

    if case["pass"] == "fwd":
        return Op(lambda: forward()[:2])
    _, total, rstd, *launch, casting = forward()  # `launch` has one value more on one side

    def backward():
        dx, _, dweight = fused_add_rms_norm_backward(dy, dsum, total, weight, rstd, 0.0, casting, *launch, False)
        return dx, dweight

    return Op(backward)


def reference(case, inputs):
    total = (inputs["x"] + inputs["residual"]).float().requires_grad_()
    weight = inputs["weight"].float().requires_grad_()
    y = torch.nn.functional.rms_norm(total, (case["width"],), weight, EPS)
    if case["pass"] == "fwd":
        return y.detach()[::64].clone(), total.detach()[::64].clone()
    dx, dweight = torch.autograd.grad(y, (total, weight), inputs["dy"].float())
    return (dx + inputs["dsum"].float())[::64].clone(), dweight


def check(case, outputs, expected):
    rows = [out[::64] for out in outputs] if case["pass"] == "fwd" else (outputs[0][::64], outputs[1])
    return compare(rows, expected, rtol=2e-2, atol=2e-2)
