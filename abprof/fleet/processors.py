"""Whose processors are whose while several devices measure at the same time. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def divided(every: Sequence[int], slots: int, *, builders: bool) -> tuple[list[tuple[int, ...]], tuple[int, ...]]:
    """Each slot's own of a host's processors, in equal parts, and those that no slot has; with `builders` these are a part as
    large, or larger, of which each slot gets its share when they are done. Where there is none for each, () for each slot, which
    then has them all, as everybody has."""
    part, each = len(every) // slots, len(every) // (slots + builders)
    own = [tuple(every[part * i : part * i + each]) for i in range(slots)]
    return own, tuple(one for one in every if not any(one in mine for mine in own))
