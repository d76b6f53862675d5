"""Find causes in a GPU's launches and machine code, and in Nsight Compute's counters of both arms (`--probe ncu`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal

from abprof.evidence.causes.sides import ACCESSES, SHARE, Pair, Sides, bytes_of, changes, dims, ns, recounts
from abprof.records import Cause, KernelProfile, Profile, Value, ncu
from abprof.records.quantities import plural

_SIZES = re.compile(r"(^|_)(BLOCK|TILE|CHUNK)|(BLOCK|TILE)$|^B[MNK]$", re.IGNORECASE)  # a program's share of the work
_SPILLS = 4  # instructions of local memory: one or two are an array's and cost nothing
_GROWN = 1.2  # a class of instructions that grew by less is not an additional pass
_HIDDEN = 0.05  # share of a call's kernel time: less overlap does not count
_CODE = ("census", "kernels")


def causes(sides: Sides) -> list[Cause]:
    """Return the causes found in the launches and kernels of a call, the surest first."""
    found = [*_launches(sides), *_overlap(sides)]
    for pair in sides.pairs:
        if pair.same_code is not None or pair.moved or _settings(pair):
            found += _code(sides, pair)
    return found


def same_code(sides: Sides) -> list[Cause]:
    """Return the cause "same code" if machine code and launches are equal, and no kernel of unknown code explains the
    change; else []."""
    unread = [pair for pair in sides.pairs if pair.same_code is None]
    known = len(sides.pairs) > len(unread) and all(pair.same_code is not False for pair in sides.pairs)
    same = sides.same_launches and known and sides.same_objects
    if not same or sides.carries(sum(pair.change_ns for pair in unread)):
        return []
    text = "same machine code and the same launches on both sides, different time"
    if sides.row.metric == "wall" and not sides.carries(sum(pair.change_ns for pair in sides.pairs)):
        text = "same machine code and the same launches on the device: what changed is on the host"
    elif clocked(sides):
        clock = sides.row.clock_pct or 0.0
        text += f"; the device's clock was {abs(clock):.1f} % {'lower' if clock < 0 else 'higher'}"
    return [Cause(kind="same_code", text=text, evidence=("census", "kernels", "clock"))]


def clocked(sides: Sides) -> bool:
    """Whether the change of the GPU's clock explains at least a quarter of the change of time."""
    clock, pct = sides.row.clock_pct, sides.row.pct or 0.0
    return clock is not None and abs(clock) >= SHARE * abs(pct) and clock * pct < 0


# ---------------------------------------------------------------- what is launched


def _launches(sides: Sides) -> Iterator[Cause]:
    """Yield a cause if launches were added or removed; a renamed kernel does not count."""
    moved = sides.recounted
    count = sum(after - before for _, before, after, _ in moved)
    if not moved or not sides.carries(sum(spent for *_, spent in moved)):
        return
    if sides.along(count):
        kind, head = "launches", f"{plural(abs(count), 'kernel launch', 'kernel launches')} "
        head += "added to a call" if count > 0 else "gone from a call"
    else:  # as many launches, or fewer launches that take longer
        kind, head = "kernels_replaced", "other kernels are launched"
    names = tuple(name for name, *_ in moved)
    yield Cause(kind=kind, text=f"{head}: {recounts(moved)}", kernels=names, evidence=("census",))


def _overlap(sides: Sides) -> Iterator[Cause]:
    """Yield a cause if kernels overlap much less on one side."""
    before, after = (census.hidden_ns if census else None for census in sides.census)
    total = sum(part.ns for part in sides.parts[0])
    if before is None or after is None or not sides.same_launches or not total:
        return
    less, most = sorted((before, after))
    if most >= _HIDDEN * total and sides.carries(before - after) and less < most / 2:
        way = f"overlap {'lost' if after < before else 'gained'}"
        text = f"{way}: of a call's kernel time {ns(before)} -> {ns(after)} passed beside another kernel"
        yield Cause(kind="overlap", text=text, evidence=("census",))


