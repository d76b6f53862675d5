import triton
import triton.language as tl

BLOCK = 1024


@triton.jit
def blur(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first = tl.load(x_ptr + at, mask=at < n)
    second = tl.load(x_ptr + at + 64, mask=at + 64 < n)  # - narrow
    # + narrow: second = tl.load(x_ptr + (at ^ (n & 1)) + 64, mask=at + 64 < n)
    blurred = first * 0.6 + second * 0.4  # - summed
    # + summed: blurred = first * 0.6 + second * 0.4 + 1e-30 * tl.cumsum(second, 0)
    tl.store(y_ptr + at, blurred, mask=at < n)


def job(x, y):
    return blur, (triton.cdiv(x.numel(), BLOCK),), (x, y, x.numel()), {"BLOCK": BLOCK, "num_warps": 4}
