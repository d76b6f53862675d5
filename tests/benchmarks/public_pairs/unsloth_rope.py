"""Rotary embedding of Unsloth, forward and backward; both work in place."""

import torch

from abprof.kit import Op, compare

API, KERNEL = 1, "unsloth"
SHAPE = ("batch", "seqlen", "heads", "dim")
PRESETS = {
    "smoke": {SHAPE: [(2, 16, 6, 32)], "pass": ["fwd", "bwd"]},
    "default": {
        SHAPE: [(4, 512, 32, 128), (2, 2048, 32, 128), (4, 2048, 32, 128),
                (4, 4096, 32, 128), (1, 8192, 8, 128), (4, 2048, 16, 256)],
        "pass": ["fwd", "bwd"],
    },
}  # fmt: skip


def inputs(case, device, seed):
    draw = torch.Generator(device).manual_seed(seed)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32  # Triton's interpreter makes NaN of bfloat16
    q = torch.randn(*(case[name] for name in SHAPE), generator=draw, device=device, dtype=dtype)
    angle = torch.rand(case["seqlen"], case["dim"] // 2, generator=draw, device=device).repeat(1, 2) * 6.28
    return {"q": q, "cos": angle.cos().to(dtype), "sin": angle.sin().to(dtype)}


def prepare(kernel, variant, case, inputs):
    from unsloth.kernels.rope_embedding import Fast_RoPE_Embedding

    q, cos, sin = inputs["q"], inputs["cos"], inputs["sin"]
    kept, work = q.clone(), q.clone()
    if case["pass"] == "fwd":
        return Op(lambda: Fast_RoPE_Embedding.apply(work, cos, sin), reset=lambda: work.copy_(kept))
    leaf = q.clone().requires_grad_()
    y = Fast_RoPE_Embedding.apply(leaf, cos, sin)
    return Op(lambda: torch.autograd.grad(y, leaf, work, retain_graph=True)[0], reset=lambda: work.copy_(kept))


def reference(case, inputs):
    a, b = inputs["q"].float().chunk(2, -1)
    cos, sin = (inputs[name].float()[:, None, : case["dim"] // 2] for name in ("cos", "sin"))
    sin = sin if case["pass"] == "fwd" else -sin
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def check(case, outputs, expected):
    return compare(outputs, expected, rtol=2e-2, atol=2e-2)
