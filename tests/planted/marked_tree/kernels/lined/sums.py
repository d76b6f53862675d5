import triton
import triton.language as tl

BLOCK = 256
TERMS = 16


@triton.jit
def sums(x_ptr, y_ptr, count_ptr, stride, TERMS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for term in tl.static_range(TERMS):
        total += tl.load(x_ptr + term * stride + at)
    # + counter: tl.atomic_add(count_ptr + at % 256, 1.0)
    # + sorted: total += 1e-30 * tl.sort(total)
    tl.store(y_ptr + at, total)


def job(x, y):
    stride = x.numel() // TERMS
    return sums, (stride // BLOCK,), (x, y, y[-256:], stride), {"TERMS": TERMS, "BLOCK": BLOCK, "num_warps": 4}
