"""`abprof list`: kernel packages, workloads and cells of the working tree."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec

from abprof import devices, paths, proc, repo
from abprof.config import Config, File, read_file
from abprof.model import Cell, Workload
from abprof.survey import find_workloads, survey
from abprof.workshop import alone


def show(where: str, preset: str, workloads: tuple[str, ...], device: tuple[str, ...], *, json: bool) -> str:
    """The listing as text, or as one JSON object. Raises AbprofError."""
    cache = paths.cache_dir()
    root = Path(repo.open_repository(Path(where), cache=cache).path)
    file = read_file(root) or File()
    config = Config(specs=(".",), preset=preset, workloads=workloads, device=device).under(file)
    found_loads, cells = _survey(root, config, cache)
    kernels = sorted(set(file.kernels) | {p.name for p in (root / "kernels").glob("*") if (p / "__init__.py").exists()})
    if json:
        loose = {"kernels": kernels, "workloads": found_loads, "cells": cells}
        return msgspec.json.encode(loose).decode()
    lines = ["kernel packages: " + (", ".join(kernels) or "none")]
    for load in found_loads:
        mine = [cell for cell in cells if cell.workload == load.name]
        lines += ["", f"{load.name} (kernel {load.kernel}; axes {', '.join(load.axes)}): {load.text}"]
        lines += [f"  {cell.id}" + (f"  (unsupported: {cell.skip})" if cell.skip else "") for cell in mine]
    lines += ["", f"{len(cells)} {'cell' if len(cells) == 1 else 'cells'} in preset {config.preset}"]
    return "\n".join(lines)


def _survey(root: Path, config: Config, cache: Path) -> tuple[tuple[Workload, ...], tuple[Cell, ...]]:
    """Ask the workloads where they lie: nothing is copied, for nothing is measured."""
    chosen = devices.choose(config.device)
    file = config.file or File()
    files = find_workloads(root / (file.workloads or "workloads"), config.workloads)
    with proc.no_orphans(), tempfile.TemporaryDirectory() as scratch:
        worker = alone(config, cache, chosen.worker, Path(scratch))
        try:
            found = survey(worker, files, config, device=chosen.worker, kind=chosen.kind, timeout=config.timeout)
        finally:
            worker.stop()
    return found.workloads, found.cells
