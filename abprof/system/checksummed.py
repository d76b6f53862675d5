"""JSON lines with a checksum, which detects lines that a crash tore or a pipe changed."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

import msgspec

from abprof.records import UNREADABLE

_SUM = b',"sum":"'


def text(value: Any, indent: int | None = None) -> bytes:
    """A record as JSON, on one line or indented. Raises ValueError on NaN or infinity, which JSON lacks."""
    # msgspec itself writes NaN as null, which would turn a bug into "not recorded"; the standard library refuses it.
    made = json.dumps(
        msgspec.to_builtins(value),
        allow_nan=False,
        ensure_ascii=False,
        indent=indent,
        separators=(",", ":") if indent is None else None,
    )
    return made.encode(errors="replace")  # bytes of a label that are not UTF-8 become "?"


def line(record: msgspec.Struct) -> bytes:
    """A record as one sealed line. Raises ValueError on NaN or infinity."""
    return seal(text(record))


def seal(payload: bytes) -> bytes:
    """The JSON object `payload` as a line with its checksum as last key, and a newline."""
    return payload[:-1] + _SUM + _checksum(payload) + b'"}\n'


def unseal(line: bytes, kind: Any, what: str) -> Any:
    """The record of this kind in a line (newline off). Raises ValueError if checksum or schema does not match; `what` names
    the expected record in the message."""
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
