import torch
import triton
import triton.language as tl

MAIN = 12
POST = 2
OPTIONS = {"BLOCK": 1024, "num_warps": 4}


@triton.jit
def smooth(x_ptr, y_ptr, n, steps, BLOCK: tl.constexpr):
    """As much arithmetic a value as `steps` says, which is no part of the code."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x_ptr + at, mask=at < n, other=0.0)
    for _ in range(steps * 16):
        value = value * 0.5 + 0.25
    tl.store(y_ptr + at, value, mask=at < n)


def job(x, y):
    return smooth, (triton.cdiv(x.numel(), OPTIONS["BLOCK"]),), (x, y, x.numel(), MAIN), OPTIONS


def run(x, y):
    kernel, grid, args, options = job(x, y)
    with torch.profiler.record_function("planted_main"):
        kernel[grid](*args, **options)
    with torch.profiler.record_function("planted_post"):
        kernel[grid](y, y, y.numel(), POST, **options)
