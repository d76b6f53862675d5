"""The evidence of one changed row, both sides beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from abprof.records import Census, Comparison, Kernel, Launch, Sampled

SHARE = 0.25  # of a row's change that a cause must be large enough to carry, where its own time is known
_MOST = 2.0  # times a row's change that a kernel's own may be: more, and the profiled call tells of something else
# Of a kernel's own time. The profiled call reads most kernels by up to 1 % apart on two sides of an H200 (docs/CAUSES.md):
# a smaller change of one kernel is not told from that.
_FLOOR = 0.03
_ALL = 0.8  # of a call's time: a kernel that is so much of it is what the verdict is about, whatever one profiled call read


@dataclass(frozen=True)
class Part:
    """A kernel that a call launches: its launches, and what is known of its code (None where it is a library's)."""

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
        """Grids and blocks, and how often."""
        return sorted((launch.grid, launch.block, launch.count) for launch in self.launches)

    @property
    def registers(self) -> int | None:
        """A thread's: as the machine code says, else as the profiler saw."""
        if self.kernel is not None and self.kernel.registers is not None:
            return self.kernel.registers
        seen = {launch.registers for launch in self.launches}
        return seen.pop() if len(seen) == 1 else None

    @property
    def choice(self) -> tuple[str, str]:
        """(what its autotuner took, what it took it from)."""
        said = {(launch.choice, launch.offered) for launch in self.launches}
        return said.pop() if len(said) == 1 else ("", "")


@dataclass(frozen=True)
class Pair:
    """A kernel on both sides, by its name, or by its code under another name."""

    before: Part
    after: Part

    @property
    def renamed(self) -> bool:
        return self.before.name != self.after.name

    @property
    def same_code(self) -> bool | None:
        """Whether both are the same machine code; None where that is not known of one of them."""
        one, two = self.before.kernel, self.after.kernel
        return one.code == two.code if one and two and one.code and two.code else None

    @property
    def moved(self) -> bool:
        """Whether it is launched with another grid or block, or another number of times."""
        return self.before.shape != self.after.shape

    @property
    def read(self) -> tuple[Mapping[str, int], Mapping[str, int]] | None:
        """Instructions by class on both sides; None where one of them was not read."""
        one, two = self.before.kernel, self.after.kernel
        return (one.classes, two.classes) if one and two and one.classes and two.classes else None


@dataclass(frozen=True)
class Sides:
    """A row that changed, and everything that was recorded of what it runs."""

    row: Comparison
    on_gpu: bool
    base_ns: float  # the judged time of `from`
    census: tuple[Census | None, Census | None]
    kernels: tuple[tuple[Kernel, ...], tuple[Kernel, ...]]  # of the row's package
    phases: tuple[Mapping[str, float | None] | None, Mapping[str, float | None] | None]
    sampled: tuple[Sampled | None, Sampled | None] = (None, None)  # by perf, where it took samples

    @property
    def slower(self) -> bool:
        return (self.row.pct or 0.0) > 0

    @property
    def change_ns(self) -> float:
        """How much longer a call takes; negative is faster."""
        return self.base_ns * (self.row.pct or 0.0) / 100

    @property
    def counted(self) -> bool:
        """Whether what a call launches is known on both sides."""
        return all(census is not None and not census.missing for census in self.census)

    def carries(self, ns: float) -> bool:
        """Whether a difference of so many ns is of the row's sign, and large enough to be its cause."""
        return ns * self.change_ns > 0 and abs(ns) >= SHARE * abs(self.change_ns)

    def shown(self, pair: Pair) -> bool:
        """Whether the profiled call shows that this kernel's own time makes up the row's change: of its sign, between a
        quarter of it and twice as much, and more than such a call scatters by."""
        ns = pair.after.ns - pair.before.ns
        return self.carries(ns) and abs(ns) <= _MOST * abs(self.change_ns) and abs(ns) >= _FLOOR * pair.before.ns

    def is_all(self, pair: Pair) -> bool:
        """Whether this kernel is nearly all of the call and the only one that differs, and the row's change too small for
        one profiled call to show: then what the verdict's many turns say of the call is said of this kernel."""
        others = (one for one in self.pairs if one is not pair)
        alone = not self.gone and not self.new and all(one.same_code and not one.moved for one in others)
        scatter = _FLOOR * pair.before.ns
        back = (pair.before.ns - pair.after.ns) * (1 if self.slower else -1)  # how far that call read the other way
        small = abs(self.change_ns) < 2 * scatter and back < scatter
        return alone and small and pair.before.ns >= _ALL * self.base_ns

    @cached_property
    def parts(self) -> tuple[list[Part], list[Part]]:
        """What a call launches, on each side."""
        before, after = (_parts(c, kernels) if c else [] for c, kernels in zip(self.census, self.kernels, strict=True))
        return before, after

    @cached_property
    def pairs(self) -> list[Pair]:
        """Kernels of both sides: by name and order, the rest by equal code."""
        before, after = self.parts
        found = []
        for name in dict.fromkeys(part.name for part in before):
            mine, theirs = ([p for p in parts if p.name == name] for parts in (before, after))
            if len(mine) == len(theirs):
                found += [Pair(one, two) for one, two in zip(mine, theirs, strict=True)]
        left = [part for part in before if all(part is not pair.before for pair in found)]
        right = [part for part in after if all(part is not pair.after for pair in found)]
        for part in left:
            same = [p for p in right if p.name != part.name and Pair(part, p).same_code and p.count == part.count]
            if len(same) == 1:
                found.append(Pair(part, same[0]))
                right.remove(same[0])
        return found

    @property
    def gone(self) -> list[Part]:
        """Kernels that only `from` launches."""
        return [part for part in self.parts[0] if all(part is not pair.before for pair in self.pairs)]

    @property
    def new(self) -> list[Part]:
        """Kernels that only `to` launches."""
        return [part for part in self.parts[1] if all(part is not pair.after for pair in self.pairs)]

    @property
    def same_launches(self) -> bool:
        """Whether both sides launch the same kernels as often, with the same grids."""
        alike = not any(pair.moved for pair in self.pairs)
        return self.counted and alike and not self.gone and not self.new

    @cached_property
    def objects(self) -> list[tuple[Kernel, Kernel]]:
        """The sides' own shared objects, by name; two that are alone on their sides belong together under any names."""
        before, after = ([k for k in kernels if k.kind == "object"] for kernels in self.kernels)
        named = {kernel.key: kernel for kernel in after}
        found = [(kernel, named[kernel.key]) for kernel in before if kernel.key in named]
        if not found and len(before) == len(after) == 1:
            found = [(before[0], after[0])]
        return found

    @property
    def matched(self) -> bool:
        """Whether every object of one side has its like on the other."""
        return sum(kernel.kind == "object" for kernels in self.kernels for kernel in kernels) == 2 * len(self.objects)

    @property
    def whole(self) -> bool:
        """Whether the objects are matched, and all of them were read."""
        return self.matched and all(not kernel.missing for pair in self.objects for kernel in pair)


def _parts(census: Census, kernels: Sequence[Kernel]) -> list[Part]:
    """Launches put together by name and compiled kernel, in a fixed order."""
    known = {kernel.key: kernel for kernel in kernels if kernel.kind == "triton"}
    native = {kernel.name: kernel for kernel in kernels if kernel.kind == "cuda"}
    found: dict[tuple[str, str], list[Launch]] = {}
    for launch in census.launches:
        found.setdefault((launch.name, launch.compiled), []).append(launch)
    parts = [Part(name, tuple(own), known.get(key) or native.get(name)) for (name, key), own in found.items()]
    return sorted(parts, key=lambda part: (part.name, _constants(part), part.shape))


def _constants(part: Part) -> str:
    return repr(sorted(part.kernel.constants.items())) if part.kernel else ""
