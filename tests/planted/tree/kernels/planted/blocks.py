import triton
import triton.language as tl

BLOCK = 2048
OTHER = False


@triton.jit
def add_two(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) + 2.0, mask=at < n)


@triton.jit
def add_one_by_one(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """The same sum in 512 steps, one after the other."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x_ptr + at, mask=at < n)
    for _ in range(512):
        value += 2.0 / 512
    tl.store(y_ptr + at, value, mask=at < n)


def job(x, y):
    kernel = add_one_by_one if OTHER else add_two
    return kernel, (triton.cdiv(x.numel(), BLOCK),), (x, y, x.numel()), {"BLOCK": BLOCK, "num_warps": 2}


def run(x, y):
    kernel, grid, args, options = job(x, y)
    kernel[grid](*args, **options)
