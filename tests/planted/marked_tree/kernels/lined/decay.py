import triton
import triton.language as tl

BLOCK = 256
STEPS = 512


@triton.jit
def decay(x_ptr, y_ptr, n, steps, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x_ptr + at, mask=at < n, other=0.0)
    # + not_unrolled: for _ in tl.range(0, steps, loop_unroll_factor=1):
    for _ in tl.static_range(STEPS):  # - not_unrolled
        value = value * 0.5 + 0.25  # = not_unrolled
    tl.store(y_ptr + at, value, mask=at < n)


def job(x, y):
    options = {"STEPS": STEPS, "BLOCK": BLOCK, "num_warps": 8}
    return decay, (triton.cdiv(x.numel(), BLOCK),), (x, y, x.numel(), STEPS), options
