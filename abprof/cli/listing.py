"""`abprof list`: kernel packages, workloads and cells of the working tree."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec

from abprof import devices
from abprof import sides as repo
from abprof.builds import exists
from abprof.builds.worker_factory import alone
from abprof.measure.discovery import Survey, find_workloads, survey
from abprof.records import Workload
from abprof.records.options import File, Options
from abprof.records.visible import visible
from abprof.system import paths
from abprof.system import processes as proc
from abprof.system.config_file import read_file


def show(where: str, preset: str, workloads: tuple[str, ...], device: tuple[str, ...], *, json: bool) -> str:
    """The listing as text, or as one JSON object. Raises AbprofError."""
    cache = paths.cache_dir()
    root = Path(repo.open_repository(Path(where), cache=cache).path)
    file = read_file(root) or File()
    config = Options(specs=(".",), preset=preset, workloads=workloads, device=device).under(file)
    found = _survey(root, config, cache)
    kernels = _kernels(root, file)
    if json:
        broken = {cell.removesuffix("/"): failure.reason for cell, failure in found.broken.items()}
        loose = {"kernels": kernels, "workloads": found.workloads, "cells": found.cells, "broken": broken}
        return msgspec.json.encode(loose).decode()
    lines = ["kernel packages: " + (", ".join(kernels) or "none")]
    for load in found.workloads:
        lines += ["", *_workload(load, found, config.preset)]
    count = len(found.cells) - len(found.broken)
    lines += ["", f"{count} {'cell' if count == 1 else 'cells'} in preset {config.preset}"]
    return "\n".join(map(visible, lines))


def _kernels(root: Path, file: File) -> list[str]:
    """Those that abprof.toml names, and those of the conventional layout that a run would find."""
    python = (path.relative_to(root / "kernels") for path in (root / "kernels").rglob("*.py"))
    names = {path.parts[0].removesuffix(".py") for path in python}
    there = {name for name in names if not name.startswith(("_", ".")) and exists(root, file.package(name))}
    return sorted(there | set(file.kernels))


def _workload(load: Workload, found: Survey, preset: str) -> list[str]:
    failure = found.broken.get(f"{load.name}/")
    if failure:
        return [f"{load.name}: broken: {failure.reason}"]
    head = f"{load.name} (kernel {load.kernel}; axes {', '.join(load.axes)}): {load.text}"
    if load.name in found.empty:
        return [head, f"  no cell in preset {preset}"]
    mine = [cell for cell in found.cells if cell.workload == load.name]
    return [head, *(f"  {cell.id}" + (f"  (unsupported: {cell.skip})" if cell.skip else "") for cell in mine)]


def _survey(root: Path, config: Options, cache: Path) -> Survey:
    """Ask the workloads where they lie: nothing is copied, for nothing is measured."""
    chosen = devices.choose(config.device)
    file = config.file or File()
    files = find_workloads(root / (file.workloads or "workloads"), config.workloads)
    with proc.no_orphans(), tempfile.TemporaryDirectory() as scratch:
        worker = alone(config, cache, chosen.worker, Path(scratch))
        try:
            return survey(worker, files, config, device=chosen.worker, kind=chosen.kind, timeout=config.timeout)
        finally:
            worker.stop()
