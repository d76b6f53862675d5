"""Rotary embedding of flash-attention."""

import torch

from abprof.kit import Op, compare

API, KERNEL = 1, "rotary"
SHAPE = ("batch", "seqlen", "heads", "dim", "rotary")
PRESETS = {
    "smoke": {SHAPE: [(2, 32, 4, 32, 32)], "interleaved": [False, True]},
    "default": {
        SHAPE: [
            (8, 1024, 16, 64, 64), (2, 2048, 32, 128, 128), (8, 2048, 32, 128, 128), (1, 8192, 8, 128, 128),
            (4, 2048, 32, 128, 64), (4, 4096, 16, 256, 256),
        ],
        "interleaved": [False, True],
    },
}  # fmt: skip


def inputs(case, device, seed):
    draw = torch.Generator(device).manual_seed(seed)
    shape = case["batch"], case["seqlen"], case["heads"], case["dim"]
    x = torch.randn(*shape, generator=draw, device=device, dtype=torch.bfloat16)
    angle = torch.rand(case["seqlen"], case["rotary"] // 2, generator=draw, device=device) * 6.28
    return {"x": x, "cos": angle.cos().bfloat16(), "sin": angle.sin().bfloat16()}


def prepare(kernel, variant, case, inputs):
    x, cos, sin = inputs["x"], inputs["cos"], inputs["sin"]
    return Op(lambda: kernel.apply_rotary(x, cos, sin, interleaved=case["interleaved"]))


def reference(case, inputs):
    x, cos, sin = (inputs[name].float() for name in ("x", "cos", "sin"))
    turned, rest = x[..., : case["rotary"]], x[..., case["rotary"] :]
    cos, sin = cos[:, None], sin[:, None]
    if case["interleaved"]:
        a, b = turned[..., ::2], turned[..., 1::2]
        turned = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    else:
        a, b = turned.chunk(2, -1)
        turned = torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
    return torch.cat([turned, rest], -1)


def check(case, outputs, expected):
    return compare(outputs, expected, rtol=1e-2, atol=1e-2)
