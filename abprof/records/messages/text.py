"""Records as lines of JSON and back. What a worker sends is not to be trusted: its process also runs the code under test."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, is_dataclass
from functools import cache
from math import isfinite
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints


def pack(record: Any) -> dict[str, Any]:
    """A record as plain JSON values. Raises ValueError later, in `dump`, on NaN or infinity."""
    return asdict(record)


def dump(message: dict[str, Any]) -> bytes:
    """One line of the wire. Raises ValueError on NaN or infinity: a worker must send None."""
    return _ENCODER.encode(message).encode() + b"\n"


def load(line: bytes) -> dict[str, Any]:
    """One line of the wire. Raises ValueError for anything but a JSON object (NaN and infinity included). What is no letter in it
    becomes U+FFFD."""
    text = line.decode()
    try:
        message = _DECODER.decode(text)
        if _HALF.search(text):
            message = _DECODER.decode(_LONE.sub("\N{REPLACEMENT CHARACTER}", _PLAIN.encode(message)))
    except RecursionError:
        raise ValueError("too many brackets within brackets") from None
    if not isinstance(message, dict):
        raise ValueError("not a JSON object")
    return message


_LEAST, _MOST = -(2**63), 2**64 - 1  # of whole numbers: what the records of a run can hold


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


# JSON can say half a letter, as Python reads bytes that are no text: no file, page or hash of a run could hold it.
_HALF, _LONE = re.compile(r"\\u[dD][89a-fA-F]"), re.compile("[\ud800-\udfff]")
# Made once: json.dumps and json.loads make one a call, which costs more than the message.
_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
_PLAIN = json.JSONEncoder(ensure_ascii=False)
_DECODER = json.JSONDecoder(parse_constant=_refuse)


def unpack(kind: type, loose: Any) -> Any:
    """The loose dictionary as a record of `kind`, nested records too.

    What a worker sends is not to be trusted: its process also runs the code under test. Raises TypeError on unknown or
    missing keys and on a value of another type than the record's (an int may stand for a float, a bool for neither),
    ValueError on an infinite number (JSON's 1e999).
    """
    if not isinstance(loose, dict):
        raise TypeError(f"{kind.__name__} must be an object")
    hints = _hints(kind)
    if unknown := loose.keys() - hints.keys():
        raise TypeError(f"{kind.__name__} has no {', '.join(sorted(unknown))}")
    return kind(**{name: _value(f"{kind.__name__}.{name}", value, hints[name]) for name, value in loose.items()})


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _value(name: str, value: Any, hint: Any) -> Any:
    """The value as the hint has it. Raises TypeError or ValueError, which name the field and do not show the value."""
    for choice in get_args(hint) if isinstance(hint, UnionType) else (hint,):
        if is_dataclass(choice) and isinstance(value, dict):
            return unpack(choice, value)  # type: ignore[arg-type]  # a class: hints have no instances
        inner = get_args(choice)[:1] if get_origin(choice) is list else ()
        if inner and is_dataclass(inner[0]) and isinstance(value, list):
            return [_value(name, item, inner[0]) for item in value]
        if _fits(value, choice):
            return value
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"{name} is not finite")
    if isinstance(value, int) and not _LEAST <= value <= _MOST:
        raise ValueError(f"{name} is larger than a number may be")
    wanted = hint.__name__ if isinstance(hint, type) and not get_args(hint) else hint
    raise TypeError(f"{name} is {type(value).__name__}, not {wanted}")


def _fits(value: Any, hint: Any) -> bool:
    if hint is Any:
        return True
    if isinstance(hint, UnionType):
        return any(_fits(value, choice) for choice in get_args(hint))
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if origin is list:
        return isinstance(value, list) and all(_fits(item, inner[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(item, inner[1]) for item in value.values())
    if origin is tuple:  # JSON has only lists
        return isinstance(value, list) and len(value) == len(inner) and all(map(_fits, value, inner))
    if isinstance(value, bool):
        return hint is bool
    if isinstance(value, int) and hint in (int, float):
        return _LEAST <= value <= _MOST
    if hint is float:
        return isinstance(value, float) and isfinite(value)
    return isinstance(value, hint)
