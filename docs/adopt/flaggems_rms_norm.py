"""Root-mean-square norm of wide rows by FlagGems."""

import torch

from abprof.kit import Op, compare

API, KERNEL, SUITE = 1, "flag_gems", "flaggems"
PRESETS = {"smoke": {"rows": [256], "width": [512]}, "default": {"rows": [8192], "width": [8192, 16384]}}


def inputs(case, device, seed):
    draw = torch.Generator(device).manual_seed(seed)
    return torch.randn(case["rows"] + 1, case["width"], generator=draw, device=device, dtype=torch.bfloat16)


def prepare(kernel, variant, case, inputs):
    from flag_gems.ops.rms_norm import rms_norm

    return Op(lambda: rms_norm(inputs[:-1], [case["width"]], inputs[-1], 1e-6))


def reference(case, inputs):
    return torch.nn.functional.rms_norm(inputs[:-1:64].float(), (case["width"],), inputs[-1].float(), 1e-6)


def check(case, outputs, expected):
    return compare(outputs[::64], expected, rtol=1e-2, atol=1e-2)
