"""Thresholds of abprof.toml that hold for no cell: most often a pattern that was not meant so."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from abprof.config import Config
from abprof.waivers import of_some

_NAMED = 3  # patterns that are told by name


def unused(config: Config, cells: Iterable[str], broken: Sequence[str] = ()) -> tuple[str, ...]:
    """A line on the patterns of the file's `[[threshold]]`s that match none of a run's cells; () where each matches one.

    Nothing is said of a run that was asked for a part of the matrix, nor of patterns for cells of `broken` workloads, which
    could not say what cells they have.
    """
    file = config.file
    part = config.only or config.cell or config.set or config.kernels or config.workloads
    if file is None or config.thresholds is not None or part:
        return ()
    ids = tuple(cells)
    idle = [
        (file.lines.get(f"threshold.{number}.cells", 1), rule.cells)
        for number, rule in enumerate(file.threshold)
        if not any(fnmatchcase(id, rule.cells) for id in ids) and not of_some(rule.cells, broken)
    ]
    if not idle:
        return ()
    name = Path(file.name).name if file.name.startswith("/") else file.name  # a page may be read elsewhere
    (line, first), *more = idle
    further = ", ".join(f"{cells!r} in line {line}" for line, cells in more[: _NAMED - 1])
    further += f" and {len(idle) - _NAMED} more" if len(idle) > _NAMED else ""
    also = f", nor {'do' if len(more) > 1 else 'does'} {further}" if more else ""
    return (f"{name}:{line}, [[threshold]]: {first!r} matches no cell of this run{also}",)
