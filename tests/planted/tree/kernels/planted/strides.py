import triton
import triton.language as tl

ACROSS = False
SIDE = 8192
OPTIONS = {"BLOCK": 1024, "num_warps": 4}


@triton.jit(do_not_specialize=["step_row", "step_column"])
def triple(x_ptr, y_ptr, step_row, step_column, BLOCK: tl.constexpr):
    """Element by element; which of them a warp takes together is no part of the code."""
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = tl.program_id(0) * step_row + columns * step_column
    tl.store(y_ptr + at, tl.load(x_ptr + at) * 3.0)


def job(x, y):
    steps = (1, SIDE) if ACROSS else (SIDE, 1)
    return triple, (SIDE, SIDE // OPTIONS["BLOCK"]), (x, y, *steps), OPTIONS


def run(x, y):
    kernel, grid, args, options = job(x, y)
    kernel[grid](*args, **options)
