"""The ranges that a package marks its parts with: how often each ran within a call, and its own time there."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from abprof.records import messages as wire
from abprof.worker import census


@dataclass(frozen=True)
class Marked:
    """One range as the host went through it. Times in ns."""

    name: str
    start: int
    end: int


def counted(
    marked: Sequence[Marked], spans: Sequence[tuple[int, int]], kernels: Sequence[tuple[int, float]] | None = None
) -> list[wire.Range] | None:
    """Each range's count in a call and its own time, without that of ranges inside it; None where calls differ.

    `spans`: the calls' (start, end). `kernels`: (launched at, ns) of everything that ran on the device; then a range's
    time is that of the kernels launched from it. Without them it is the host's.
    """
    ordered = sorted(marked, key=lambda one: (one.start, -one.end))
    inner = _parents(ordered)
    own = _launched(ordered, inner, kernels) if kernels is not None else _spent(ordered, inner)
    ran = [
        census.Ran(one.name, at=one.start, start=one.start, ns=round(ns)) for one, ns in zip(ordered, own, strict=True)
    ]
    told = census.census(ran, spans)
    return None if told.missing else [wire.Range(one.name, one.count, one.ns) for one in told.launches]


def _parents(ordered: Sequence[Marked]) -> Mapping[int, int]:
    """Of each range that lies in another, the innermost that it lies in (both by their place)."""
    found: dict[int, int] = {}
    around: list[int] = []
    for place, one in enumerate(ordered):
        while around and ordered[around[-1]].end <= one.start:
            around.pop()
        parent = next((other for other in reversed(around) if ordered[other].end >= one.end), None)
        if parent is not None:
            found[place] = parent
        around.append(place)
    return found


def _spent(ordered: Sequence[Marked], parents: Mapping[int, int]) -> list[float]:
    own = [float(one.end - one.start) for one in ordered]
    for place, parent in parents.items():
        own[parent] -= ordered[place].end - ordered[place].start
    return own


def _launched(
    ordered: Sequence[Marked], parents: Mapping[int, int], kernels: Sequence[tuple[int, float]]
) -> list[float]:
    own = [0.0] * len(ordered)
    starts = [one.start for one in ordered]
    for at, ns in kernels:
        place: int | None = bisect.bisect_right(starts, at) - 1
        while place is not None and place >= 0 and ordered[place].end < at:
            place = parents.get(place)
        if place is not None and place >= 0:
            own[place] += ns
    return own
