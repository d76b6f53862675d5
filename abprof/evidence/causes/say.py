"""Numbers of both sides, in a few words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from abprof.records import Value

_MOST = 4  # things listed


def ns(value: float) -> str:
    """A time, to three digits."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g} ns"


def bytes_of(value: float) -> str:
    """A number of bytes, to three digits."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g} bytes"


def times(count: int) -> str:
    """`once`, `3 times`."""
    return "once" if count == 1 else f"{count} times"


def listed(told: Sequence[str]) -> str:
    """The first few, and how many more there are."""
    rest = len(told) - _MOST
    return ", ".join(told[:_MOST]) + (f" and {rest} more" if rest > 0 else "")


def dims(values: Sequence[int]) -> str:
    """`128`, `16x16`: without the ones at the end."""
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
    """`87 spill stores appeared`, `spill stores 12 -> 87`, `87 spill stores are gone`; "" where nothing changed."""
    if before == after:
        return ""
    if not before:
        return f"{after} {noun}{'s' if after != 1 else ''} appeared"
    if not after:
        return f"{before} {noun}{'s are' if before != 1 else ' is'} gone"
    return f"{noun}s {before} -> {after}"


def parsed(configuration: str) -> dict[str, str]:
    """`BLOCK: 64, num_warps: 4` as an autotuner says it."""
    pairs = (part.partition(": ") for part in configuration.split(", "))
    return {name: value for name, found, value in pairs if found}


def settings(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """What of two configurations differs."""
    names: Iterable[str] = dict.fromkeys((*before, *after))
    return changes({n: (before.get(n, "none"), after.get(n, "none")) for n in names if before.get(n) != after.get(n)})
