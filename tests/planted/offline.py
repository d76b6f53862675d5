"""Compile both sides of every planted branch for sm_90a on a machine without a GPU.

    TRITON_CACHE_DIR=FOLDER python -m tests.planted.offline FOLDER [branch ...]

A process of its own, because it makes `OfflineDriver` Triton's driver. Prints one JSON object: branch -> side -> what a
worker would tell of its kernels (wire.Compiled), and the grid.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
from triton.runtime import driver

from abprof.worker.compiles import Watch
from tests import planted
from tests.kernels.offline_driver import OfflineDriver
from tests.planted import marked


def main(folder: Path, names: list[str]) -> None:
    driver.set_active(OfflineDriver())
    compiled = {name: {side: _side(folder, name, side) for side in ("base", "target")} for name in names}
    print(json.dumps(compiled))


def _side(folder: Path, name: str, side: str) -> dict[str, Any]:
    """One side's changed part, as its worker would import and compile it."""
    root = folder / f"{name}_{side}"
    lined = name in marked.BRANCHES
    files = marked.files([name] if side == "target" else None, "triton") if lined else planted.files()
    files |= planted.changed(name) if side == "target" and not lined else {}
    package, changed = ("lined", marked.BRANCHES[name].part) if lined else ("planted", planted.BRANCHES[name].part)
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    sys.path.insert(0, str(root / "kernels"))
    for known in [module for module in sys.modules if module.partition(".")[0] == package]:
        del sys.modules[known]
    part = importlib.import_module(f"{package}.{changed}")
    sys.path.pop(0)
    watch = Watch()
    watch.install()
    dtype = torch.bfloat16 if changed == "matmul" else torch.float32
    x = torch.empty(4096 * 4096, dtype=dtype)
    kernel, grid, args, options = part.job(x, torch.empty_like(x))
    kernel.warmup(*args, grid=grid, **options)
    if getattr(part, "EXTRA", False):
        part.clamp.warmup(x, x.numel(), grid=grid, **options)
    return {"grid": list(grid), "kernels": [dataclasses.asdict(one) for one in watch.kernels.values()]}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or list(planted.COMPILED))
