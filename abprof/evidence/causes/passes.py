"""A part of the package that a call goes through more often, or less: by the ranges that mark it."""

from __future__ import annotations

from collections.abc import Iterator

from abprof.evidence.causes import say
from abprof.evidence.causes.sides import SHARE, Sides
from abprof.records import Cause, Range

_MOST = 2.0  # times the row's change that the ranges may take: more, and they were there before under no mark
_LOST = 0.5  # of what they take, that the time outside all ranges may have lost: more, and it only has a mark now


def causes(sides: Sides) -> list[Cause]:
    """The ranges that a call of the slower side goes through more often, where their own time makes up the change.

    Times are shares of that side's own profiled call: a busy machine lengthens both alike. Silent where other ranges went
    the other way (one was renamed, or replaced), and where what was there before only has a mark now.
    """
    few, many = (side.get("total") if side else None for side in (sides.phases if sides.slower else sides.phases[::-1]))
    if not few or not many or (sides.on_gpu and sides.same_launches):
        return []
    moved = list(_moved(sides))
    extra = {one.name: _of_more(less, one) / many for less, one in moved if one.count > less.count}
    other = sum(_of_more(one, less) / few for less, one in moved if one.count < less.count)
    pct = sides.row.pct or 0.0
    change = abs(pct) / max(100.0, 100.0 + pct)  # as a share of the slower side's time
    taken = sum(extra.values())
    lost = _unmarked(sides, few, slower=False) * (1 - change) - _unmarked(sides, many, slower=True)
    if not SHARE <= taken / change <= _MOST or other >= SHARE * change or lost >= _LOST * taken:
        return []
    ranked = sorted(moved, key=lambda both: -both[1].ns)
    large = [(less, one) for less, one in ranked if extra.get(one.name, 0.0) >= SHARE * change]
    told = [_told(less, one, slower=sides.slower) for less, one in large]
    if not told:
        return []
    text = f"a part of the package runs {'more' if sides.slower else 'less'} often: {say.listed(told)}"
    return [Cause(kind="part", text=text, evidence=("census", "phases"))]


def differ(sides: Sides) -> bool:
    """Whether a call goes through other ranges than before, or through some another number of times."""
    return any(True for _ in _moved(sides))


def _moved(sides: Sides) -> Iterator[tuple[Range, Range]]:
    """Ranges whose counts differ, of the faster side and of the slower; none where a side's were not told."""
    fast, slow = (_ranges(sides, slower=slower) for slower in (False, True))
    if fast is None or slow is None:
        return
    before, after = ({one.name: one for one in told} for told in (fast, slow))
    for name in dict.fromkeys((*before, *after)):
        one, two = (side.get(name) or Range(name=name, count=0, ns=0.0) for side in (before, after))
        if one.count != two.count:
            yield one, two


def _ranges(sides: Sides, *, slower: bool) -> tuple[Range, ...] | None:
    census = sides.census[slower == sides.slower]
    return census.ranges if census else None


def _unmarked(sides: Sides, total: float, *, slower: bool) -> float:
    """The share of a call that lies outside all ranges."""
    marked = sum(one.ns for one in _ranges(sides, slower=slower) or ())
    return max(0.0, 1 - marked / total)


def _of_more(few: Range, many: Range) -> float:
    """What of the range's time its further runs take, in ns."""
    return many.ns * (many.count - few.count) / many.count


def _told(fast: Range, slow: Range, *, slower: bool) -> str:
    before, after = (fast, slow) if slower else (slow, fast)
    return f"{slow.name} {before.count} -> {after.count} times a call ({say.ns(_of_more(fast, slow))})"
