import triton
import triton.language as tl

TWICE = False
COPIED = False
OPTIONS = {"BLOCK": 1024, "num_warps": 4, "num_stages": 1}


@triton.jit
def largest_first(row_ptr, columns, BLOCK: tl.constexpr):
    """The row's largest value, by a pass of its own over memory."""
    at = tl.arange(0, BLOCK)
    most = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        most = tl.maximum(most, tl.load(row_ptr + start + at, mask=start + at < columns, other=0.0))
    return tl.max(most)


@triton.jit
def no_pass(row_ptr, columns, BLOCK: tl.constexpr):
    return 0.0


before = largest_first if TWICE else no_pass


@triton.jit
def row_sums(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row_ptr = x_ptr + tl.program_id(0).to(tl.int64) * columns
    at = tl.arange(0, BLOCK)
    shift = before(row_ptr, columns, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        total += tl.load(row_ptr + start + at, mask=start + at < columns, other=0.0)
    tl.store(y_ptr + tl.program_id(0), tl.sum(total) + shift * 1e-30)


COLUMNS = 1 << 16


def job(x, y):
    return row_sums, (x.numel() // COLUMNS,), (x, y, COLUMNS), OPTIONS


def run(x, y):
    kernel, grid, args, options = job(x * 1.0 if COPIED else x, y)
    kernel[grid](*args, **options)
