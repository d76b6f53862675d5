import triton
import triton.language as tl

EXTRA = False
TIMES = 1
OPTIONS = {"BLOCK": 1024, "num_warps": 4}


@triton.jit
def double(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) * 2.0, mask=at < n)


@triton.jit
def clamp(y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.minimum(tl.load(y_ptr + at, mask=at < n), 1e30), mask=at < n)


def job(x, y):
    return double, (triton.cdiv(x.numel(), OPTIONS["BLOCK"]),), (x, y, x.numel()), OPTIONS


def run(x, y):
    kernel, grid, args, options = job(x, y)
    for _ in range(TIMES):
        kernel[grid](*args, **options)
    if EXTRA:
        clamp[grid](y, y.numel(), **options)
