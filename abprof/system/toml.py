"""TOML files: a table and the line of each key, or one clear error."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from abprof.records.errors import AbprofError

_BOM = "\ufeff"  # some editors begin a file with it; it is no part of what stands there


def read(path: Path) -> str:
    """A file's text. Raises AbprofError."""
    try:
        return decoded(path.read_bytes(), str(path))
    except OSError as error:
        raise AbprofError(f"cannot be read: {error}", where=str(path)) from error


def decoded(data: bytes, where: str) -> str:
    """The file's text. Raises AbprofError for what is not UTF-8, as TOML is."""
    try:
        return data.decode("utf-8").removeprefix(_BOM)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise AbprofError("not UTF-8", where=f"{where}:{line}", advice="save it as UTF-8, as TOML is") from error


def loads(text: str, where: str) -> dict[str, Any]:
    """The file's table. Raises AbprofError with the line, where the parser tells it."""
    try:
        return tomllib.loads(text.removeprefix(_BOM))
    except tomllib.TOMLDecodeError as error:
        place = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)", str(error))
        line = place[1] or len(text.splitlines()) if place else ""
        what = str(error).replace(place[0], "") if place else str(error)
        raise AbprofError(what, where=f"{where}:{line}" if line else where) from error
    except RecursionError:
        raise AbprofError("too many brackets within brackets", where=where) from None
    except ValueError as error:  # an integer of thousands of digits
        raise AbprofError(str(error), where=where) from None


def lines(text: str) -> dict[str, int]:
    """Dotted key -> the line on which it is set, of a text that `loads` reads: tables by their head, elements of arrays of
    tables by number (`threshold.0.cells`). A key within an inline table or a value of several lines has its first line."""
    found: dict[str, int] = {}
    arrays = Counter[tuple[str, ...]]()
    table: tuple[str, ...] = ()
    begun, kept = 0, ""
    for number, line in enumerate(text.removeprefix(_BOM).replace("\r\n", "\n").split("\n"), 1):
        begun, kept = (begun, f"{kept}\n{line}") if kept else (number, line)
        try:
            loose = tomllib.loads(kept)
        except tomllib.TOMLDecodeError:
            continue  # the statement goes on in the next line
        if kept.lstrip().startswith("["):
            table = _head(loose, arrays)
            for end in range(1, len(table) + 1):
                found.setdefault(".".join(table[:end]), begun)
        else:
            for key, _ in values(loose, ".".join(table)):
                found.setdefault(key, begun)
        kept = ""
    return found


def _head(loose: dict[str, Any], arrays: Counter[tuple[str, ...]]) -> tuple[str, ...]:
    """The table that `[a.b]` or `[[a.b]]` begins; `arrays`: how many elements those of tables have so far."""
    path: tuple[str, ...] = ()
    inner: Any = loose
    while isinstance(inner, dict) and inner:
        [(name, inner)] = inner.items()
        path = (*path, name)
        if isinstance(inner, dict) and arrays[path]:  # a table of its last element
            path = (*path, str(arrays[path] - 1))
    if not isinstance(inner, list):
        return path
    arrays[path] += 1
    return (*path, str(arrays[path] - 1))


def values(loose: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key -> value of all that a table or an array holds, from the outside to the inside."""
    inside = loose.items() if isinstance(loose, dict) else enumerate(loose) if isinstance(loose, list) else ()
    for name, value in inside:
        key = f"{above}.{name}" if above else str(name)
        yield key, value
        yield from values(value, key)
