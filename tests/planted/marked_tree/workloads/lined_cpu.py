"""Five loops over a matrix, each with one line that a branch changes."""

import torch

from abprof.kit import Op, compare

API = 1
KERNEL = "lined_cpu"
SUITE = "lined_cpu"
ROWS, COLUMNS = 1024, 1024
PARTS = ["squash", "norms", "turned", "scaled", "sorted_rows"]
PRESETS = {"default": {"part": PARTS}}


def inputs(case, device, seed):
    made = torch.Generator().manual_seed(seed)
    return torch.rand(ROWS, COLUMNS, generator=made) * 1e-3


def prepare(kernel, variant, case, x):
    y = torch.zeros_like(x)
    return Op(lambda: kernel.call(case["part"], x, y, ROWS, COLUMNS))


def reference(case, x):
    x, part = x.double(), case["part"]
    if part == "norms":
        y = torch.zeros_like(x)
        y.view(-1)[:ROWS] = (x * x).sum(1)
        return y
    if part == "scaled":
        v = x
        for _ in range(8):
            v = v / COLUMNS + x
        return v
    if part == "sorted_rows":
        return x.view(-1, 32).cummax(1).values.view_as(x)
    return x * 0.5 + 1 if part == "turned" else x / (1 + x.abs())


def check(case, outputs, expected):
    return compare(outputs, expected, rtol=1e-2, atol=1e-5)
