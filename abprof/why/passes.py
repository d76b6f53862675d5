"""A part of the package that a call goes through more often, or less: by the ranges that mark it."""

from __future__ import annotations

from collections.abc import Iterator

from abprof.model import Cause, Range

from . import say
from .sides import SHARE, Sides

_AGREES = (0.5, 2.0)  # the profiled pass's change over the row's, and the ranges' own over that pass's


def causes(sides: Sides) -> list[Cause]:
    """The ranges that came, went or ran another number of times, where their own time makes up the change.

    Silent where other ranges changed the other way (one was renamed, or replaced), and where the call as a whole did not
    get longer by what they take: then what was there before only has a mark now.
    """
    moved = [(name, before, after, after.ns - before.ns) for name, before, after in _moved(sides)]
    mine = [one for one in moved if one[3] * sides.change_ns > 0 and _more(one[1], one[2]) == sides.slower]
    others = sum(abs(ns) for *_, ns in moved) - sum(abs(ns) for *_, ns in mine)
    total = _total(sides)
    if not mine or total is None or others >= SHARE * abs(sides.change_ns):
        return []
    ns = sum(one[3] for one in mine)
    if not (_agrees(total / sides.change_ns) and _agrees(ns / total) and sides.carries(ns)):
        return []
    large = sorted((one for one in mine if sides.carries(one[3])), key=lambda one: -abs(one[3]))
    told = [f"{name} {one.count} -> {two.count} times a call ({say.ns(abs(ns))})" for name, one, two, ns in large]
    if not told:
        return []
    text = f"a part of the package runs {'more' if sides.slower else 'less'} often: {say.listed(told)}"
    return [Cause(kind="part", text=text, evidence=("census", "phases"))]


def differ(sides: Sides) -> bool:
    """Whether a call goes through other ranges than before, or through some another number of times."""
    return any(True for _ in _moved(sides))


def _moved(sides: Sides) -> Iterator[tuple[str, Range, Range]]:
    """Ranges whose counts differ, with both sides' counts and times; none where a side's were not told."""
    told = [{one.name: one for one in census.ranges} for census in sides.census if census and census.ranges is not None]
    if len(told) < 2:
        return
    before, after = told
    for name in dict.fromkeys((*before, *after)):
        one, two = (side.get(name) or Range(name=name, count=0, ns=0.0) for side in (before, after))
        if one.count != two.count:
            yield name, one, two


def _more(before: Range, after: Range) -> bool:
    return after.count > before.count


def _agrees(ratio: float) -> bool:
    return _AGREES[0] <= ratio <= _AGREES[1]


def _total(sides: Sides) -> float | None:
    """By how much the whole call changed in the profiled pass; None where it did not, or is not known."""
    before, after = (side.get("total") if side else None for side in sides.phases)
    return (after - before or None) if before and after else None
