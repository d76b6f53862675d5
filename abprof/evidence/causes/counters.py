"""Rules over what Nsight Compute counted of both arms, where it looked (`--probe ncu`).

Counters say what a kernel does and not how fast it is, so a rule needs two things of them: that they changed, and that
the memory they count is what the kernel waits for. Bytes that came at the rate at which the slower side moves bytes
must make up half of the kernel's change (time = bytes / rate, the roofline's memory side: Williams, Waterman and
Patterson 2009).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from abprof.evidence.causes import say
from abprof.evidence.causes.sides import Sides
from abprof.evidence.ncu.metrics import (
    DRAM_BUSY,
    DRAM_BYTES,
    L1_BYTES,
    L2_BYTES,
    L2_HITS,
    LOAD_EFFICIENCY,
    STORE_EFFICIENCY,
    TIME,
)
from abprof.records import Cause, KernelProfile, Profile

_BOUND = 60.0  # % of its peak rate: from there on DRAM is what a kernel waits for
_POINTS = 5.0  # of a rate in %: less is the placement of other data
_COALESCED = 10.0  # points of efficiency: less is a few accesses at the edges
_GREW = 1.1  # times the bytes: less is no pass over memory more
_HALF = 0.5  # of a kernel's change that bytes must explain


def causes(sides: Sides, profiles: tuple[Profile, Profile]) -> list[Cause]:
    """What the counters of the row's two arms say, the kernel that changed most first."""
    pairs = [(one, two) for one, two in _pairs(*profiles) if _carries(sides, one, two)]
    pairs.sort(key=lambda pair: -abs(_ns(pair[1]) - _ns(pair[0])))
    return [cause for one, two in pairs for cause in _first(sides, one, two)]


def refutes(cause: Cause, profiles: tuple[Profile, Profile]) -> bool:
    """Whether a cause that the code's loads and stores suggest is none: the kernel moves as many bytes on both sides,
    through L2 and through L1 (which does not count what the tensor memory accelerator loads)."""
    if cause.kind != "memory":
        return False
    for one, two in _pairs(*profiles):
        moved = [both for names in (L2_BYTES, L1_BYTES) if (both := _both(one, two, names)) is not None]
        if two.name in cause.kernels and moved and all(max(both) < _GREW * min(both) for both in moved):
            return True
    return False


def of_row(profiles: Sequence[Profile], sides: Sides) -> tuple[Profile, Profile] | None:
    """The counters of both arms of the row, where each was looked at in full and told them."""
    row = sides.row
    told = {one.arm: one for one in profiles if one.cell == row.cell and one.purpose == "profile" and not one.missing}
    return (told[row.from_], told[row.to]) if row.from_ in told and row.to in told else None


def _pairs(before: Profile, after: Profile) -> Iterator[tuple[KernelProfile, KernelProfile]]:
    """Kernels of one name, where a call launches one such on each side; whatever its grid."""
    for one in before.kernels:
        same = [[kernel for kernel in side.kernels if kernel.name == one.name] for side in (before, after)]
        if [len(found) for found in same] == [1, 1] and TIME in one.metrics and TIME in same[1][0].metrics:
            yield one, same[1][0]


def _ns(kernel: KernelProfile) -> float:
    return kernel.metrics[TIME] * kernel.launches_a_call


def _carries(sides: Sides, one: KernelProfile, two: KernelProfile) -> bool:
    """Under ncu too the kernel's time went the row's way, by enough to matter to it."""
    return sides.carries(_ns(two) - _ns(one))


def _first(sides: Sides, one: KernelProfile, two: KernelProfile) -> Iterator[Cause]:
    for rule in (_coalescing, _traffic):
        told = rule(sides, one, two)
        if told is not None:
            kind, text = told
            yield Cause(kind=kind, text=f"{text} in {two.name}", kernels=(two.name,), evidence=("ncu",))
            return


def _coalescing(sides: Sides, one: KernelProfile, two: KernelProfile) -> tuple[str, str] | None:
    """Fewer of the bytes that a memory access moves are asked for, and more bytes are moved."""
    for name, what in ((LOAD_EFFICIENCY, "load"), (STORE_EFFICIENCY, "store")):
        used = _both(one, two, (name,), a_launch=True)
        moved = _both(one, two, L2_BYTES)
        if used is None or moved is None or abs(used[1] - used[0]) < _COALESCED:
            continue
        if (used[1] < used[0]) == sides.slower and _explains(one, two, moved):
            way = "less" if sides.slower else "more"
            return "coalescing", (
                f"global memory is accessed {way} coalesced: {what} efficiency {used[0]:.0f} -> {used[1]:.0f} %, "
                f"L2 bytes a call {say.bytes_of(moved[0])} -> {say.bytes_of(moved[1])}"
            )
    return None


def _traffic(sides: Sides, one: KernelProfile, two: KernelProfile) -> tuple[str, str] | None:
    """Another number of bytes between the device's memory and L2, of a kernel that waits for them."""
    slow = two if sides.slower else one
    moved = next((found for names in DRAM_BYTES if (found := _both(one, two, names)) is not None), None)
    if moved is None or slow.metrics.get(DRAM_BUSY, 0.0) < _BOUND or not _explains(one, two, moved):
        return None
    text = (
        f"{'more' if sides.slower else 'less'} DRAM traffic: {say.bytes_of(moved[0])} -> {say.bytes_of(moved[1])} a call "
        f"with DRAM {slow.metrics[DRAM_BUSY]:.0f} % busy"
    )
    hits = _both(one, two, (L2_HITS,), a_launch=True)
    if hits is not None and abs(hits[1] - hits[0]) >= _POINTS and (hits[1] < hits[0]) == sides.slower:
        text += f", L2 hit rate {hits[0]:.0f} -> {hits[1]:.0f} %"
    return "dram_traffic", text


def _explains(one: KernelProfile, two: KernelProfile, moved: tuple[float, float]) -> bool:
    """Whether the bytes that came or went, at the slower side's rate, take at least half of the kernel's change."""
    change = _ns(two) - _ns(one)
    most = max(moved)
    took = (moved[1] - moved[0]) / most * max(_ns(one), _ns(two)) if most else 0.0
    return took * change > 0 and abs(took) >= _HALF * abs(change)


def _both(
    one: KernelProfile, two: KernelProfile, names: Sequence[str], *, a_launch: bool = False
) -> tuple[float, float] | None:
    """A metric on both sides, of a call; None where one of them was not told."""
    if any(name not in kernel.metrics for kernel in (one, two) for name in names):
        return None
    first, second = (
        sum(kernel.metrics[name] for name in names) * (1 if a_launch else kernel.launches_a_call)
        for kernel in (one, two)
    )
    return first, second
