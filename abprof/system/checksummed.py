"""Write and read JSON lines with a checksum, which detects truncated or changed lines."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

import msgspec

from abprof.records import UNREADABLE

_SUM = b',"sum":"'


def text(value: Any, indent: int | None = None) -> bytes:
    """Return `value` as JSON. `indent`: spaces per level; None: on one line. Raises ValueError for NaN or infinity."""
    # msgspec would write NaN as null, which reads as "not recorded"; the standard library raises ValueError.
    loose, apart = msgspec.to_builtins(value), (",", ":") if indent is None else None
    made = json.dumps(loose, allow_nan=False, ensure_ascii=False, indent=indent, separators=apart)
    return made.encode(errors="replace")  # bytes of a label that are not UTF-8 become "?"


def line(record: msgspec.Struct) -> bytes:
    """Return `record` as one JSON line with its checksum. Raises ValueError for NaN or infinity."""
    return seal(text(record))


def seal(payload: bytes) -> bytes:
    """Return the JSON object `payload` with its checksum as the last key, on one line that ends with a newline."""
    return payload[:-1] + _SUM + _checksum(payload) + b'"}\n'


def unseal(line: bytes, kind: Any, what: str) -> Any:
    """Check the checksum of `line` (without its newline), and return the record of type `kind` in the line.
    Raises ValueError if the checksum or the type is wrong. `what`: name of the expected record in the error message."""
    head, found, tail = line.rpartition(_SUM)
    payload = head + b"}"
    if not found or tail != _checksum(payload) + b'"}':
        raise ValueError("checksum does not match")
    try:
        return msgspec.json.decode(payload, type=kind)
    except UNREADABLE as error:
        raise ValueError(f"not {what} of this abprof: {error}") from None


def _checksum(payload: bytes) -> bytes:
    return blake2b(payload, digest_size=8).hexdigest().encode()
