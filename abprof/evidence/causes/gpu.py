"""Rules over a GPU's launches and machine code, and over Nsight Compute's counters of both arms (`--probe ncu`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal

from abprof.evidence.causes.sides import SHARE, Pair, Sides, bytes_of, changes, dims, ns, recounts
from abprof.evidence.ncu import recording
from abprof.records import Cause, Comparison, KernelProfile, Profile, Value
from abprof.records.quantities import plural

_SIZES = re.compile(r"(^|_)(BLOCK|TILE|CHUNK)|(BLOCK|TILE)$|^B[MNK]$", re.IGNORECASE)  # a program's share of the work
_SPILLS = 4  # instructions of local memory: one or two are an array's and cost nothing
_GROWN = 1.2  # a class of instructions that grew by less is not an additional pass
_HIDDEN = 0.05  # of a call's kernel time: less that overlaps is nothing to lose
_ACCESSES = ("global loads", "global stores", "asynchronous copies", "atomics")
_CODE = ("census", "kernels")
Found = tuple[str, str] | None  # kind, text


def causes(sides: Sides) -> list[Cause]:
    """What changed in what a call launches, the surest first."""
    found = [*_launches(sides), *_overlap(sides)]
    for pair in sides.pairs:
        if pair.same_code is not None or pair.moved or _settings(pair):
            found += _code(sides, pair)
    return found


def same_code(sides: Sides) -> list[Cause]:
    """No change of code explains the row: machine code and launches are equal. Kernels whose code was not read (a library's,
    mostly) must not have changed by what would explain it."""
    unread = [pair for pair in sides.pairs if pair.same_code is None]
    known = len(sides.pairs) > len(unread) and all(pair.same_code is not False for pair in sides.pairs)
    if not (sides.same_launches and known and sides.same_objects) or sides.carries(_change_ns(unread)):
        return []
    text = "same machine code and the same launches on both sides, different time"
    if sides.row.metric == "wall" and not sides.carries(_change_ns(sides.pairs)):
        text = "same machine code and the same launches on the device: what changed is on the host"
    elif clocked(sides):
        clock = sides.row.clock_pct or 0.0
        text += f"; the device's clock was {abs(clock):.1f} % {'lower' if clock < 0 else 'higher'}"
    return [Cause(kind="same_code", text=text, evidence=("census", "kernels", "clock"))]


def clocked(sides: Sides) -> bool:
    """Whether the device's clock moved the other way by a quarter of the row's change or more."""
    clock, pct = sides.row.clock_pct, sides.row.pct or 0.0
    return clock is not None and abs(clock) >= SHARE * abs(pct) and clock * pct < 0


def _change_ns(pairs: Sequence[Pair]) -> float:
    return sum(pair.change_ns for pair in pairs)


# ---------------------------------------------------------------- what is launched


def _launches(sides: Sides) -> Iterator[Cause]:
    """Launches that were added or removed; a renamed kernel is neither."""
    moved = sides.recounted
    count = sum(after - before for _, before, after, _ in moved)
    if not moved or not sides.carries(sum(spent for *_, spent in moved)):
        return
    if sides.along(count):
        kind, head = "launches", f"{plural(abs(count), 'kernel launch', 'kernel launches')} "
        head += "added to a call" if count > 0 else "gone from a call"
    else:  # as many, or fewer that take longer
        kind, head = "kernels_replaced", "other kernels are launched"
    names = tuple(name for name, *_ in moved)
    yield Cause(kind=kind, text=f"{head}: {recounts(moved)}", kernels=names, evidence=("census",))


def _overlap(sides: Sides) -> Iterator[Cause]:
    """Kernels that ran beside each other on one side only."""
    before, after = (census.hidden_ns if census else None for census in sides.census)
    total = sum(part.ns for part in sides.parts[0])
    if before is None or after is None or not sides.same_launches or not total:
        return
    halved = min(before, after) < max(before, after) / 2
    if max(before, after) >= _HIDDEN * total and sides.carries(before - after) and halved:
        text = (
            f"overlap {'lost' if after < before else 'gained'}: of a call's kernel time {ns(before)} -> {ns(after)} "
            "passed beside another kernel"
        )
        yield Cause(kind="overlap", text=text, evidence=("census",))


def _launched(pair: Pair, what: Literal["grid", "block"]) -> str:
    """`8192 -> 16384`: the grid or block of all launches of a side, if known and different."""
    one, two = ({getattr(launch, what) for launch in part.launches} for part in (pair.before, pair.after))
    known = len(one) == len(two) == 1 and all(map(any, (*one, *two)))
    return f"{dims(*one)} -> {dims(*two)}" if known and one != two else ""


# ---------------------------------------------------------------- what a kernel is made of


def _code(sides: Sides, pair: Pair) -> list[Cause]:
    """Why a kernel's own time changed: the first rule that holds, or the kernel itself, which narrows the search.

    A constant alone is the weakest: nothing else was seen of the change, so the profiled call must show the kernel.
    """
    shown, whole, name = sides.shown(pair), sides.is_all(pair), pair.after.name
    rules = (_autotune, _tensor, _block_size, _stages, _spills, _memory, _constants)
    for rule in (_grid,) if pair.same_code else rules:
        found = rule(sides, pair) if shown or (whole and rule is not _constants) else None
        if found is not None:
            evidence = ("census",) if pair.before.kernel is None else _CODE
            return [Cause(kind=found[0], text=f"{found[1]} in {name}", kernels=(name,), evidence=evidence)]
    if not shown or pair.same_code is not False:
        return []
    times = f"{ns(pair.before.ns)} -> {ns(pair.after.ns)}"
    text = f"the change is in {name}: {times} in the profiled call, other machine code; no rule explains the time"
    return [Cause(kind="kernel", text=text, kernels=(name,), evidence=_CODE)]


def _grid(_sides: Sides, pair: Pair) -> Found:
    moved = [f"{what} ({change})" for what in ("grid", "block") if (change := _launched(pair, what))]
    return ("grid", f"the same code is launched with another {' and '.join(moved)}") if moved else None


def _autotune(_sides: Sides, pair: Pair) -> Found:
    (before, one), (after, two) = pair.before.choice, pair.after.choice
    if not before or not after or before == after:
        return None
    others = "" if one == two else "other configurations to choose from, and a "
    return "autotune", f"{others}different autotune choice ({before} -> {after})"


def _tensor(sides: Sides, pair: Pair) -> Found:
    counts = pair.classes("tensor")
    if counts is None or min(counts) > 0 or not sides.along(counts[0] - counts[1]):
        return None
    return "tensor", f"tensor-core instructions {counts[0]} -> {counts[1]}"


def _block_size(_sides: Sides, pair: Pair) -> Found:
    sizes = {name: both for name, both in _settings(pair).items() if _SIZES.search(name) or name == "warps"}
    if not sizes:
        blocks = _launched(pair, "block")
        return ("block_size", f"block size changed: {blocks} threads") if blocks else None
    grids = _launched(pair, "grid")
    return "block_size", f"block size changed: {changes(sizes)}{f', grid {grids}' if grids else ''}"


def _stages(sides: Sides, pair: Pair) -> Found:
    stages, copies = _settings(pair).get("stages"), pair.classes("asynchronous copies")
    way = f"overlap of copies and arithmetic {'lost' if sides.slower else 'gained'}"
    copied = f"asynchronous copies {copies[0]} -> {copies[1]}" if copies and copies[0] != copies[1] else ""
    if stages is None:
        lost = copies is not None and min(copies) == 0 and sides.along(copies[0] - copies[1])
        return ("overlap", f"{way}: {copied}") if lost else None
    text = f"pipeline stages {stages[0]} -> {stages[1]}{f', {copied}' if copied else ''}"
    return ("overlap", f"{way}: {text}") if sides.along(int(stages[0]) - int(stages[1])) else ("stages", text)


def _spills(sides: Sides, pair: Pair) -> Found:
    stores, loads = pair.classes("local stores"), pair.classes("local loads")
    if stores is None or loads is None:
        return None
    more = stores[1] + loads[1] - stores[0] - loads[0]
    if abs(more) < _SPILLS or not sides.along(more):
        return None
    registers = pair.before.registers, pair.after.registers
    both: dict[str, tuple[Value, Value]] = {"spill stores": stores, "spill loads": loads}
    if registers[0] is not None and registers[1] is not None:
        both = {"registers": (registers[0], registers[1])} | both
    return "spills", changes(both)


def _memory(sides: Sides, pair: Pair) -> Found:
    """More instructions that access global memory, by more than the whole code grew: an unrolled loop has more of all."""
    each = {name: both for name in _ACCESSES if (both := pair.classes(name)) is not None}
    loops, accesses = pair.classes("loops"), pair.classes(*_ACCESSES)
    whole = pair.classes() or (0, 0)
    if loops is None or accesses is None or not sides.along(accesses[1] - accesses[0]):
        return None
    if max(accesses) < _GROWN * min(accesses):
        return None
    if sides.along(loops[1] - loops[0]):
        way = f"a loop {'more' if sides.slower else 'less'} over global memory"
        return "memory", f"{way}: {changes({'loops': loops} | each)}"
    grown = accesses[1] / max(accesses[0], 1), whole[1] / max(whole[0], 1)
    if (grown[0] <= 1.1 * grown[1]) if sides.slower else (1.1 * grown[0] >= grown[1]):
        return None
    return "memory", f"{'more' if sides.slower else 'less'} global memory traffic: {changes(each)}"


def _constants(_sides: Sides, pair: Pair) -> Found:
    changed = _settings(pair)
    return ("constants", f"constants changed: {changes(changed)}") if changed else None


def _settings(pair: Pair) -> dict[str, tuple[Value, Value]]:
    """Constants, warps, stages and CTAs that are known on both sides and differ."""
    one, two = pair.before.kernel, pair.after.kernel
    if one is None or two is None:
        return {}
    before, after = ({**k.constants, "warps": k.warps, "stages": k.stages, "CTAs": k.ctas} for k in (one, two))
    known = {name: (before[name], after[name]) for name in before if name in after and before[name] != after[name]}
    return {name: (a, b) for name, (a, b) in known.items() if a is not None and b is not None}


# ---------------------------------------------------------------- counters

# Counters show what a kernel does, not how fast it is. So a rule needs a change of bytes, and that the kernel waits for
# that memory: the bytes, at the rate at which the slower side moves bytes, must make up half of the kernel's change
# (time = bytes / rate, the roofline's memory side: Williams, Waterman and Patterson 2009).
_BOUND = 60.0  # % of its peak rate from which a kernel waits for DRAM
_COALESCED = 10.0  # points of efficiency: less may be a few accesses at the edges
_GREW = 1.1  # times the bytes: less is not an additional pass over memory
_HALF = 0.5  # share of a kernel's change that bytes must explain
Kernels = tuple[KernelProfile, KernelProfile]


def profiles_of(profiles: Sequence[Profile], row: Comparison) -> tuple[Profile, Profile] | None:
    """The full profiles of both arms of the row, if both succeeded."""
    known = {one.arm: one for one in profiles if one.cell == row.cell and one.purpose == "profile" and not one.missing}
    return (known[row.from_], known[row.to]) if row.from_ in known and row.to in known else None


def counted(sides: Sides, profiles: tuple[Profile, Profile]) -> list[Cause]:
    """What the counters of the row's arms show, the kernel that changed most first."""
    found = []
    for pair in sorted(_profiled(*profiles), key=lambda pair: -abs(_longer(pair))):
        # Under ncu, too, the kernel's time must have moved with the row's, by enough to matter.
        rule = (_coalescing(sides, pair) or _traffic(sides, pair)) if sides.carries(_longer(pair)) else None
        if rule is not None:
            name = pair[1].name
            found.append(Cause(kind=rule[0], text=f"{rule[1]} in {name}", kernels=(name,), evidence=("ncu",)))
    return found


