"""Measurements after all epochs: without a pause (sustained.py), and by other protocols (sequential.py)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from abprof.measure.epochs import Ground
from abprof.measure.sequential import one_after_the_other, unread
from abprof.measure.sustained import chosen, due, failed, sustained
from abprof.records import Block


def afterwards(ground: Ground, beside: Sequence[str], before: Sequence[Block], first: int) -> Iterator[Block]:
    """Blocks that `before` lacks. `beside`: other protocols; `first`: the number of the first epoch."""
    yield from sustained(ground, chosen(ground), before, first)
    for protocol in beside:
        yield from one_after_the_other(ground, protocol, first, before)


def owed(ground: Ground, beside: Sequence[str], before: Sequence[Block]) -> set[str]:
    """The cells of which `before` lacks some of these blocks. A cell without a working arm lacks none."""
    slices, did_not = due(ground, chosen(ground), before), failed(before)
    todo = {cell.id for name in beside for cell in unread(ground, name, before)}
    return set(slices) | {
        cell for cell in todo if any(not arm.peer and (cell, arm.id) not in did_not for arm in ground.arms[cell])
    }
