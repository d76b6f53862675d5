"""Root-mean-square norm of rows by Liger Kernel: narrow rows (a head's queries) and wide ones (a layer's input)."""

import torch

from abprof.kit import Op, compare

API, KERNEL, SUITE = 1, "liger_kernel", "liger"
SIZES = ("rows", "width")
PRESETS = {"smoke": {SIZES: [(256, 128)]}, "default": {SIZES: [(1 << 20, 128), (16384, 8192)]}}


def inputs(case, device, seed):
    draw = torch.Generator(device).manual_seed(seed)
    return torch.randn(case["rows"] + 1, case["width"], generator=draw, device=device, dtype=torch.bfloat16)


def prepare(kernel, variant, case, inputs):
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    return Op(lambda: LigerRMSNormFunction.apply(inputs[:-1], inputs[-1], 1e-6))


def reference(case, inputs):  # of every 64th row: a whole one would be written and read for seconds
    return torch.nn.functional.rms_norm(inputs[:-1:64].float(), (case["width"],), inputs[-1].float(), 1e-6)


def check(case, outputs, expected):
    return compare(outputs[::64], expected, rtol=1e-2, atol=1e-2)
