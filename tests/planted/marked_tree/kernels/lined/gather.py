import triton
import triton.language as tl

BLOCK = 256
STEPS = 16


@triton.jit
def place(at, step, width, two):
    """Where a value of this step lies."""
    return at + step * width  # - division
    # + division: return (2 * at + 2 * step * width) // two


@triton.jit
def gather(x_ptr, y_ptr, n, width, two, none, steps, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    weight = tl.load(x_ptr + at * 4)
    total = tl.zeros((BLOCK,), tl.float32)
    for step in range(steps):
        where = place(at, step, width, two)
        value = tl.load(x_ptr + where, mask=where < n, other=0.0)
        # + reload: weight = tl.load(x_ptr + at * 4 + step * none)
        total += value * weight
    # ~ reload: total = tl.maximum(total, 0.0)
    tl.store(y_ptr + at, total, mask=at < n)


def job(x, y):
    n, width = x.numel() // 4, BLOCK * 8 + 1
    return gather, (triton.cdiv(n, BLOCK),), (x, y, x.numel(), width, 2, 0, STEPS), {"BLOCK": BLOCK, "num_warps": 8}
