import triton
import triton.language as tl

OPTIONS = {"BLOCK": 4096, "num_warps": 4, "maxnreg": 128}


@triton.jit
def polynomial(x_ptr, y_ptr, n, steps, BLOCK: tl.constexpr):
    """32 values a thread, and as many inputs, that live through the whole loop."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    y = x
    for _ in range(steps):
        y = y * x + 0.5
    tl.store(y_ptr + at, y, mask=at < n)


def job(x, y):
    return polynomial, (triton.cdiv(x.numel(), OPTIONS["BLOCK"]),), (x, y, x.numel(), 48), OPTIONS


def run(x, y):
    kernel, grid, args, options = job(x, y)
    kernel[grid](*args, **options)
