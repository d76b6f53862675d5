"""Numbers of both sides in a few words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from abprof.records import Value
from abprof.records.quantities import plural

_MOST = 4  # items listed


def ns(value: float) -> str:
    """A time to three digits: `1.23 ms`."""
    return _scaled(value, (("s", 1e9), ("ms", 1e6), ("µs", 1e3)), "ns")


def bytes_of(value: float) -> str:
    """A number of bytes to three digits: `1.23 MB`."""
    return _scaled(value, (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)), "bytes")


def _scaled(value: float, units: Sequence[tuple[str, float]], plain: str) -> str:
    unit, size = next(((unit, size) for unit, size in units if abs(value) >= size), (plain, 1.0))
    return f"{value / size:.3g} {unit}"


def times(count: int) -> str:
    """`once`, `3 times`."""
    return "once" if count == 1 else f"{count} times"


def listed(items: Sequence[str]) -> str:
    """The first few, and how many more there are."""
    rest = len(items) - _MOST
    return ", ".join(items[:_MOST]) + (f" and {rest} more" if rest > 0 else "")


def dims(values: Sequence[int]) -> str:
    """`128`, `16x16`: without trailing ones."""
    kept = list(values)
    while len(kept) > 1 and kept[-1] == 1:
        kept.pop()
    return "x".join(map(str, kept))


def changes(both: Mapping[str, tuple[Value, Value]]) -> str:
    """`BLOCK 64 -> 128, warps 4 -> 8`."""
    return listed([f"{name} {before} -> {after}" for name, (before, after) in both.items()])


def counts(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """`global loads 4 -> 8`, of those that differ."""
    return changes({name: (before[name], after[name]) for name in before if before[name] != after.get(name)})


def appeared(before: int, after: int, noun: str) -> str:
    """`87 spill stores appeared`, `spill stores 12 -> 87`, `87 spill stores are gone`; "" if nothing changed."""
    if before == after:
        return ""
    if not before:
        return f"{plural(after, noun)} appeared"
    return f"{noun}s {before} -> {after}" if after else f"{before} {noun}{'s are' if before != 1 else ' is'} gone"


def settings(before: str, after: str) -> str:
    """The differences of two autotuner configurations, `BLOCK: 64, num_warps: 4`."""
    one, two = ({name: value for part in text.split(", ") for name, found, value in [part.partition(": ")] if found}
                for text in (before, after))  # fmt: skip
    names = dict.fromkeys((*one, *two))
    return changes({n: (one.get(n, "none"), two.get(n, "none")) for n in names if one.get(n) != two.get(n)})
