import triton
import triton.language as tl

SIDE = 4096
EXACT = tl.constexpr(False)
LOOP_STAGES = tl.constexpr(None)
OPTIONS = {"TILE": 128, "DEPTH": 64, "num_warps": 8, "num_stages": 3}


@triton.jit
def matmul(a_ptr, b_ptr, c_ptr, side, TILE: tl.constexpr, DEPTH: tl.constexpr):
    """c = a @ b, both of bf16, square, row by row."""
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    depth = tl.arange(0, DEPTH)
    total = tl.zeros((TILE, TILE), tl.float32)
    for k in tl.range(0, side, DEPTH, num_stages=LOOP_STAGES):
        a = tl.load(a_ptr + rows[:, None] * side + k + depth[None, :])
        b = tl.load(b_ptr + (k + depth[:, None]) * side + columns[None, :])
        if EXACT:
            total += tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
        else:
            total += tl.dot(a, b)
    tl.store(c_ptr + rows[:, None] * side + columns[None, :], total.to(tl.bfloat16))


def job(x, y):
    a = x.view(-1)[: SIDE * SIDE]
    return matmul, (SIDE // OPTIONS["TILE"], SIDE // OPTIONS["TILE"]), (a, a, y, SIDE), OPTIONS


def run(x, y):
    kernel, grid, args, options = job(x, y)
    kernel[grid](*args, **options)