def refutes(cause: Cause, profiles: tuple[Profile, Profile]) -> bool:
    """Whether counters refute a `memory` cause: the kernel moves as many bytes on both sides, through L2 and through L1
    (which does not count loads of the tensor memory accelerator)."""
    for pair in _profiled(*profiles) if cause.kind == "memory" else ():
        moved = [both for names in (recording.L2_BYTES, recording.L1_BYTES) if (both := _both(pair, names)) is not None]
        if pair[1].name in cause.kernels and moved and all(max(both) < _GREW * min(both) for both in moved):
            return True
    return False


def _profiled(before: Profile, after: Profile) -> Iterator[Kernels]:
    """Timed kernels whose name occurs once on each side, whatever the grid."""
    for name in dict.fromkeys(kernel.name for kernel in before.kernels):
        one, two = ([kernel for kernel in side.kernels if kernel.name == name] for side in (before, after))
        if len(one) == len(two) == 1 and all(recording.TIME in kernel.metrics for kernel in (*one, *two)):
            yield one[0], two[0]


def _longer(pair: Kernels) -> float:
    one, two = (kernel.metrics[recording.TIME] * kernel.launches_a_call for kernel in pair)
    return two - one


def _coalescing(sides: Sides, pair: Kernels) -> Found:
    """A smaller share of the moved bytes is requested, and more bytes are moved."""
    moved = _both(pair, recording.L2_BYTES)
    for name, what in ((recording.LOAD_EFFICIENCY, "load"), (recording.STORE_EFFICIENCY, "store")):
        used = [kernel.metrics[name] for kernel in pair if name in kernel.metrics]
        if len(used) < 2 or moved is None or abs(used[1] - used[0]) < _COALESCED:
            continue
        if sides.along(used[0] - used[1]) and _explains(pair, moved):
            return "coalescing", (
                f"global memory is accessed {'less' if sides.slower else 'more'} coalesced: "
                f"{what} efficiency {used[0]:.0f} -> {used[1]:.0f} %, "
                f"L2 bytes a call {bytes_of(moved[0])} -> {bytes_of(moved[1])}"
            )
    return None


