"""What every record is made of."""

from __future__ import annotations

from typing import Literal

import msgspec

Status = Literal["ok", "wrong", "unsupported", "missing", "build_failed", "oom", "timeout", "crash", "identical"]
Verdict = Literal["faster", "slower", "slight", "same", "unclear", "broken"]
Value = str | int | float | bool
Judge = Literal["gpu", "wall", "reported"]  # whose clock is judged; `reported`: that of the command under test itself


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all records: frozen, keyword-only (msgspec wants that said per class), an unknown key is an error."""
