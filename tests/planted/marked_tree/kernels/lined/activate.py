import triton
import triton.language as tl

BLOCK = 1024
STEPS = 64


@triton.jit
def gate(value):
    """A helper: what it costs is charged to its own lines, not to its caller's."""
    lower = tl.minimum(value, 1.0)  # - special, double
    # + special: lower = tl.minimum(tl.log(tl.exp(value)), 1.0)
    # + double: lower = tl.minimum((value.to(tl.float64) + 1e-9).to(tl.float32), 1.0)
    return lower * 0.5 + 0.25


@triton.jit
def activate(x_ptr, y_ptr, n, steps, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x_ptr + at, mask=at < n, other=0.0)
    # ~ special: # the gate is exact now
    for _ in range(steps):
        value = gate(value)
    tl.store(y_ptr + at, value, mask=at < n)


def job(x, y):
    return activate, (triton.cdiv(x.numel(), BLOCK),), (x, y, x.numel(), STEPS), {"BLOCK": BLOCK, "num_warps": 4}
