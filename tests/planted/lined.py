"""Changes that are planted at a line of a Triton kernel: which line is to blame is known. Each branch also changes code
that no row runs, so the diff alone does not show which of its hunks is meant.

    TRITON_CACHE_DIR=FOLDER python -m tests.planted.lined FOLDER [branch ...]

compiles both sides of each branch for sm_90a without a GPU, and prints one JSON object: branch -> side -> grid, kernels.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE, LAUNCH = "kernels/lined/kernels.py", "kernels/lined/__init__.py"
KERNELS = """
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@triton.jit
def unused(x_ptr, y_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at))


@triton.jit
def weigh(x):
    return x * 0.5


@triton.jit
def softmax(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row + at, mask=at < columns, other=float("-inf"))
    x = x - tl.max(x, 0)
    e = tl.exp(x)
    total = tl.sum(e, 0)
    tl.store(y_ptr + row + at, weigh(e / total), mask=at < columns)


@triton.jit
def gemm(x_ptr, y_ptr, size, TILE: tl.constexpr, DEPTH: tl.constexpr):
    down = tl.program_id(0) * TILE + tl.arange(0, TILE)
    across = tl.program_id(1) * TILE + tl.arange(0, TILE)
    deep = tl.arange(0, DEPTH)
    total = tl.zeros((TILE, TILE), tl.float32)
    for start in range(0, size, DEPTH):
        a = tl.load(x_ptr + down[:, None] * size + start + deep[None, :])
        b = tl.load(x_ptr + (start + deep[:, None]) * size + across[None, :])
        total += tl.dot(a, b)
    out = y_ptr + down[:, None] * size + across[None, :]
    tl.store(out, total)


