import triton
import triton.language as tl

BLOCK = 2048


@triton.jit
def add_two(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) + 2.0, mask=at < n)


def job(x, y):
    return add_two, (triton.cdiv(x.numel(), BLOCK),), (x, y, x.numel()), {"BLOCK": BLOCK, "num_warps": 2}


def run(x, y):
    kernel, grid, args, options = job(x, y)
    kernel[grid](*args, **options)