def _traffic(sides: Sides, pair: Kernels) -> Found:
    """Another number of bytes between DRAM and L2, of a kernel that waits for them."""
    busy = pair[sides.slower].metrics.get(recording.DRAM_BUSY, 0.0)
    moved = next((found for names in recording.DRAM_BYTES if (found := _both(pair, names)) is not None), None)
    if moved is None or busy < _BOUND or not _explains(pair, moved):
        return None
    way, hits = "more" if sides.slower else "less", [kernel.metrics.get(recording.L2_HITS) for kernel in pair]
    text = f"{way} DRAM traffic: {bytes_of(moved[0])} -> {bytes_of(moved[1])} a call with DRAM {busy:.0f} % busy"
    known = f", L2 hit rate {hits[0]:.0f} -> {hits[1]:.0f} %" if None not in hits and hits[0] != hits[1] else ""
    return "dram_traffic", text + known


def _explains(pair: Kernels, moved: tuple[float, float]) -> bool:
    """Whether the additional bytes, at the slower side's rate, take at least half of the kernel's change."""
    longest = max(kernel.metrics[recording.TIME] * kernel.launches_a_call for kernel in pair)
    took = (moved[1] - moved[0]) / max(moved) * longest if max(moved) else 0.0
    return took * _longer(pair) > 0 and abs(took) >= _HALF * abs(_longer(pair))


def _both(pair: Kernels, names: Sequence[str]) -> tuple[float, float] | None:
    """The sum of these metrics on both sides, per call; None if one is missing."""
    if any(name not in kernel.metrics for kernel in pair for name in names):
        return None
    one, two = (sum(kernel.metrics[name] for name in names) * kernel.launches_a_call for kernel in pair)
    return one, two