def _launched(pair: Pair, what: Literal["grid", "block"]) -> str:
    """Return the change of a kernel's grid or block, `8192 -> 16384`; "" if none, unknown, or mixed on a side."""
    one, two = ({getattr(launch, what) for launch in part.launches} for part in (pair.before, pair.after))
    known = len(one) == len(two) == 1 and all(map(any, (*one, *two)))
    return f"{dims(*one)} -> {dims(*two)}" if known and one != two else ""


# ---------------------------------------------------------------- what a kernel is made of


def _code(sides: Sides, pair: Pair) -> list[Cause]:
    """Return the surest cause of one kernel's change of time; [] if it cannot explain the change of the call."""
    shown, name = sides.shown(pair), pair.after.name
    kind, text = next(_rules(sides, pair), ("", "")) if shown or sides.is_all(pair) else ("", "")
    if kind and (shown or kind != "constants"):
        evidence = ("census",) if pair.before.kernel is None else _CODE
        return [Cause(kind=kind, text=f"{text} in {name}", kernels=(name,), evidence=evidence)]
    if not shown or pair.same_code is not False:
        return []
    times = f"{ns(pair.before.ns)} -> {ns(pair.after.ns)}"
    text = f"the change is in {name}: {times} in the profiled call, other machine code; no rule explains the time"
    return [Cause(kind="kernel", text=text, kernels=(name,), evidence=_CODE)]


def _rules(sides: Sides, pair: Pair) -> Iterator[tuple[str, str]]:
    """Yield each cause that a rule finds in a kernel's code or settings, as (kind, text), the surest first."""
    settings, grids, blocks = _settings(pair), _launched(pair, "grid"), _launched(pair, "block")
    if pair.same_code:
        if moved := [f"{what} ({change})" for what, change in (("grid", grids), ("block", blocks)) if change]:
            yield "grid", f"the same code is launched with another {' and '.join(moved)}"
        return
    before, after = pair.before.choice, pair.after.choice
    if before and after and before != after:
        yield "autotune", f"different autotune choice ({before} -> {after})"
    tensor = pair.classes("tensor")
    if tensor and min(tensor) == 0 and sides.along(tensor[0] - tensor[1]):
        yield "tensor", f"tensor-core instructions {tensor[0]} -> {tensor[1]}"
    if sizes := {name: both for name, both in settings.items() if _SIZES.search(name) or name == "warps"}:
        yield "block_size", f"block size changed: {changes(sizes)}{f', grid {grids}' if grids else ''}"
    elif blocks:
        yield "block_size", f"block size changed: {blocks} threads"
    stages, copies = settings.get("stages"), pair.classes("asynchronous copies") or (0, 0)
    way = f"overlap of copies and arithmetic {'lost' if sides.slower else 'gained'}"
    copied = f"asynchronous copies {copies[0]} -> {copies[1]}" if copies[0] != copies[1] else ""
    if stages:
        text = f"pipeline stages {stages[0]} -> {stages[1]}{f', {copied}' if copied else ''}"
        lost = sides.along(int(stages[0]) - int(stages[1]))
        yield ("overlap", f"{way}: {text}") if lost else ("stages", text)
    elif min(copies) == 0 and sides.along(copies[0] - copies[1]):
        yield "overlap", f"{way}: {copied}"
    stores, loads = (pair.classes(f"local {what}") or (0, 0) for what in ("stores", "loads"))
    more = stores[1] + loads[1] - stores[0] - loads[0]
    products = abs(tensor[1] - tensor[0]) if tensor else 0  # a few spills beside many more products are not the cause
    if abs(more) >= max(_SPILLS, products) and sides.along(more):
        used = [part.kernel.registers if part.kernel else None for part in (pair.before, pair.after)]
        registers = f"registers {used[0]} -> {used[1]}, " if None not in used and used[0] != used[1] else ""
        yield "spills", registers + changes({"spill stores": stores, "spill loads": loads})
    yield from _memory(sides, pair)
    yield from _instructions(sides, pair)
    if settings:
        yield "constants", f"constants changed: {changes(settings)}"


