"""`abprof list`: kernel packages, workloads and cells of the working tree."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec

from abprof import devices, environment, paths, proc, repo
from abprof.config import Config, File, read_file, worker_argv
from abprof.harness import install
from abprof.model import Cell, Workload
from abprof.proc import Worker
from abprof.survey import find_workloads, survey


def show(where: str, preset: str, workloads: tuple[str, ...], device: tuple[str, ...], *, json: bool) -> str:
    """The listing as text, or as one JSON object. Raises AbprofError."""
    cache = paths.cache_dir()
    root = Path(repo.open_repository(Path(where), cache=cache).path)
    file = read_file(root) or File()
    found_loads, cells = _survey(
        root, file, Config(specs=(".",), preset=preset, workloads=workloads, device=device), cache
    )
    kernels = sorted(set(file.kernels) | {p.name for p in (root / "kernels").glob("*") if (p / "__init__.py").exists()})
    if json:
        loose = {"kernels": kernels, "workloads": found_loads, "cells": cells}
        return msgspec.json.encode(loose).decode()
    lines = ["kernel packages: " + (", ".join(kernels) or "none")]
    for load in found_loads:
        mine = [cell for cell in cells if cell.workload == load.name]
        lines += ["", f"{load.name} (kernel {load.kernel}; axes {', '.join(load.axes)}): {load.text}"]
        lines += [f"  {cell.id}" + (f"  (unsupported: {cell.skip})" if cell.skip else "") for cell in mine]
    lines += ["", f"{len(cells)} {'cell' if len(cells) == 1 else 'cells'} in preset {preset}"]
    return "\n".join(lines)


def _survey(root: Path, file: File, config: Config, cache: Path) -> tuple[tuple[Workload, ...], tuple[Cell, ...]]:
    """Ask the workloads where they lie: nothing is copied, for nothing is measured."""
    import os
    import sys

    chosen = devices.choose(config.device)
    files = find_workloads(root / (file.workloads or "workloads"), config.workloads)
    env, _ = environment.clean(os.environ, "user")
    with proc.no_orphans(), tempfile.TemporaryDirectory() as scratch:
        worker = Worker(
            worker_argv() or (sys.executable, "-P", str(install(cache))),
            env=environment.worker(env, Path(scratch), chosen.worker, {}),
            cwd=Path(scratch),
            log=Path(scratch) / "log",
            name="list",
        )
        try:
            found = survey(worker, files, config, device=chosen.worker, kind=chosen.kind, timeout=config.timeout)
        finally:
            worker.stop()
    return found.workloads, found.cells
