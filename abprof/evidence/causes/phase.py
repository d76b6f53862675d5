"""A phase that the whole change lies in."""

from __future__ import annotations

from abprof.evidence.causes import say
from abprof.evidence.causes.sides import Sides
from abprof.records import Cause

_MOST_OF_IT = 0.6  # of the profiled pass's change: less, and the phase is one of several
_AGREES = (0.5, 2.0)  # the profiled pass's change over the row's: one pass is no verdict, and must say the same
_REST = 0.05  # of a call that must lie outside the phase
_APART = 3.0  # times as much, in per cent, as the rest of the call: a clock changes all phases alike


def causes(sides: Sides) -> list[Cause]:
    """The one phase that changed, where the rest of the call did not, and the profiled pass agrees with the verdict."""
    before, after = sides.phases
    if before is None or after is None or not before.get("total") or not after.get("total"):
        return []
    total = (after["total"] or 0.0) - (before["total"] or 0.0)
    if not _AGREES[0] <= total / sides.change_ns <= _AGREES[1]:
        return []
    found = []
    for name in before.keys() - {"total", "residual"}:
        one, two = before[name], after.get(name)
        if not one or two is None or two - one == 0 or (two - one) / sides.change_ns < _AGREES[0]:
            continue
        rest = (before["total"] or 0.0) - one
        if rest < _REST * (before["total"] or 0.0):  # it is all there is to the call
            continue
        mine, others = abs(two - one) / one, abs(total - (two - one)) / rest if rest > 0 else 0.0
        if (two - one) / total >= _MOST_OF_IT and mine >= _APART * others:
            way = "slower" if two > one else "faster"
            pct = 100 * (two / one - 1)
            text = f"{way} phase {name}: {say.ns(one)} -> {say.ns(two)} ({pct:+.1f} %)"
            found.append(Cause(kind="phase", text=text, evidence=("phases",)))
    return found if len(found) == 1 else []
