"""Choose cells of a run by axis value, part of the id, or verdict (--only)."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable, Sequence
from typing import get_args

from abprof.records.base import Verdict
from abprof.records.cells import Cell
from abprof.records.errors import AbprofError
from abprof.records.messages import shown
from abprof.records.run import Run


def select(cells: Sequence[Cell], filters: Sequence[str], preset: str = "--preset") -> tuple[Cell, ...]:
    """Return the cells that match `filters` (--only): AXIS=VALUE,VALUE or globs of ids.

    A cell must have one of the values of each axis and match any glob. Raises AbprofError for an unknown axis or value,
    and if no cell is left (naming the option `preset` if there are no filters).
    """
    chosen = tuple(cells)
    by_axis: dict[str, set[str]] = {}
    globs = []
    for text in filters:
        if not text.strip():
            advice = "AXIS=VALUE, or a part of a cell's id"
            raise AbprofError("a filter is empty", where="--only", advice=advice)
        axis, equals, values = text.partition("=")
        if equals and "/" not in axis and "*" not in axis:
            by_axis.setdefault(axis, set()).update(values.split(","))
        else:
            globs.append(text)
    for name, wanted in by_axis.items():
        there = {shown(cell.params[name]) for cell in cells if name in cell.params}
        if not there:
            axes = {axis for cell in cells for axis in cell.params}
            raise AbprofError(f"no cell has an axis {name!r}", where="--only", advice=nearest(name, axes))
        for value in sorted(wanted - there):
            advice = f"it has {', '.join(sorted(there))}"
            raise AbprofError(f"{name} has no value {value!r}", where="--only", advice=advice)
        chosen = tuple(c for c in chosen if name in c.params and shown(c.params[name]) in wanted)
    if globs:
        ids = {cell.id for cell in cells}  # a whole id matches only its cell, not longer ids that begin with it
        patterns = [glob if any(c in glob for c in "*?[") else f"*{glob}*" for glob in globs if glob not in ids]
        whole = ids.intersection(globs)
        chosen = tuple(c for c in chosen if c.id in whole or any(fnmatch.fnmatchcase(c.id, p) for p in patterns))
    if not chosen:
        if verdict := next((text for text in filters if text in get_args(Verdict)), ""):
            raise AbprofError(f"{verdict} is a verdict, which only a finished run has", where="--only")
        raise AbprofError("the matrix is empty: no cell is left", where="--only" if filters else preset)
    return chosen


def choose(run: Run, only: Sequence[str]) -> tuple[Cell, ...]:
    """Return the cells that match `only`: verdicts (`slower`, `unclear`), AXIS=VALUE or parts of ids; (): all cells. In
    a run of one side, verdicts are those on its variants. Raises AbprofError if no cell matches."""
    words = set(get_args(Verdict))
    verdicts = {word for text in only for word in text.split(",") if word in words}
    filters = [text for text in only if not set(text.split(",")) <= words]
    cells = run.cells
    if verdicts:
        rows = [row for row in run.comparisons if not row.with_peer] or run.within
        ids = {row.cell for row in rows if row.verdict in verdicts}
        cells = tuple(cell for cell in cells if cell.id in ids)
        if not cells:
            raise AbprofError(f"no cell has the verdict {' or '.join(sorted(verdicts))}", where="--only")
    return select(cells, filters)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return advice that names the `known` words nearest to `word`; "" if there are none."""
    choices = sorted(known)
    near = difflib.get_close_matches(word, choices, 3) or choices[:12]
    return "did you mean " + ", ".join(near) if near else ""
