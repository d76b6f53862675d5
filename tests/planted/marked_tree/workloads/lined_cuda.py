"""Three CUDA C++ kernels, each with one line that a branch changes."""

import torch

from abprof.kit import Op, compare

API = 1
KERNEL = "lined_cuda"
SUITE = "lined_cuda"
N = 1 << 26
PRESETS = {"default": {"part": ["copied", "averaged", "picked"]}}


def inputs(case, device, seed):
    torch.manual_seed(seed)
    return torch.rand(N, device=device)


def prepare(kernel, variant, case, x):
    y = torch.zeros_like(x)
    return Op(lambda: kernel.call(case["part"], x, y))


def reference(case, x):
    if case["part"] == "copied":
        return x
    if case["part"] == "averaged":
        return x.view(-1, 256).sum(1, keepdim=True).expand(-1, 256).reshape(-1)
    total = torch.zeros_like(x)
    for step in range(64):
        total = total * 0.5 + x * float(step % 16 + 1)
    return total


def check(case, outputs, expected):
    return compare(outputs, expected, rtol=1e-3, atol=1e-4)
