"""What is known of one function's machine code once it was read."""

from __future__ import annotations

from abprof.records import Record


class Reading(Record, frozen=True, kw_only=True):
    """Hash of its instructions, what it takes of the device (None on a processor), and its instructions by class."""

    code: str
    classes: dict[str, int]
    registers: int | None = None
    stack_bytes: int | None = None
    shared_bytes: int | None = None
    calls: tuple[str, ...] = ()  # on a processor: the functions it calls, or hands to a runtime as a loop of its own