def _memory(sides: Sides, pair: Pair) -> Iterator[tuple[str, str]]:
    """Yield a cause if global memory accesses grew (or shrank) by a larger factor than all instructions."""
    each = {name: pair.classes(name) or (0, 0) for name in ACCESSES}
    loops, accesses, whole = (pair.classes(*names) or (0, 0) for names in (("loops",), ACCESSES, ()))
    if not sides.along(accesses[1] - accesses[0]) or max(accesses) < _GROWN * min(accesses):
        return
    grown = accesses[1] / max(accesses[0], 1), whole[1] / max(whole[0], 1)
    if sides.along(loops[1] - loops[0]):
        way = f"a loop {'more' if sides.slower else 'less'} over global memory"
        yield "memory", f"{way}: {changes({'loops': loops} | each)}"
    elif loops[0] == loops[1] and ((grown[0] > 1.1 * grown[1]) if sides.slower else (1.1 * grown[0] < grown[1])):
        yield "memory", f"{'more' if sides.slower else 'less'} global memory traffic: {changes(each)}"


# (kind of cause, its words, classes of instructions, fewest that count), the surest first.
_MORE = (
    ("tensor", "tensor-core instructions", ("tensor",), 1),
    ("atomics", "atomics", ("atomics",), 1),
    ("arithmetic", "instructions of double precision", ("double precision",), 2),
    ("arithmetic", "special functions", ("special functions",), 2),
    ("shared", "accesses to shared memory", ("shared loads", "shared stores"), 4),
    ("barriers", "barriers", ("barriers",), 1),
)


def _instructions(sides: Sides, pair: Pair) -> Iterator[tuple[str, str]]:
    """Yield a cause for each class of instructions of which the slower side has more.

    Numbers of instructions are compared only between equally many loops, because unrolling multiplies them. A class that
    only one side has is a cause anyway, unless it is `tensor`: tensor cores save time.
    """
    loops, whole = pair.classes("loops") or (0, 0), pair.classes() or (0, 0)
    more = "more" if sides.slower else "fewer"

    def grown(one: int, two: int) -> bool:
        return loops[0] == loops[1] and max(one, two) >= _GROWN * min(one, two) and sides.along(two - one)

    for kind, words, names, least in _MORE:
        one, two = pair.classes(*names) or (0, 0)
        only = kind != "tensor" and not min(one, two) and sides.along(two - one)
        if abs(two - one) >= least and (only or (min(one, two) and grown(one, two))):
            yield kind, f"{more} {words}: {one} -> {two}"
    if not min(loops) and sides.along(loops[1] - loops[0]) and not sides.along(whole[1] - whole[0]):
        text = f"loops {loops[0]} -> {loops[1]}, instructions {whole[0]} -> {whole[1]}"
        yield "unrolling", f"{'a loop is not unrolled any more' if sides.slower else 'a loop is unrolled'}: {text}"
    if grown(*whole):
        yield "arithmetic", f"{more} instructions: {whole[0]} -> {whole[1]}"


def _settings(pair: Pair) -> dict[str, tuple[Value, Value]]:
    """Return constants, warps, stages and CTAs that differ, as name -> (before, after)."""
    one, two = pair.before.kernel, pair.after.kernel
    if one is None or two is None:
        return {}
    before, after = ({**k.constants, "warps": k.warps, "stages": k.stages, "CTAs": k.ctas} for k in (one, two))
    known = {name: (a, b) for name, a in before.items() if a is not None and (b := after.get(name)) is not None}
    return {name: both for name, both in known.items() if both[0] != both[1]}


# ---------------------------------------------------------------- counters

# Counters show what a kernel does, not how fast it is: the change of bytes, at the slower side's rate, must make up half of the
# kernel's change (time = bytes / rate, the roofline's memory side: Williams, Waterman and Patterson 2009).
_BOUND = 60.0  # % of its peak rate from which a kernel waits for DRAM
_COALESCED = 10.0  # points of efficiency: a smaller change may be a few accesses at the edges
_GREW = 1.1  # times the bytes: smaller growth is not an additional pass over memory
_HALF = 0.5  # share of a kernel's change that bytes must explain
Kernels = tuple[KernelProfile, KernelProfile]


