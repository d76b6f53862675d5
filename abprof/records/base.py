"""What every record is made of."""

from __future__ import annotations

from typing import Literal

import msgspec

Status = Literal["ok", "wrong", "unsupported", "missing", "build_failed", "oom", "timeout", "crash", "identical"]
Verdict = Literal["faster", "slower", "slight", "same", "unclear", "broken"]
Value = str | int | float | bool
# Whose clock is judged: the device's, by events, by graphs or by kernels; the host's; that of the command under test itself.
Judge = Literal["gpu", "graph", "kernels", "wall", "reported"]
Timer = Literal["auto", "events", "graph", "cupti", "cpu"]  # as requested; auto: by rules (abprof/measure/turns.py)

# What msgspec raises for a file that is not what it should be: with too many brackets within brackets, or no text, too.
UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all records: frozen, keyword-only (msgspec needs both repeated per class), an unknown key is an error."""
