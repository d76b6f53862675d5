import triton
import triton.language as tl

FAR = False
LOADS = 16
OPTIONS = {"BLOCK": 1024, "num_warps": 4}


@triton.jit(do_not_specialize=["hop", "weight"])
def near_and_far(x_ptr, y_ptr, n, hop, weight, LOADS: tl.constexpr, BLOCK: tl.constexpr):
    """Each value with others `hop` apart, weighted: how far that is, is no part of the code. n is a power of two."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for i in tl.static_range(LOADS):
        total += tl.load(x_ptr + ((at + i * hop) & (n - 1)))
    tl.store(y_ptr + at, tl.load(x_ptr + at) + weight * total)


def job(x, y):
    hop = x.numel() // LOADS if FAR else 1
    return near_and_far, (x.numel() // OPTIONS["BLOCK"],), (x, y, x.numel(), hop, 0.0), {"LOADS": LOADS, **OPTIONS}


def run(x, y):
    kernel, grid, args, options = job(x, y)
    kernel[grid](*args, **options)