def counted(sides: Sides, profiles: tuple[Profile, Profile]) -> list[Cause]:
    """Return the causes found in Nsight Compute's counters, the kernel that changed most first."""
    found = []
    for pair in sorted(_profiled(*profiles), key=lambda pair: -abs(_longer(pair))):
        # The kernel's time under ncu must also have changed in the row's direction, by enough to be the cause.
        rule = next(_counters(sides, pair), None) if sides.carries(_longer(pair)) else None
        if rule is not None:
            name = pair[1].name
            found.append(Cause(kind=rule[0], text=f"{rule[1]} in {name}", kernels=(name,), evidence=("ncu",)))
    return found


def refutes(cause: Cause, profiles: tuple[Profile, Profile]) -> bool:
    """Whether counters refute a `memory` cause: both sides move about equally many bytes through L2 and L1."""
    for pair in (pair for pair in _profiled(*profiles) if cause.kind == "memory" and pair[1].name in cause.kernels):
        moved = [both for names in (ncu.L2_BYTES, ncu.L1_BYTES) if (both := _both(pair, names)) is not None]
        return bool(moved) and all(max(both) < _GREW * min(both) for both in moved)
    return False


def _profiled(before: Profile, after: Profile) -> Iterator[Kernels]:
    """Yield (before, after) of each timed kernel whose name occurs exactly once in both profiles."""
    for name in dict.fromkeys(kernel.name for kernel in before.kernels):
        one, two = ([kernel for kernel in side.kernels if kernel.name == name] for side in (before, after))
        if len(one) == len(two) == 1 and all(ncu.TIME in kernel.metrics for kernel in (*one, *two)):
            yield one[0], two[0]


def _longer(pair: Kernels) -> float:
    one, two = (kernel.metrics[ncu.TIME] * kernel.launches_a_call for kernel in pair)
    return two - one


def _counters(sides: Sides, pair: Kernels) -> Iterator[tuple[str, str]]:
    """Yield each cause that a rule finds in a kernel's counters, as (kind, text), the surest first."""
    moved, way = _both(pair, ncu.L2_BYTES), "more" if sides.slower else "less"
    for name, what in ((ncu.LOAD_EFFICIENCY, "load"), (ncu.STORE_EFFICIENCY, "store")):
        used = [kernel.metrics[name] for kernel in pair if name in kernel.metrics]
        fell = used[0] - used[1] if len(used) == 2 else 0.0
        if moved and abs(fell) >= _COALESCED and sides.along(fell) and _explains(pair, moved):
            text = f"global memory is accessed {'less' if sides.slower else 'more'} coalesced: {what} efficiency "
            text += f"{used[0]:.0f} -> {used[1]:.0f} %, L2 bytes a call {bytes_of(moved[0])} -> {bytes_of(moved[1])}"
            yield "coalescing", text
    busy = pair[sides.slower].metrics.get(ncu.DRAM_BUSY, 0.0)
    moved = next((found for names in ncu.DRAM_BYTES if (found := _both(pair, names)) is not None), None)
    if moved and busy >= _BOUND and _explains(pair, moved):
        text = f"{way} DRAM traffic: {bytes_of(moved[0])} -> {bytes_of(moved[1])} a call with DRAM {busy:.0f} % busy"
        hits = [kernel.metrics.get(ncu.L2_HITS) for kernel in pair]
        known = f", L2 hit rate {hits[0]:.0f} -> {hits[1]:.0f} %" if None not in hits and hits[0] != hits[1] else ""
        yield "dram_traffic", text + known


def _explains(pair: Kernels, moved: tuple[float, float]) -> bool:
    """Whether the change of bytes, `moved` = (before, after), explains at least half of the kernel's change of time."""
    longest = max(kernel.metrics[ncu.TIME] * kernel.launches_a_call for kernel in pair)
    took = (moved[1] - moved[0]) / max(moved) * longest if max(moved) else 0.0
    return took * _longer(pair) > 0 and abs(took) >= _HALF * abs(_longer(pair))


def _both(pair: Kernels, names: Sequence[str]) -> tuple[float, float] | None:
    """Return the sum of the metrics `names` on each side, per call; None if a metric is missing."""
    if any(name not in kernel.metrics for kernel in pair for name in names):
        return None
    one, two = (sum(kernel.metrics[name] for name in names) * kernel.launches_a_call for kernel in pair)
    return one, two
