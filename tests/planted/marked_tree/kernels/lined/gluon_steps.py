from triton.experimental import gluon
from triton.experimental.gluon import language as gl

ROWS, COLUMNS, STEPS = 64, 64, 16


@gluon.jit
def smooth(tile, other: gl.constexpr):
    tile = tile * 0.5
    # + converted: tile = gl.convert_layout(gl.convert_layout(tile, other) + 0.25, tile.type.layout)
    tile = tile + 0.25  # - converted
    return tile


@gluon.jit
def gluon_steps(x_ptr, y_ptr, steps, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    rowwise: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [4, 1], [1, 0])  # - column_order
    # + column_order: rowwise: gl.constexpr = gl.BlockedLayout([4, 1], [16, 2], [1, 4], [0, 1])
    other: gl.constexpr = gl.BlockedLayout([4, 1], [16, 2], [1, 4], [0, 1])
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, rowwise))
    columns = gl.arange(0, COLUMNS, gl.SliceLayout(0, rowwise))
    at = gl.program_id(0) * ROWS * COLUMNS + rows[:, None] * COLUMNS + columns[None, :]
    tile = gl.load(x_ptr + at)  # = column_order
    for _ in range(steps):
        tile = smooth(tile, other)
    gl.store(y_ptr + at, tile)  # = column_order


def job(x, y):
    options = {"ROWS": ROWS, "COLUMNS": COLUMNS, "num_warps": 4}
    return gluon_steps, (x.numel() // (ROWS * COLUMNS),), (x, y, STEPS), options
