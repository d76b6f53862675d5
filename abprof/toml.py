"""The doorway to TOML: a file that anybody may have written is a table, or one clear line."""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from abprof.errors import AbprofError

_CLOSES = re.compile(r"[\]}]|\"{3}|'{3}")  # what ends a value of several lines
_BOM = "\ufeff"  # some editors begin a file with it; it is no part of what stands there


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
        told = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)", str(error))
        line = told[1] or text.count("\n") + 1 if told else ""
        what = str(error).replace(told[0], "") if told else str(error)
        raise AbprofError(what, where=f"{where}:{line}" if line else where) from error
    except RecursionError:
        raise AbprofError("too many brackets within brackets", where=where) from None
    except ValueError as error:  # an integer of thousands of digits
        raise AbprofError(str(error), where=where) from None


# ---------------------------------------------------------------- where a key stands


def lines(text: str) -> dict[str, int]:
    """Dotted key -> the line on which it is set, of a text that `loads` reads: tables by their head, elements of arrays of
    tables by number (`threshold.0.cells`)."""
    found: dict[str, int] = {}
    table: tuple[str, ...] = ()
    for first, statement in _statements(text.removeprefix(_BOM)):
        loose = tomllib.loads(statement)
        if statement.lstrip().startswith("["):
            table = _head(loose, found)
            found.setdefault(".".join(table), first)
        else:
            for path in _paths(loose):
                found.setdefault(".".join((*table, *path)), first)
    return found


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Each table's head, and each key with its value, and the line on which it begins."""
    first, kept = 1, ""
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        if not kept and (not line.strip() or line.lstrip().startswith("#")):
            continue
        goes_on = bool(kept)
        first, kept = (first, f"{kept}\n{line}") if goes_on else (number, line)
        if goes_on and not _CLOSES.search(line):
            continue
        try:
            tomllib.loads(kept)
        except tomllib.TOMLDecodeError:  # its value goes on in the next line
            continue
        yield first, kept
        kept = ""


def _head(loose: dict[str, Any], found: Mapping[str, int]) -> tuple[str, ...]:
    """The table that `[a.b]` or `[[a.b]]` begins."""
    path: tuple[str, ...] = ()
    inner: Any = loose
    while isinstance(inner, dict) and inner:
        [(name, inner)] = inner.items()
        path = (*path, name)
    if not isinstance(inner, list):
        return path
    number = next(n for n in itertools.count() if ".".join((*path, str(n))) not in found)
    return (*path, str(number))


def _paths(loose: Any) -> Iterator[tuple[str, ...]]:
    """Of every value and of every table within, from the outside to the inside."""
    inside = loose.items() if isinstance(loose, dict) else enumerate(loose) if isinstance(loose, list) else ()
    for name, value in inside:
        yield (str(name),)
        yield from ((str(name), *path) for path in _paths(value))
