"""Split cell ids. Make short labels of cells for people, and labels of branches and cells for file names."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence, Set
from hashlib import blake2b
from itertools import chain, count

from abprof.records.cells import Cell
from abprof.records.errors import AbprofError

LONGEST = 60  # characters of a label: two labels and a suite's name fit into a file name


def id_parts(id: str) -> tuple[str, tuple[str, ...]]:
    """Split a cell's id into the workload and `axis=value` parts. Raises AbprofError for a text that is not an id."""
    name, slash, params = id.partition("/")
    if not slash or not name:
        advice = "write it as reports do: WORKLOAD/axis=value,... (abprof list prints those of a preset)"
        raise AbprofError("not a cell's id", where=repr(id), advice=advice)
    return name, tuple(re.split(r",(?=\w+=)", params)) if params else ()


def short_labels(cells: Sequence[Cell]) -> dict[str, str]:
    """Return cell id -> short label: the workload, and the axes in which the workload's cells differ."""
    values: dict[tuple[str, str], set[object]] = {}
    for cell in cells:
        for axis, value in cell.params.items():
            values.setdefault((cell.workload, axis), set()).add(value)
    own = ((cell, {a: v for a, v in cell.params.items() if len(values[cell.workload, a]) > 1}) for cell in cells)
    return {cell.id: " ".join([cell.workload, *(f"{a}={v}" for a, v in axes.items())]) for cell, axes in own}


def safe_labels(labels: Iterable[tuple[str, str]]) -> list[str]:
    """Turn each (label, commit) into a label for file names. All results are different."""
    found: list[str] = []
    for label, commit in labels:
        found.append(safe_label(label, set(found), commit))
    return found


def safe_label(label: str, taken: Set[str], commit: str) -> str:
    """Make `label` safe for file names: at most 60 ASCII letters, digits, `.`, `_`, `-`, not starting with dot or dash.
    If `taken` has the result (ignoring case), append digits of `commit`, and then a number if need be."""
    letters = "".join(sign for sign in unicodedata.normalize("NFKD", label) if not unicodedata.combining(sign))
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", letters).strip(".-")[:LONGEST].rstrip(".-") or commit[:10]
    used = {name.casefold() for name in taken}
    endings = chain(("", f"-{commit[:8]}"), (f"-{commit[:8]}-{number}" for number in count(2)))
    names = (plain[: LONGEST - len(ending)].rstrip(".-") + ending for ending in endings)
    return next(name for name in names if name.casefold() not in used)


def row_file(cell: str, variant: str) -> str:
    """Return a file-name prefix for a cell and variant: their readable names, then a hash that no other pair has."""
    row = f"{cell} {variant}".strip()
    digest = blake2b(row.encode(errors="replace"), digest_size=4).hexdigest()
    return f"{safe_label(row, set(), digest)}-{digest}"
