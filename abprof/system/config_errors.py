"""What msgspec has against a TOML file's table, in TOML's words: which key, on which line, and what it was to be."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from glob import escape
from typing import Any

import msgspec

from abprof.records.errors import AbprofError
from abprof.system import toml

_KINDS = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "array": "an array",
    "object": "a table",
    "date": "a date",
    "time": "a time",
    "datetime": "a date with a time",
}
_PYTHON = {str: "str", int: "int", float: "float", bool: "bool", list: "array", dict: "object"}


def refused(
    error: msgspec.ValidationError,
    loose: Any,
    where: str,
    lines: Mapping[str, int],
    known: Iterable[str],
    advice: str,
) -> AbprofError:
    """The error to raise. `lines` are those of abprof.toml.lines, of the table `loose`; `known` the names of keys that there
    are."""
    key, line = _place(str(error), loose, lines)
    unknown = re.search(r"unknown field `([^`]+)`", str(error))
    name = unknown[1] if unknown else key.rpartition(".")[2]
    what = _in_words(str(error), name)
    if unknown:
        near = difflib.get_close_matches(name, list(dict.fromkeys(known)), 1)
        advice = f"did you mean {near[0]}? {advice}" if near else advice
    place = f"{where}:{line}" if line else where
    return AbprofError(what, where=f"{place}, {key}" if key else place, advice=advice)


def _in_words(message: str, name: str) -> str:
    found = re.match(r"Expected `([^`]+)`, got `([^`]+)`", message)
    if found:
        wanted = [_KINDS.get(kind, kind) for kind in found[1].split(" | ") if kind != "null"]
        return f"expected {' or '.join(wanted)}, got {_KINDS.get(found[2], found[2])}"
    if "unknown field" in message:
        return f"there is no key {name!r}"
    missing = re.match(r"Object missing required field `([^`]+)`", message)
    if missing:
        return f"{missing[1]} is missing"
    enum = re.match(r"Invalid enum value (.*?)(?: - at `|$)", message)
    return f"{enum[1]} cannot be meant" if enum else re.sub(r" - at `[^`]*`$", "", message)


def _place(message: str, loose: Any, lines: Mapping[str, int]) -> tuple[str, int]:
    """The key that msgspec complains of, and its line. Of what the user named msgspec says `[...]`: then it is the first that
    fits and is of the kind that it got. Where there is none, the table that it would stand in; at last ("", 0)."""
    place = re.search(r" - at `\$\.?([^`]*)`", message)
    unknown = re.search(r"unknown field `([^`]+)`", message)
    got = re.match(r"Expected `[^`]+`, got `([^`]+)`", message)
    pattern = re.sub(r"\[(\d+)\]", r".\1", place[1].replace("[...]", ".*")) if place else ""
    pattern = f"{pattern}.{escape(unknown[1])}".removeprefix(".") if unknown else pattern
    values = dict(toml.values(loose))
    while pattern:
        fits = [key for key in lines if fnmatchcase(key, pattern)]
        meant = [key for key in fits if got is None or _PYTHON.get(type(values.get(key))) == got[1]]
        if fits:
            key = (meant or fits)[0]
            return key, lines[key]
        pattern = pattern.rpartition(".")[0]
    return "", 0
