"""Whose processors are whose while several devices measure at the same time. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def divided(every: Sequence[int], slots: int, *, builders: bool) -> tuple[list[tuple[int, ...]], tuple[int, ...]]:
    """Each slot's own of a host's processors, in equal parts, and those that no slot has; `builders` leaves them a part as large.
    Where there is none for each, () for each slot, which then has them all, as everybody has."""
    each = len(every) // (slots + builders)
    return [tuple(every[each * i : each * (i + 1)]) for i in range(slots)], tuple(every[each * slots :])
