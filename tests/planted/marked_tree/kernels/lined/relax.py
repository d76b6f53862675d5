import triton
import triton.language as tl

BLOCK = 512
STEPS = 200


@triton.jit
def towards(value, goal):
    return value + (goal - value) * 0.5


@triton.jit
def relax(x_ptr, y_ptr, n, steps, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x_ptr + at, mask=at < n, other=0.0)
    for _ in range(steps):
        # + barrier: tl.debug_barrier()
        value = towards(value, 0.25)
    tl.store(y_ptr + at, value, mask=at < n)


def job(x, y):
    return relax, (triton.cdiv(x.numel(), BLOCK),), (x, y, x.numel(), STEPS), {"BLOCK": BLOCK, "num_warps": 8}
