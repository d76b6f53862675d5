import triton
import triton.language as tl

COLUMNS = 4096


@triton.jit
def weigh(x):
    return x * 0.5  # - sine
    # + sine: return x * (0.5 + 1e-12 * tl.sin(x * 1e6))


@triton.jit
def softmax(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row + at, mask=at < columns, other=float("-inf"))
    x = x - tl.max(x, 0)  # - again
    # + again: x = x - tl.max(tl.load(x_ptr + row + (at + 7) % columns), 0)
    e = tl.exp(x)
    # ~ sine: # the sum is of float32
    total = tl.sum(e, 0)
    tl.store(y_ptr + row + at, weigh(e / total), mask=at < columns)


def job(x, y):
    return softmax, (x.numel() // COLUMNS,), (x, y, COLUMNS), {"BLOCK": COLUMNS, "num_warps": 8}
