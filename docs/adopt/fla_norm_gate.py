"""Root-mean-square norm under a swish gate, with which layers of flash-linear-attention end."""

import torch

from abprof.kit import Op, compare

API, KERNEL, SUITE = 1, "fla", "fla"
PRESETS = {"smoke": {"tokens": [256], "dim": [128]}, "default": {"tokens": [1 << 20], "dim": [128, 256]}}


def inputs(case, device, seed):
    draw = torch.Generator(device).manual_seed(seed)
    return torch.randn(2, case["tokens"], case["dim"], generator=draw, device=device, dtype=torch.bfloat16)


def prepare(kernel, variant, case, inputs):
    from fla.modules.fused_norm_gate import rms_norm_gated

    weight = torch.ones(case["dim"], device=inputs.device)
    return Op(lambda: rms_norm_gated(inputs[0], inputs[1], weight, None))


def reference(case, inputs):  # of every 64th token: a whole one would be written and read for seconds
    x, gate = inputs[:, ::64].float()
    return torch.nn.functional.rms_norm(x, (case["dim"],), None, 1e-6) * torch.nn.functional.silu(gate)


def check(case, outputs, expected):
    return compare(outputs[::64], expected, rtol=1e-2, atol=1e-2)