@triton.jit
def blur(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first = tl.load(x_ptr + at, mask=at < n)
    second = tl.load(x_ptr + at + 64, mask=at + 64 < n)
    blurred = first * 0.6 + second * 0.4
    tl.store(y_ptr + at, blurred, mask=at < n)


@triton.jit
def gather(x_ptr, y_ptr, n, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for row in range(ROWS):
        x = tl.load(x_ptr + row * n + at)
        total += x * x
    tl.store(y_ptr + at, total)


@gluon.jit
def glu(x_ptr, y_ptr, n, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([4], [32], [4], [0])
    other: gl.constexpr = gl.BlockedLayout([2], [32], [4], [0])
    at = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    x = gl.load(x_ptr + at, mask=at < n)
    y = x * 0.5
    gl.store(y_ptr + at, y, mask=at < n)
"""
INIT = """
from . import kernels

MAIN = {"num_warps": 4}


def softmax(x, y):
    return kernels.softmax, (x.numel() // 4096,), (x, y, 4096), {"BLOCK": 4096, "num_warps": 8}


def gemm(x, y):
    side = int(x.numel() ** 0.5)
    return kernels.gemm, (side // 128, side // 128), (x, y, side), {"TILE": 128, "DEPTH": 64, "num_warps": 8, "num_stages": 3}


def blur(x, y):
    return kernels.blur, (x.numel() // 1024,), (x, y, x.numel()), {"BLOCK": 1024, **MAIN}


def gather(x, y):
    n = x.numel() // 16
    return kernels.gather, (n // 2048,), (x, y, n), {"BLOCK": 2048, "ROWS": 16, **MAIN}


def glu(x, y):
    return kernels.glu, (x.numel() // 4096,), (x, y, x.numel()), {"BLOCK": 4096, **MAIN}


def run(part, x, y):
    kernel, grid, args, options = globals()[part](x, y)
    kernel[grid](*args, **options)
    return y
"""

WORKLOAD = """
import torch

from abprof.worker.api import Op, compare

API = 1
KERNEL = "lined"
SUITE = "lined"
PRESETS = {"default": {"part": ["softmax", "gemm", "blur", "gather", "glu"]}}


def inputs(case, device, seed):
    torch.manual_seed(seed)
    x = torch.randn(1 << 24, device=device)
    return x.to(torch.bfloat16) / 64 if case["part"] == "gemm" else x


def prepare(kernel, variant, case, x):
    y = torch.zeros(x.numel() // (16 if case["part"] == "gather" else 1), device=x.device)
    return Op(lambda: kernel.run(case["part"], x, y))


def reference(case, x):
    part = case["part"]
    if part == "softmax":
        return x.view(-1, 4096).softmax(1).view(-1) / 2
    if part == "gemm":
        return (x.float().view(4096, 4096) @ x.float().view(4096, 4096)).view(-1)
    if part == "blur":
        return 0.6 * x + 0.4 * torch.cat([x[64:], x[:64] * 0])
    return (x * x).view(16, -1).sum(0) if part == "gather" else x / 2


def check(case, y, expected):
    return compare(y[: (1 << 20)], expected[: (1 << 20)], rtol=1e-2, atol=1e-2)
"""


@dataclass(frozen=True)
class Line:
    """A branch: the kernel, the changed text, the kinds of cause that may be named, and text of the line to blame."""

    part: str
    old: str
    new: str
    kinds: tuple[str, ...]
    at: str
    file: str = FILE


BRANCHES = {
    "double": Line(
        "softmax",
        "e = tl.exp(x)",
        "e = tl.exp(x.to(tl.float64)).to(tl.float32)",
        ("arithmetic", "kernel", "spills", "memory"),
        "e = tl.exp",
    ),
    "sine": Line(
        "softmax",
        "return x * 0.5",
        "return x * (0.5 + 1e-12 * tl.sin(x * 1e6))",
        ("kernel", "spills", "memory"),
        "tl.sin",
    ),
    "again": Line(
        "softmax",
        "x = x - tl.max(x, 0)",
        "x = x - tl.max(tl.load(x_ptr + row + (at + 7) % columns), 0)",
        ("memory",),
        "x - tl.max",
    ),
    "exact": Line(
        "gemm",
        "tl.dot(a, b)",
        "tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision='ieee')",
        ("tensor",),
        "tl.dot",
    ),
    "exchanged": Line(
        "gemm", "tl.store(out, total)", "tl.atomic_xchg(out, total)", ("memory", "kernel"), "tl.atomic_xchg"
    ),
    "barrier": Line(
        "gather",
        "        total += x * x",
        "        tl.debug_barrier()\n        total += x * x",
        ("barriers", "kernel"),
        "barrier()",
    ),
    "narrow": Line("blur", "x_ptr + at + 64,", "x_ptr + (at ^ (n & 1)) + 64,", ("memory",), "second = tl.load"),
    "summed": Line(
        "blur",
        "second * 0.4",
        "second * 0.4 + 1e-30 * tl.cumsum(second, 0)",
        ("shared", "kernel", "memory"),
        "blurred = ",
    ),
    "sorted": Line(
        "gather",
        "total += x * x",
        "total += x * x + 1e-30 * tl.sort(x)",
        ("shared", "kernel", "spills", "memory"),
        "tl.sort",
    ),
    "layout": Line("glu", "[4], [32], [4]", "[1], [32], [4]", ("memory",), "BlockedLayout([1]"),
    "converted": Line(
        "glu",
        "y = x * 0.5",
        "y = gl.convert_layout(gl.convert_layout(x, other) * 0.5, layout)",
        ("shared", "kernel"),
        "gl.convert_layout",
    ),
}
_DECOY = """    # by two
    at = 2 * tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at))
    tl.store(y_ptr + at + 1, 0.0)"""


def files(*branches: str) -> dict[str, str]:
    """path -> content of base, or of a branch with these changes. Raises ValueError if base lacks the text to replace."""
    made = {FILE: KERNELS, LAUNCH: INIT, "workloads/lined.py": WORKLOAD}
    for line in (BRANCHES[branch] for branch in dict.fromkeys(branches) if branch in BRANCHES):
        if made[line.file].count(line.old) != 1:
            raise ValueError(f"{line.file} has {line.old!r} {made[line.file].count(line.old)} times, not once")
        made[line.file] = made[line.file].replace(line.old, line.new)
    if any(branches):
        unused = "    at = tl.arange(0, BLOCK)\n    tl.store(y_ptr + at, tl.load(x_ptr + at))"
        made[FILE] = made[FILE].replace(unused, _DECOY)
    return made


def lines_of(branch: str, *others: str) -> set[str]:
    """Return the FILE:LINE of the target that are to blame; `others`: further changes of the same branch."""
    line = BRANCHES[branch]
    return {f"{line.file}:{number}" for number, text in enumerate(files(branch, *others)[line.file].splitlines(), 1)
            if line.at in text}  # fmt: skip


def _side(folder: Path, name: str, side: str) -> dict[str, Any]:
    import torch

    from abprof.worker.compiles import Watch

    root = folder / f"{name}_{side}"
    for path, text in files(name if side == "target" else "").items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    sys.path.insert(0, str(root / "kernels"))
    for known in [module for module in sys.modules if module.partition(".")[0] == "lined"]:
        del sys.modules[known]
    package = importlib.import_module("lined")
    sys.path.pop(0)
    watch, part = Watch(), BRANCHES[name].part
    watch.install()
    x = torch.empty(4096 * 4096, dtype=torch.bfloat16 if part == "gemm" else torch.float32)
    kernel, grid, args, options = getattr(package, part)(x, torch.empty(x.shape))
    kernel.warmup(*args, grid=grid, **options)
    return {"grid": list(grid), "kernels": [dataclasses.asdict(one) for one in watch.kernels.values()]}


if __name__ == "__main__":
    from triton.runtime import driver

    from tests.kernels.offline_driver import OfflineDriver

    driver.set_active(OfflineDriver())
    names = sys.argv[2:] or list(BRANCHES)
    print(
        json.dumps(
            {name: {side: _side(Path(sys.argv[1]), name, side) for side in ("base", "target")} for name in names}
        )
    )
