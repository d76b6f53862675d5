"""What of abprof.toml holds for nothing in a run: most often a name that was not meant so."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from abprof.abprof_toml import File
from abprof.config import Config
from abprof.model import Workload
from abprof.waivers import of_some

_NAMED = 3  # that are told by name


def thresholds(config: Config, cells: Iterable[str], broken: Sequence[str] = ()) -> tuple[str, ...]:
    """A line on the patterns of the file's `[[threshold]]`s that match none of a run's cells; () where each matches one.

    Nothing is said of a run that was asked for a part of the matrix, nor of patterns for cells of `broken` workloads, which
    could not say what cells they have.
    """
    file = config.file
    if file is None or config.thresholds is not None or _in_part(config):
        return ()
    ids = tuple(cells)
    idle = [
        (file.lines.get(f"threshold.{number}.cells", 1), rule.cells)
        for number, rule in enumerate(file.threshold)
        if not any(fnmatchcase(id, rule.cells) for id in ids) and not of_some(rule.cells, broken)
    ]
    if not idle:
        return ()
    (line, first), *more = idle
    further = ", ".join(f"{cells!r} in line {line}" for line, cells in more[: _NAMED - 1])
    further += f" and {len(idle) - _NAMED} more" if len(idle) > _NAMED else ""
    also = f", nor {'do' if len(more) > 1 else 'does'} {further}" if more else ""
    return (f"{_name(file)}:{line}, [[threshold]]: {first!r} matches no cell of this run{also}",)


def packages(config: Config, workloads: Iterable[Workload], *, broken: bool) -> tuple[str, ...]:
    """A line on the file's `[kernels.NAME]`s that no workload of the run is for; () where each has one, where the run was asked
    for a part, and where a workload is `broken`: which package that is for, nobody knows."""
    file = config.file
    if file is None or broken or _in_part(config):
        return ()
    there = {load.kernel for load in workloads}
    idle = [name for name in file.kernels if name not in there]
    if not idle:
        return ()
    line = file.lines.get(f"kernels.{idle[0]}", 1)
    tables = ", ".join(f"[kernels.{_shown(name)}]" for name in idle[:_NAMED])
    tables += f" and {len(idle) - _NAMED} more" if len(idle) > _NAMED else ""
    has = "has" if len(idle) == 1 else "have"
    return (f"{_name(file)}:{line}, {tables} {has} no workload: the packages that workloads name are {_listed(there)}",)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(_shown, sorted(filter(None, names)))) or "none"


def _shown(name: str) -> str:
    return name if name.isprintable() else ascii(name)


def _in_part(config: Config) -> bool:
    """Whether the run was asked for less than all workloads' cells of a preset."""
    folder = config.workloads_from and not re.fullmatch(r"base|target\d*", config.workloads_from)
    return bool(config.only or config.cell or config.set or config.kernels or config.workloads or folder)


def _name(file: File) -> str:
    """The file for a page, which may be read elsewhere."""
    return Path(file.name).name if file.name.startswith("/") else file.name
