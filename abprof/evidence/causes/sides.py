"""Compare the kernels that both sides launch in a cell whose time changed, and format numbers as text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from abprof.records import Census, Comparison, Kernel, Launch, Sampled, Value

SHARE = 0.25  # of a row's change that a cause must explain, if the cause's own time is known
_MOST = 2.0  # times the row's change that a kernel's may be; above this limit the profiled call shows another change
# Share of a kernel's own time that must change: profiled calls on an H200 scatter by up to 1 % (docs/CAUSES.md).
_FLOOR = 0.03
_ALL = 0.8  # share of a call's time from which the verdict is about this kernel, whatever a single profiled call shows
ACCESSES = ("global loads", "global stores", "asynchronous copies", "atomics")  # classes of instructions
_LISTED = 4  # most items that a sentence lists


@dataclass(frozen=True)
class Part:
    """A kernel that a call launches. `kernel` is None if its code is unknown, as for a library's kernel."""

    name: str
    launches: tuple[Launch, ...]
    kernel: Kernel | None

    @property
    def count(self) -> int:
        return sum(launch.count for launch in self.launches)

    @property
    def ns(self) -> float:
        return sum(launch.ns for launch in self.launches)

    @property
    def shape(self) -> list[tuple[tuple[int, ...], tuple[int, ...], int]]:
        """Return (grid, block, count) for each distinct grid and block, sorted."""
        counts = Counter[tuple[tuple[int, ...], tuple[int, ...]]]()
        for launch in self.launches:  # several phases may launch it with one grid
            counts[launch.grid, launch.block] += launch.count
        return sorted((*shape, count) for shape, count in counts.items())

    @property
    def choice(self) -> str:
        """Return the autotuner's choice; "" if there was none, or not the same one for all launches."""
        seen = {launch.choice for launch in self.launches}
        return seen.pop() if len(seen) == 1 else ""


@dataclass(frozen=True)
class Pair:
    """One kernel as each side launches it. A renamed kernel is recognised by its equal code."""

    before: Part
    after: Part

    @property
    def same_code(self) -> bool | None:
        """Whether the kernel's code is equal on both sides; None if the code of a side is unknown."""
        one, two = self.before.kernel, self.after.kernel
        return one.code == two.code if one and two and one.code and two.code else None

    @property
    def moved(self) -> bool:
        """Whether the grids, blocks or numbers of launches differ between the sides."""
        return self.before.shape != self.after.shape

    @property
    def change_ns(self) -> float:
        return self.after.ns - self.before.ns

    def classes(self, *names: str) -> tuple[int, int] | None:
        """Return each side's number of instructions in the classes `names`, or in all classes; None if unknown."""
        both = [part.kernel.classes if part.kernel else None for part in (self.before, self.after)]
        counts = [sum(n for name, n in of.items() if (name in names if names else name != "loops"))
                  for of in both if of]  # fmt: skip
        return (counts[0], counts[1]) if len(counts) == 2 else None


