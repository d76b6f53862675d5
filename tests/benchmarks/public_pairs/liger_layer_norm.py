"""Layer norm of rows by Liger Kernel, forward and backward."""

import torch

from abprof.kit import Op, compare

API, KERNEL = 1, "liger_kernel"
SIZES = ("rows", "width")
PRESETS = {
    "smoke": {SIZES: [(64, 96)], "pass": ["fwd", "bwd"]},
    "default": {
        SIZES: [(8192, 1024), (4096, 4096), (16384, 4096), (8192, 8192), (32768, 2048), (65536, 4096)],
        "pass": ["fwd", "bwd"],
    },
}
EPS = 1e-5


def inputs(case, device, seed):
    draw = torch.Generator(device).manual_seed(seed)

    def randn(*shape):
        return torch.randn(*shape, generator=draw, device=device, dtype=torch.bfloat16)

    rows, width = case["rows"], case["width"]
    return {"x": randn(rows, width), "weight": randn(width), "bias": randn(width), "dy": randn(rows, width)}


def prepare(kernel, variant, case, inputs):
    from liger_kernel.ops.layer_norm import layer_norm_backward, layer_norm_forward

    x, weight, bias = inputs["x"], inputs["weight"], inputs["bias"]
    if case["pass"] == "fwd":
        return Op(lambda: layer_norm_forward(x, weight, bias, EPS)[0])
    _, _, mean, rstd, *_ = layer_norm_forward(x, weight, bias, EPS)
    return Op(lambda: layer_norm_backward(inputs["dy"], x, weight, bias, mean, rstd))


def reference(case, inputs):
    x, weight, bias = (inputs[name].float().requires_grad_() for name in ("x", "weight", "bias"))
    y = torch.nn.functional.layer_norm(x, (case["width"],), weight, bias, EPS)
    if case["pass"] == "fwd":
        return y.detach()[::64].clone()
    dx, dweight, dbias = torch.autograd.grad(y, (x, weight, bias), inputs["dy"].float())
    return dx[::64].clone(), dweight, dbias


def check(case, outputs, expected):  # mean and 1 / deviation are kept as bfloat16 between the passes
    rows = outputs[::64] if case["pass"] == "fwd" else (outputs[0][::64], *outputs[1:])
    return compare(rows, expected, rtol=2e-2, atol=2e-2)
