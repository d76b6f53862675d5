"""What is timed after all epochs: without a pause (abprof/measure/sustained.py), and by other protocols (abprof/measure/sequential.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from abprof.measure.epochs import Ground
from abprof.measure.sequential import one_after_the_other, unread
from abprof.measure.sustained import chosen, due, failed, sustained
from abprof.records import Block


def afterwards(
    ground: Ground,
    worth: Sequence[str],
    beside: Sequence[str],
    before: Sequence[Block],
    first: int,
    *,
    budget: float,
    say: Callable[[str], None],
) -> Iterator[Block]:
    """Blocks of what was not timed `before`. `worth`: the cells that slices would tell more of; `beside`: the other protocols;
    `first`: the number of the first epoch; `budget`: seconds of measuring, of which slices take a quarter."""
    yield from sustained(ground, chosen(ground, worth, say, budget), before, first)
    for protocol in beside:
        yield from one_after_the_other(ground, protocol, first, before)


def owed(
    ground: Ground, worth: Sequence[str], beside: Sequence[str], before: Sequence[Block], budget: float
) -> set[str]:
    """The cells of which something of that is still to be timed. One of which no arm runs owes nothing."""
    slices, did_not = due(ground, chosen(ground, worth, lambda _: None, budget), before), failed(before)
    todo = {cell.id for name in beside for cell in unread(ground, name, before)}
    return set(slices) | {
        cell for cell in todo if any(not arm.peer and (cell, arm.id) not in did_not for arm in ground.arms[cell])
    }
