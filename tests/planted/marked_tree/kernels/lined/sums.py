import triton
import triton.language as tl

BLOCK = 256
TERMS = 16


@triton.jit
def sums(x_ptr, y_ptr, count_ptr, stride, terms, TERMS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    # + not_unrolled: for term in tl.range(0, terms, loop_unroll_factor=1):
    for term in tl.static_range(TERMS):  # - not_unrolled
        total += tl.load(x_ptr + term * stride + at)  # = not_unrolled
    # + counter: tl.atomic_add(count_ptr, 1.0)
    tl.store(y_ptr + at, total)


def job(x, y):
    stride = x.numel() // TERMS
    return sums, (stride // BLOCK,), (x, y, y[-1:], stride, TERMS), {"TERMS": TERMS, "BLOCK": BLOCK, "num_warps": 4}
