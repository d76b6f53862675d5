"""What of abprof.toml holds for nothing in a run: most often a name that was not meant so."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from abprof.records import Workload
from abprof.records.options import File, Options
from abprof.system.waiver_file import matches_workload

_NAMED = 3  # that are told by name
_LONGEST = 80  # letters of a name: it may be anything that stands in a file
_COMMAND = "command/"  # how the cells of a command that times itself begin


def thresholds(config: Options, cells: Iterable[str], workloads: Iterable[str] = ()) -> tuple[str, ...]:
    """A line on the patterns of the file's `[[threshold]]`s that are most likely slips; () where none is.

    In a run of `workloads` these are the patterns of no workload: one that no cell of theirs matches may be meant for another
    preset, or another device's. Where a command is run they are those of `command/` that match nothing it printed. Nothing is
    said of a run that was asked for a part of the matrix.
    """
    file = config.file
    if file is None or config.thresholds is not None or _in_part(config):
        return ()
    ids, names = tuple(cells), tuple(workloads)
    idle = [
        (file.lines.get(f"threshold.{number}.cells", 1), _shown(repr(rule.cells)))
        for number, rule in enumerate(file.threshold)
        if rule.cells.startswith(_COMMAND) == bool(config.command)
        and not any(fnmatchcase(id, rule.cells) for id in ids)
        and not _of_some(rule.cells, names)
    ]
    if not idle:
        return ()
    (line, first), *more = idle
    further = ", ".join(f"{cells} in line {line}" for line, cells in more[: _NAMED - 1])
    further += f" and {len(idle) - _NAMED} more" if len(idle) > _NAMED else ""
    also = f", nor {'do' if len(more) > 1 else 'does'} {further}" if more else ""
    what = "no cell" if config.command else "no workload"
    return (f"{_name(file)}:{line}, [[threshold]]: {first} matches {what} of this run{also}",)


def _of_some(cells: str, workloads: Sequence[str]) -> bool:
    """Whether this pattern is for one of these workloads, whichever cells they have."""
    workload, slash, _ = cells.partition("/")
    if slash and "=" not in workload:  # else the slash is one of an axis's value
        return any(fnmatchcase(name, workload) for name in workloads)
    return matches_workload(cells, workloads)


def packages(config: Options, workloads: Iterable[Workload], *, broken: bool) -> tuple[str, ...]:
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
    first, more = (there := sorted(filter(None, names)))[:_NAMED], there[_NAMED:]
    return ", ".join(map(_shown, first)) + (f" and {len(more)} more" if more else "") or "none"


def _shown(name: str) -> str:
    plain = name if name.isprintable() else ascii(name)
    return plain if len(plain) <= _LONGEST else f"{plain[:_LONGEST]}..."


def _in_part(config: Options) -> bool:
    """Whether the run was asked for less than all workloads' cells of a preset."""
    folder = config.workloads_from and not re.fullmatch(r"base|target\d*", config.workloads_from)
    return bool(config.only or config.cell or config.set or config.kernels or config.workloads or folder)


def _name(file: File) -> str:
    """The file for a page, which may be read elsewhere."""
    return Path(file.name).name if file.name.startswith("/") else file.name
