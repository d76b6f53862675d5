"""Read TOML files, and convert tables to structs. Error messages name the file and the key."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from glob import escape
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from abprof.records.errors import AbprofError, place_of
from abprof.system.files import read_named

_T = TypeVar("_T")


def read(path: Path) -> str:
    """Return the text of the file `path`. Raises AbprofError if the file cannot be read or is not UTF-8."""
    return decoded(read_named(path, 16 << 20), str(path))


def decoded(data: bytes, where: str) -> str:
    """Return the bytes of the file `where` as text. Raises AbprofError if the bytes are not UTF-8."""
    try:
        return data.decode("utf-8-sig")  # some editors begin a file with a byte order mark
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise AbprofError("not UTF-8", where=f"{where}:{line}", advice="save the file as UTF-8") from error


def loads(text: str, where: str) -> dict[str, Any]:
    """Return the table that a TOML text defines. Raises AbprofError for invalid TOML."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also an integer of thousands of digits, and thousands of brackets
        what, at, place = str(error).partition(" (at ")
        number = re.match(r"line (\d+)", place)
        line = f":{number[1] if number else len(text.splitlines())}" if at else ""
        raise AbprofError(what, where=where + line) from error


def converted(loose: Any, kind: type[_T], *inner: type, where: str, advice: str) -> _T:
    """Return the TOML table `loose` as a struct of type `kind`. `inner`: the struct types of tables inside `kind`.
    Raises an AbprofError that names the key if the table does not fit."""
    values = dict(_values(loose))
    for key, value in values.items():
        if "\0" in f"{key}{value}":
            raise AbprofError("the text contains a NUL character", where=place_of(key, where))
    try:
        return msgspec.convert(loose, kind)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$")
        pattern = re.sub(r"\[(\d+)\]", r".\1", path.rstrip("`").replace("[...]", ".*"))
        unknown = re.search(r"unknown field `([^`]+)`", what)
        if unknown:
            pattern += f".{escape(unknown[1])}"
            keys = {table: [field.encode_name for field in msgspec.structs.fields(table)] for table in (kind, *inner)}
            near = difflib.get_close_matches(unknown[1], [name for names in keys.values() for name in names], 1)
            what, hint = f"there is no key {unknown[1]!r}", f"did you mean {near[0]}? " if near else ""
            if owner := next((table for table, names in keys.items() if unknown[1] in names), None):
                above = [name for name in keys[kind] if owner.__name__ in str(kind.__annotations__.get(name))]
                what += " here"
                hint = f"it belongs to {above[0] if above else 'the top of the file'}; "
            advice = hint + advice
        # msgspec writes [...] for keys that the user chose: take the first matching key with a value of the reported type.
        got = re.search(r"got `([^`]+)`", what)
        fits = [key for key in values if fnmatchcase(key, pattern.removeprefix("."))]
        meant = [key for key in fits if got and _kind(values[key]) == got[1]]
        raise AbprofError(what, where=place_of(next(iter(meant or fits), ""), where), advice=advice) from error


def _kind(value: Any) -> str:
    name = type(value).__name__
    return {"list": "array", "dict": "object"}.get(name, name)


def _values(loose: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) for every value in nested tables and arrays, outer values first."""
    inside = loose.items() if isinstance(loose, dict) else enumerate(loose) if isinstance(loose, list) else ()
    for name, value in inside:
        key = f"{above}.{name}" if above else str(name)
        yield key, value
        yield from _values(value, key)
