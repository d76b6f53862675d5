import triton
import triton.language as tl

SIDE = 4096
OPTIONS = {"TILE": 128, "DEPTH": 32, "num_warps": 8, "num_stages": 3}


@triton.jit
def product(a_ptr, b_ptr, c_ptr, side, scale, TILE: tl.constexpr, DEPTH: tl.constexpr):
    """c = a @ b, both of float32, square, row by row."""
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    depth = tl.arange(0, DEPTH)
    total = tl.zeros((TILE, TILE), tl.float32)
    for k in range(0, side, DEPTH):
        a = tl.load(a_ptr + rows[:, None] * side + k + depth[None, :])
        b = tl.load(b_ptr + (k + depth[:, None]) * side + columns[None, :])
        # + dequantised: a = (a * scale).to(tl.bfloat16).to(tl.float32)
        total += tl.dot(a, b, input_precision="tf32")  # - three_products, exact
        # + three_products: total += tl.dot(a, b, input_precision="tf32x3")
        # + exact: total += tl.dot(a, b, input_precision="ieee")
        # + rescaled: total = tl.sqrt(total * total) * scale
    tl.store(c_ptr + rows[:, None] * side + columns[None, :], total)  # - exchanged
    # + exchanged: tl.atomic_xchg(c_ptr + rows[:, None] * side + columns[None, :], total)


def job(x, y):
    a, tiles = x.view(-1)[: SIDE * SIDE], SIDE // OPTIONS["TILE"]
    return product, (tiles, tiles), (a, a, y, SIDE, 1.0), OPTIONS
