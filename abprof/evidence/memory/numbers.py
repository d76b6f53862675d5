"""Numbers as ncu prints them: in the locale of whoever recorded, in the unit that it found readable.

`1,024` is a thousand and twenty-four in one locale and a little more than one in another. Which it is, the other numbers
of the same file say: `2.508.800` and `65,77` cannot be read in two ways.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from abprof.records.errors import AbprofError

# ncu scales by thousands: 49152 bytes of shared memory are its 49.15 Kbyte.
_PREFIXES = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_WORDS = ("byte", "bytes", "b")
_BYTES: dict[str, float] = {f"{prefix}{word}": 1000**power for prefix, power in _PREFIXES.items() for word in _WORDS}
_BYTES |= {f"{prefix}ib": 1024**power for prefix, power in _PREFIXES.items() if prefix}
_BLANKS = re.compile(r"[\s'\u2019]")  # what parts thousands in French and Swiss locales; \s has the no-break spaces
_SHAPE = re.compile(r"[+-]?\d[\d.,]*(?:[eE][+-]?\d+)?", re.ASCII)


def decimal_mark(texts: Iterable[str]) -> str:
    """The decimal mark of a file's numbers, `.` or `,`; empty where none of them tells. Raises AbprofError for both."""
    found: dict[str, str] = {}
    for text in texts:
        mark = _told_by(_BLANKS.sub("", text))
        if mark:
            found.setdefault(mark, text)
    if len(found) == 2:
        dot, comma = found["."], found[","]
        raise AbprofError(
            f"its numbers are of two locales: {dot!r} has a decimal point, {comma!r} a decimal comma",
            advice="record again with LC_ALL=C, or take the parts apart",
        )
    return next(iter(found), "")


def bytes_of(text: str, unit: str, mark: str) -> float | None:
    """A number with its unit in bytes; None for an empty cell and for what ncu prints of none (`n/a`, `(!) nan`, `no data`).

    Raises AbprofError for anything else.
    """
    plain = _BLANKS.sub("", text)
    if plain.lower().removeprefix("(!)") in ("", "n/a", "nan", "-", "nodata"):
        return None
    scale = _BYTES.get(unit.strip().lower())
    if scale is None:
        raise AbprofError(f"{unit!r} is no unit of bytes", advice="record with --print-units base")
    value = _value(plain, mark, whole=scale == 1)
    if value is None:
        raise AbprofError(f"{text!r} is not a number", advice="record again with LC_ALL=C and --print-units base")
    return value * scale


def plain(text: str, mark: str) -> float | None:
    """A number whose decimal mark is known; None for what is none."""
    return _parsed(_BLANKS.sub("", text), mark)


def _told_by(text: str) -> str:
    """The decimal mark that this number gives away."""
    if not _SHAPE.fullmatch(text) or not ("." in text or "," in text):
        return ""
    last = max(".,", key=text.rfind)
    other = "," if last == "." else "."
    if _parsed(text, last) is None:
        return other if _parsed(text, other) is not None else ""
    return last if _parsed(text, other) is None else ""


def _value(text: str, mark: str, *, whole: bool) -> float | None:
    """The number, where there is one way to read it. Plain bytes are whole: a mark before three digits parts thousands."""
    if mark:
        return _parsed(text, mark)
    ways = {value for value in (_parsed(text, "."), _parsed(text, ",")) if value is not None}
    if len(ways) == 2 and whole:
        return max(ways)
    if len(ways) == 2:
        raise AbprofError(
            f"{text!r} is two numbers, and no other one in this file tells which mark is the decimal one",
            advice="record again with LC_ALL=C and --print-units base",
        )
    return ways.pop() if ways else None


def _parsed(text: str, mark: str) -> float | None:
    """The number if `mark` is the decimal mark and the other one parts thousands; None where that cannot be."""
    between = re.escape("," if mark == "." else ".")
    shape = rf"[+-]?(?:[1-9]\d{{0,2}}(?:{between}\d{{3}})+|\d+)(?:{re.escape(mark)}\d*)?(?:[eE][+-]?\d{{1,3}})?"
    if not re.fullmatch(shape, text, re.ASCII):
        return None
    value = float(text.replace("," if mark == "." else ".", "").replace(mark, "."))
    return value if 0 <= value < 1e30 else None
