"""Rules over Nsight Compute's counters of both arms, if it profiled them (`--probe ncu`).

Counters show what a kernel does, not how fast it is. So a rule needs a change of bytes, and that the kernel waits for
that memory: the bytes, at the rate at which the slower side moves bytes, must make up half of the kernel's change
(time = bytes / rate, the roofline's memory side: Williams, Waterman and Patterson 2009).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from abprof.evidence.causes import wording
from abprof.evidence.causes.sides import Sides
from abprof.evidence.ncu import recording
from abprof.records import Cause, Comparison, KernelProfile, Profile

_BOUND = 60.0  # % of its peak rate from which a kernel waits for DRAM
_POINTS = 5.0  # of a rate in %: less may be the placement of other data
_COALESCED = 10.0  # points of efficiency: less may be a few accesses at the edges
_GREW = 1.1  # times the bytes: less is not an additional pass over memory
_HALF = 0.5  # share of a kernel's change that bytes must explain
Kernels = tuple[KernelProfile, KernelProfile]


def of_row(profiles: Sequence[Profile], row: Comparison) -> tuple[Profile, Profile] | None:
    """The full profiles of both arms of the row, if both succeeded."""
    known = {one.arm: one for one in profiles if one.cell == row.cell and one.purpose == "profile" and not one.missing}
    return (known[row.from_], known[row.to]) if row.from_ in known and row.to in known else None


def causes(sides: Sides, profiles: tuple[Profile, Profile]) -> list[Cause]:
    """What the counters of the row's arms show, the kernel that changed most first."""
    # Under ncu, too, the kernel's time must have moved with the row's, by enough to matter.
    pairs = [pair for pair in _pairs(*profiles) if sides.carries(_change_ns(pair))]
    found = []
    for pair in sorted(pairs, key=lambda pair: -abs(_change_ns(pair))):
        rule = _coalescing(sides, pair) or _traffic(sides, pair)
        if rule is not None:
            name = pair[1].name
            found.append(Cause(kind=rule[0], text=f"{rule[1]} in {name}", kernels=(name,), evidence=("ncu",)))
    return found


def refutes(cause: Cause, profiles: tuple[Profile, Profile]) -> bool:
    """Whether counters refute a `memory` cause: the kernel moves as many bytes on both sides, through L2 and through L1
    (which does not count loads of the tensor memory accelerator)."""
    if cause.kind != "memory":
        return False
    for pair in _pairs(*profiles):
        moved = [both for names in (recording.L2_BYTES, recording.L1_BYTES) if (both := _both(pair, names)) is not None]
        if pair[1].name in cause.kernels and moved and all(max(both) < _GREW * min(both) for both in moved):
            return True
    return False


def _pairs(before: Profile, after: Profile) -> Iterator[Kernels]:
    """Kernels whose name occurs once on each side, whatever the grid."""
    for one in before.kernels:
        same = [[kernel for kernel in side.kernels if kernel.name == one.name] for side in (before, after)]
        if (
            [len(found) for found in same] == [1, 1]
            and recording.TIME in one.metrics
            and recording.TIME in same[1][0].metrics
        ):
            yield one, same[1][0]


def _change_ns(pair: Kernels) -> float:
    one, two = (kernel.metrics[recording.TIME] * kernel.launches_a_call for kernel in pair)
    return two - one


def _coalescing(sides: Sides, pair: Kernels) -> tuple[str, str] | None:
    """A smaller share of the moved bytes is requested, and more bytes are moved."""
    moved = _both(pair, recording.L2_BYTES)
    for name, what in ((recording.LOAD_EFFICIENCY, "load"), (recording.STORE_EFFICIENCY, "store")):
        used = _both(pair, (name,), per_launch=True)
        if used is None or moved is None or abs(used[1] - used[0]) < _COALESCED:
            continue
        if (used[1] < used[0]) == sides.slower and _explains(pair, moved):
            return "coalescing", (
                f"global memory is accessed {'less' if sides.slower else 'more'} coalesced: "
                f"{what} efficiency {used[0]:.0f} -> {used[1]:.0f} %, "
                f"L2 bytes a call {wording.bytes_of(moved[0])} -> {wording.bytes_of(moved[1])}"
            )
    return None


def _traffic(sides: Sides, pair: Kernels) -> tuple[str, str] | None:
    """Another number of bytes between DRAM and L2, of a kernel that waits for them."""
    busy = pair[sides.slower].metrics.get(recording.DRAM_BUSY, 0.0)
    moved = next((found for names in recording.DRAM_BYTES if (found := _both(pair, names)) is not None), None)
    if moved is None or busy < _BOUND or not _explains(pair, moved):
        return None
    text = (
        f"{'more' if sides.slower else 'less'} DRAM traffic: {wording.bytes_of(moved[0])} -> "
        f"{wording.bytes_of(moved[1])} a call with DRAM {busy:.0f} % busy"
    )
    hits = _both(pair, (recording.L2_HITS,), per_launch=True)
    if hits is not None and abs(hits[1] - hits[0]) >= _POINTS and (hits[1] < hits[0]) == sides.slower:
        text += f", L2 hit rate {hits[0]:.0f} -> {hits[1]:.0f} %"
    return "dram_traffic", text


def _explains(pair: Kernels, moved: tuple[float, float]) -> bool:
    """Whether the additional bytes, at the slower side's rate, take at least half of the kernel's change."""
    longest = max(kernel.metrics[recording.TIME] * kernel.launches_a_call for kernel in pair)
    took = (moved[1] - moved[0]) / max(moved) * longest if max(moved) else 0.0
    change = _change_ns(pair)
    return took * change > 0 and abs(took) >= _HALF * abs(change)


def _both(pair: Kernels, names: Sequence[str], *, per_launch: bool = False) -> tuple[float, float] | None:
    """A metric on both sides, per call; None if it is missing on one."""
    if any(name not in kernel.metrics for kernel in pair for name in names):
        return None
    one, two = (sum(k.metrics[name] for name in names) * (1 if per_launch else k.launches_a_call) for k in pair)
    return one, two
