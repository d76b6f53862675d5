"""Group norm by Liger Kernel, forward and backward."""

import torch

from abprof.kit import Op, compare

API, KERNEL = 1, "liger_kernel"
AXES = ("pass", "batch", "channels", "groups", "hidden")
SIZES = [(128, 32, 8, 512), (128, 128, 32, 512), (128, 512, 128, 512), (32, 256, 32, 1024),
         (64, 320, 32, 1024), (64, 256, 128, 4096), (512, 128, 32, 256), (256, 512, 32, 256)]  # fmt: skip
PRESETS = {
    "smoke": {AXES: [("fwd", 2, 8, 4, 48), ("bwd", 2, 8, 4, 48)]},
    "default": {AXES: [("fwd", *one) for one in SIZES] + [("bwd", *SIZES[i]) for i in (1, 2, 4, 6)]},
}
EPS = 1e-5


def inputs(case, device, seed):
    draw = torch.Generator(device).manual_seed(seed)
    shape = case["batch"], case["channels"], case["hidden"]
    x, dy = (torch.randn(*shape, generator=draw, device=device) for _ in range(2))
    weight, bias = (torch.randn(case["channels"], generator=draw, device=device) for _ in range(2))
    return {"x": x, "weight": weight, "bias": bias, "dy": dy}


def prepare(kernel, variant, case, inputs):
    from liger_kernel.ops.group_norm import group_norm_backward, group_norm_forward

    channels, groups = case["channels"], case["groups"]
    x, weight, bias = inputs["x"], inputs["weight"], inputs["bias"]
    if case["pass"] == "fwd":
        return Op(lambda: group_norm_forward(x, channels, groups, weight, bias, EPS)[0])
    _, _, mean, rstd, _ = group_norm_forward(x, channels, groups, weight, bias, EPS)
    return Op(lambda: group_norm_backward(inputs["dy"], x, weight, bias, mean, rstd, channels, groups))


def reference(case, inputs):
    x, weight, bias = (inputs[name].clone().requires_grad_() for name in ("x", "weight", "bias"))
    y = torch.nn.functional.group_norm(x, case["groups"], weight, bias, EPS)
    if case["pass"] == "fwd":
        return y.detach()
    return torch.autograd.grad(y, (x, weight, bias), inputs["dy"])


def check(case, outputs, expected):
    return compare(outputs, expected, rtol=1e-3, atol=1e-3)
