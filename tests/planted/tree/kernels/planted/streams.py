import functools

import torch
import triton
import triton.language as tl

BESIDE = True
OPTIONS = {"BLOCK": 1024, "num_warps": 4}
PROGRAMS = 60  # fewer than half of the multiprocessors: two of them run beside each other


@triton.jit
def halve_often(x_ptr, y_ptr, steps, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x_ptr + at)
    for _ in range(steps):
        value = value * 0.5 + 0.25
    tl.store(y_ptr + at, value)


@functools.cache
def beside():
    return torch.cuda.Stream()


def job(x, y):
    return halve_often, (PROGRAMS,), (x, y, 100_000), OPTIONS


def run(x, y):
    kernel, grid, args, options = job(x, y)
    half = PROGRAMS * options["BLOCK"]
    if BESIDE:
        beside().wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside()):
            kernel[grid](x[half:], y[half:], args[2], **options)
    kernel[grid](*args, **options)
    if BESIDE:
        torch.cuda.current_stream().wait_stream(beside())
    else:
        kernel[grid](x[half:], y[half:], args[2], **options)
