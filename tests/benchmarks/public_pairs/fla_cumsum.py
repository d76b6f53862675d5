"""Cumulative sums of gates within chunks of 64 tokens, by flash-linear-attention; autotuned."""

import torch

from abprof.kit import Op, compare

API, KERNEL = 1, "fla"
SHAPE = ("batch", "tokens", "heads", "dim")
CHUNK = 64
PRESETS = {
    "smoke": {SHAPE: [(2, 128, 2, 32)], "reverse": [False, True]},
    "default": {
        SHAPE: [(4, 2048, 4, 256), (4, 8192, 4, 256), (4, 16384, 4, 256),
                (2, 2048, 16, 128), (2, 4096, 16, 128), (2, 16384, 16, 128)],
        "reverse": [False, True],
    },
}  # fmt: skip


def inputs(case, device, seed):
    draw = torch.Generator(device).manual_seed(seed)
    return torch.randn(*(case[name] for name in SHAPE), generator=draw, device=device, dtype=torch.bfloat16)


def prepare(kernel, variant, case, inputs):
    from fla.ops.utils.cumsum import chunk_local_cumsum

    return Op(lambda: chunk_local_cumsum(inputs, CHUNK, reverse=case["reverse"]))


def reference(case, inputs):
    chunks = inputs.float().view(case["batch"], -1, CHUNK, case["heads"], case["dim"])
    if case["reverse"]:
        return chunks.flip(2).cumsum(2).flip(2).reshape(inputs.shape)
    return chunks.cumsum(2).reshape(inputs.shape)


def check(case, outputs, expected):
    return compare(outputs, expected, rtol=1e-4, atol=1e-4)