@dataclass(frozen=True)
class Sides:
    """Both sides of a cell whose time changed. Each pair of values is (before, after)."""

    row: Comparison
    on_gpu: bool
    base_ns: float  # the judged time of `from`
    census: tuple[Census | None, Census | None]
    kernels: tuple[tuple[Kernel, ...], tuple[Kernel, ...]]  # of the row's package
    phases: tuple[Mapping[str, float | None] | None, Mapping[str, float | None] | None]
    sampled: tuple[Sampled | None, Sampled | None] = (None, None)  # by perf

    @property
    def slower(self) -> bool:
        return (self.row.pct or 0.0) > 0

    @property
    def change_ns(self) -> float:
        """Return the change of a call's time in ns; negative is faster."""
        return self.base_ns * (self.row.pct or 0.0) / 100

    @property
    def counted(self) -> bool:
        """Whether the launches of a call are known on both sides."""
        return all(census is not None and not census.missing for census in self.census)

    def along(self, change: float) -> bool:
        """Whether `change` has the same sign as the change of the cell's time."""
        return change > 0 if self.slower else change < 0

    def carries(self, ns: float) -> bool:
        """Whether `ns` has the same sign as the change of the cell's time, and at least a quarter of its size."""
        return ns * self.change_ns > 0 and abs(ns) >= SHARE * abs(self.change_ns)

    def shown(self, pair: Pair) -> bool:
        """Whether the kernel's own change explains the cell's: same sign, a quarter to twice the size, above noise."""
        least, most = _FLOOR * pair.before.ns, _MOST * abs(self.change_ns)
        return self.carries(pair.change_ns) and least <= abs(pair.change_ns) <= most

    def is_all(self, pair: Pair) -> bool:
        """Whether only this kernel can explain the cell's change: it takes nearly all of the time, no other kernel
        differs, and the change is too small to see in a single profiled call."""
        others = all(one.same_code and not one.moved for one in self.pairs if one is not pair)
        scatter = _FLOOR * pair.before.ns
        back = -pair.change_ns if self.slower else pair.change_ns  # against the row's direction
        small = abs(self.change_ns) < 2 * scatter and back < scatter
        return others and not any(self.alone) and small and pair.before.ns >= _ALL * self.base_ns

    @cached_property
    def parts(self) -> tuple[list[Part], list[Part]]:
        """Return the kernels that a call launches, as (before, after)."""
        before, after = (_parts(c, kernels) if c else [] for c, kernels in zip(self.census, self.kernels, strict=True))
        return before, after

    @cached_property
    def pairs(self) -> list[Pair]:
        """Return the kernels that both sides launch. A renamed kernel is recognised by its equal code."""
        before, after = self.parts
        found = []
        for name in dict.fromkeys(part.name for part in before):
            mine, theirs = ([p for p in parts if p.name == name] for parts in (before, after))
            if len(mine) == len(theirs):
                found += [Pair(one, two) for one, two in zip(mine, theirs, strict=True)]
        right = [part for part in after if all(part is not pair.after for pair in found)]
        for part in [part for part in before if all(part is not pair.before for pair in found)]:
            same = [p for p in right if p.name != part.name and Pair(part, p).same_code and p.count == part.count]
            if len(same) == 1:
                found.append(Pair(part, same[0]))
                right.remove(same[0])
        return found

    @property
    def alone(self) -> tuple[list[Part], list[Part]]:
        """Return the kernels that only one side launches, as (before, after)."""
        paired = {id(part) for pair in self.pairs for part in (pair.before, pair.after)}
        before, after = ([part for part in parts if id(part) not in paired] for parts in self.parts)
        return before, after

    @property
    def recounted(self) -> list[tuple[str, int, int, float]]:
        """Return (name, launches before, launches after, change in ns) of kernels whose number of launches changed."""
        gone, new = self.alone
        found = [(part.name, 0, part.count, part.ns) for part in new]
        found += [(part.name, part.count, 0, -part.ns) for part in gone]
        found += [(p.before.name, p.before.count, p.after.count, p.change_ns) for p in self.pairs]
        return [one for one in found if one[1] != one[2]]

    @property
    def same_launches(self) -> bool:
        """Whether both sides launch the same kernels equally often, with the same grids and blocks."""
        return self.counted and not any(pair.moved for pair in self.pairs) and not any(self.alone)

    @cached_property
    def objects(self) -> list[tuple[Kernel, Kernel]]:
        """Return (before, after) for shared objects of equal name, or for the only object of each side."""
        before, after = ([k for k in kernels if k.kind == "object"] for kernels in self.kernels)
        named = {kernel.key: kernel for kernel in after}
        found = [(kernel, named[kernel.key]) for kernel in before if kernel.key in named]
        return [(before[0], after[0])] if not found and len(before) == len(after) == 1 else found

    @property
    def same_objects(self) -> bool:
        """Whether every shared object has a counterpart with equal code on the other side."""
        return self.matched and all(one.code and one.code == two.code for one, two in self.objects)

    @property
    def matched(self) -> bool:
        """Whether every shared object has a counterpart on the other side."""
        return sum(kernel.kind == "object" for kernels in self.kernels for kernel in kernels) == 2 * len(self.objects)


def _parts(census: Census, kernels: Sequence[Kernel]) -> list[Part]:
    """Group a call's launches into kernels, by name and compiled code."""
    compiled = {kernel.key: kernel for kernel in kernels if kernel.kind == "triton"}
    native = {kernel.name: kernel for kernel in kernels if kernel.kind == "cuda"}
    found: dict[tuple[str, str], list[Launch]] = {}
    for launch in census.launches:
        found.setdefault((launch.name, launch.compiled), []).append(launch)
    parts = [Part(name, tuple(own), compiled.get(key) or native.get(name)) for (name, key), own in found.items()]
    return sorted(parts, key=lambda p: (p.name, repr(sorted(p.kernel.constants.items())) if p.kernel else "", p.shape))


# ---------------------------------------------------------------- numbers in few words


def ns(value: float) -> str:
    """Return a time in ns as text: `1.23 ms`."""
    return _scaled(value, ("ns", "µs", "ms", "s"))


def bytes_of(value: float) -> str:
    """Return a number of bytes as text: `1.23 MB`."""
    return _scaled(value, ("bytes", "kB", "MB", "GB"))


def _scaled(value: float, units: Sequence[str]) -> str:
    power = max(p for p in range(4) if p == 0 or abs(value) >= 1000**p)
    return f"{value / 1000**power:.3g} {units[power]}"


def listed(items: Sequence[str]) -> str:
    """Return the first items, joined by commas, and how many more there are."""
    rest = len(items) - _LISTED
    return ", ".join(items[:_LISTED]) + (f" and {rest} more" if rest > 0 else "")


def dims(values: Sequence[int]) -> str:
    """Return a grid or block as text without trailing sizes of 1: `128`, `16x16`."""
    return re.sub(r"(x1)+$", "", "x".join(map(str, values)))


def recounts(moved: Sequence[tuple[str, int, int, float]]) -> str:
    """Return changed numbers of launches as text: `clamp 0 -> 1 times a call (650 µs)`."""
    return listed([f"{name} {one} -> {two} times a call ({ns(abs(spent))})" for name, one, two, spent in moved])


def changes(both: Mapping[str, tuple[Value, Value]]) -> str:
    """Return the settings that differ as text: `BLOCK 64 -> 128, warps 4 -> 8`."""
    return listed([f"{name} {one} -> {two}" for name, (one, two) in both.items() if one != two])
