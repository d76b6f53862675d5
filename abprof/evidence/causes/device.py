"""Rules over a GPU's launches and machine code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Literal

from abprof.evidence.causes import say
from abprof.evidence.causes.sides import SHARE, Pair, Sides
from abprof.records import Cause, Value

# What a program works on at once.
_SIZES = re.compile(r"(^|_)(BLOCK|TILE|CHUNK)|(BLOCK|TILE)$|^B[MNK]$", re.IGNORECASE)
_SPILLS = 4  # instructions of local memory more or fewer: one or two are an array's, and cost nothing
_GROWN = 1.2  # a class of instructions that grew by less than a fifth is no extra pass
_HIDDEN = 0.05  # of a call's kernel time: less that ran beside other kernels was no overlap to lose
_CODE = ("census", "kernels")


def causes(sides: Sides) -> list[Cause]:
    """What changed in what a call launches, the surest first."""
    found = [*_launches(sides), *_overlap(sides)]
    for pair in sides.pairs:
        if pair.same_code is True:
            found += _grid(sides, pair)
        elif pair.same_code is False or pair.moved or _settings(pair):
            found += _code(sides, pair)
    return found


def same_code(sides: Sides) -> list[Cause]:
    """Said where the row's machine code and its launches are the same: then no change of code explains it. Kernels whose
    code was not read (a library's, for the most part) must not have changed by what would explain it."""
    unread = [pair for pair in sides.pairs if pair.same_code is None]
    read = len(sides.pairs) - len(unread)
    known = read > 0 and all(pair.same_code is not False for pair in sides.pairs)
    objects = all(one.code and one.code == two.code for one, two in sides.objects) and sides.matched
    if not (sides.same_launches and known and objects):
        return []
    if sides.carries(sum(pair.after.ns - pair.before.ns for pair in unread)):
        return []
    text = "same machine code and the same launches on both sides, different time"
    if unread:
        text += f" (the code of {read} of {len(sides.pairs)} kernels was read)"
    if sides.row.metric == "wall" and not sides.carries(sum(pair.after.ns - pair.before.ns for pair in sides.pairs)):
        text = "same machine code and the same launches on the device: what changed is on the host"
    elif clocked(sides):
        clock = sides.row.clock_pct or 0.0
        text += f"; the device's clock was {abs(clock):.1f} % {'lower' if clock < 0 else 'higher'}"
    return [Cause(kind="same_code", text=text, evidence=("census", "kernels", "clock"))]


def clocked(sides: Sides) -> bool:
    """Whether the device's clock went the other way, by a quarter of the row's change or more."""
    clock, pct = sides.row.clock_pct, sides.row.pct or 0.0
    return clock is not None and abs(clock) >= SHARE * abs(pct) and clock * pct < 0


# ---------------------------------------------------------------- what is launched


def _launches(sides: Sides) -> Iterator[Cause]:
    """Launches that came or went. A kernel that only got another name is none."""
    more = [pair for pair in sides.pairs if pair.after.count != pair.before.count]
    ns = sum(part.ns for part in sides.new) - sum(part.ns for part in sides.gone)
    ns += sum(pair.after.ns - pair.before.ns for pair in more)
    count = sum(part.count for part in sides.new) - sum(part.count for part in sides.gone)
    count += sum(pair.after.count - pair.before.count for pair in more)
    if not (sides.new or sides.gone or more) or not sides.carries(ns):
        return
    told = [f"{part.name} appeared ({say.times(part.count)}, {say.ns(part.ns)})" for part in sides.new]
    told += [f"{part.name} is gone ({say.times(part.count)}, {say.ns(part.ns)})" for part in sides.gone]
    told += [f"{pair.before.name} {pair.before.count} -> {pair.after.count} times" for pair in more]
    if count == 0:
        head, kind = "other kernels are launched", "kernels_replaced"
    elif (count > 0) != sides.slower:  # fewer launches that take longer: they were replaced
        head, kind = (
            f"{abs(count)} launch{'es' if abs(count) > 1 else ''} {'more' if count > 0 else 'fewer'} a call, of others",
            ("kernels_replaced"),
        )
    else:
        head = f"{abs(count)} kernel launch{'es' if abs(count) > 1 else ''} {'added to' if count > 0 else 'gone from'} a call"
        kind = "launches"
    names = tuple(part.name for part in (*sides.new, *sides.gone)) + tuple(pair.before.name for pair in more)
    yield Cause(kind=kind, text=f"{head}: {say.listed(told)}", kernels=names, evidence=("census",))


def _overlap(sides: Sides) -> Iterator[Cause]:
    """Kernels that ran beside each other, and do so no more; or the other way round."""
    before, after = (census.hidden_ns if census else None for census in sides.census)
    if before is None or after is None or not sides.same_launches:
        return
    total = sum(part.ns for part in sides.parts[0])
    if (
        total
        and max(before, after) >= _HIDDEN * total
        and sides.carries(before - after)
        and min(before, after) < max(before, after) / 2
    ):
        way = "lost" if after < before else "gained"
        text = (
            f"overlap {way}: of a call's kernel time {say.ns(before)} -> {say.ns(after)} passed beside another kernel"
        )
        yield Cause(kind="overlap", text=text, evidence=("census",))


# ---------------------------------------------------------------- what a kernel is made of


def _code(sides: Sides, pair: Pair) -> list[Cause]:
    """Why a kernel's own time changed: the first rule that holds, with what else of its machine code may have cost it.

    A constant by itself is the weakest: it stands for a change that nothing else was seen of, and only where the profiled
    call shows that kernel to be the one.
    """
    shown, whole = sides.shown(pair), sides.is_all(pair)
    for rule in (_autotune, _tensor, _block_size, _stages, _spills, _memory, _constants):
        told = rule(sides, pair) if shown or (whole and rule is not _constants) else None
        if told is not None:
            kind, text = told
            also = [other(sides, pair) for other in (_spills, _tensor, _memory) if other is not rule]
            with_it = say.listed([seen[1] for seen in also if seen is not None])
            name = pair.after.name
            evidence = ("census",) if pair.before.kernel is None else _CODE
            text += f" in {name} (with it {with_it})" if with_it else f" in {name}"
            return [Cause(kind=kind, text=text, kernels=(name,), evidence=evidence)]
    return _where(pair) if shown and pair.same_code is False else []


def _where(pair: Pair) -> list[Cause]:
    """The kernel whose own time it is, where its code differs and no rule knows what of it costs that: it narrows the search,
    and names nothing else."""
    name = pair.after.name
    grids = _launched(pair, "grid")
    differs = f"other machine code, grid {grids}" if grids else "other machine code"
    times = f"{say.ns(pair.before.ns)} -> {say.ns(pair.after.ns)}"
    text = f"the change is in {name}: {times} in the profiled call ({differs}); what of it costs the time is not known"
    return [Cause(kind="kernel", text=text, kernels=(name,), evidence=_CODE)]


def _grid(sides: Sides, pair: Pair) -> list[Cause]:
    """The same code over another grid, in other blocks."""
    moved = {what: _launched(pair, what) for what in ("grid", "block")}
    said = " and ".join(f"{what} ({change})" for what, change in moved.items() if change)
    if not said or not (sides.shown(pair) or sides.is_all(pair)):
        return []
    name = pair.after.name
    return [
        Cause(
            kind="grid",
            text=f"the same code is launched with another {said} in {name}",
            kernels=(name,),
            evidence=_CODE,
        )
    ]


Told = tuple[str, str] | None


def _autotune(_sides: Sides, pair: Pair) -> Told:
    (before, one), (after, two) = pair.before.choice, pair.after.choice
    if not before or not after or before == after:
        return None
    change = say.settings(say.parsed(before), say.parsed(after))
    if one == two:
        return "autotune", f"different autotune choice ({change})"
    return "autotune", f"other configurations to choose from, and a different autotune choice ({change})"


def _block_size(_sides: Sides, pair: Pair) -> Told:
    sizes = {name: both for name, both in _settings(pair).items() if _SIZES.search(name) or name == "warps"}
    if not sizes:
        blocks = _launched(pair, "block")
        return ("block_size", f"block size changed: {blocks} threads") if blocks else None
    grids = _launched(pair, "grid")
    return "block_size", f"block size changed: {say.changes(sizes)}{f', grid {grids}' if grids else ''}"


def _stages(sides: Sides, pair: Pair) -> Told:
    stages = _settings(pair).get("stages")
    copies = pair.read and tuple(side.get("asynchronous copies", 0) for side in pair.read)
    if stages is None:
        if copies and (min(copies) == 0) and max(copies) > 0 and (copies[1] == 0) == sides.slower:
            way = "lost" if sides.slower else "gained"
            return "overlap", f"overlap of copies and arithmetic {way}: asynchronous copies {copies[0]} -> {copies[1]}"
        return None
    fewer = int(stages[1]) < int(stages[0])
    told = f"pipeline stages {stages[0]} -> {stages[1]}"
    if copies and copies[0] != copies[1]:
        told += f", asynchronous copies {copies[0]} -> {copies[1]}"
    if fewer == sides.slower:
        return "overlap", f"overlap of copies and arithmetic {'lost' if fewer else 'gained'}: {told}"
    return "stages", told


def _constants(_sides: Sides, pair: Pair) -> Told:
    changed = _settings(pair)
    return ("constants", f"constants changed: {say.changes(changed)}") if changed else None


def _spills(sides: Sides, pair: Pair) -> Told:
    if pair.read is None:
        return None
    stores, loads = ([side.get(name, 0) for side in pair.read] for name in ("local stores", "local loads"))
    more = stores[1] + loads[1] - stores[0] - loads[0]
    if abs(more) < _SPILLS or (more > 0) != sides.slower:
        return None
    registers = pair.before.registers, pair.after.registers
    told = [f"registers {registers[0]} -> {registers[1]}"] if None not in registers else []
    told += [say.appeared(stores[0], stores[1], "spill store"), say.appeared(loads[0], loads[1], "spill load")]
    return "spills", ", ".join(filter(None, told))


def _tensor(sides: Sides, pair: Pair) -> Told:
    counts = pair.read and [side.get("tensor", 0) for side in pair.read]
    if not counts or min(counts) > 0 or max(counts) == 0 or (counts[1] == 0) != sides.slower:
        return None
    return "tensor", f"tensor-core instructions {counts[0]} -> {counts[1]}"


def _memory(sides: Sides, pair: Pair) -> Told:
    """More instructions that reach global memory, by more than the code has grown by as a whole: a loop that is unrolled
    further has more of everything."""
    if pair.read is None:
        return None
    names = ("global loads", "global stores", "asynchronous copies", "atomics")
    before, after = ({name: side.get(name, 0) for name in names} for side in pair.read)
    loops = [side.get("loops", 0) for side in pair.read]
    first, second = (sum(side.values()) for side in (before, after))
    whole = [sum(n for name, n in side.items() if name != "loops") for side in pair.read]
    small, large = sorted((first, second))
    if (second > first) != sides.slower or first == second or large < _GROWN * small:
        return None
    longer = loops[1] - loops[0]
    if longer == 0 or (longer > 0) != sides.slower:  # the same loops: then memory must have grown by more than the rest
        grown = second / max(first, 1), whole[1] / max(whole[0], 1)
        if (grown[0] <= 1.1 * grown[1]) if sides.slower else (1.1 * grown[0] >= grown[1]):
            return None
        return "memory", f"{'more' if sides.slower else 'less'} global memory traffic: {say.counts(before, after)}"
    way = f"a loop {'more' if sides.slower else 'less'} over global memory"
    return "memory", f"{way}: {say.counts({'loops': loops[0]} | before, {'loops': loops[1]} | after)}"


def _settings(pair: Pair) -> dict[str, tuple[Value, Value]]:
    """Constants, warps, stages and CTAs that differ, where both sides' are known."""
    one, two = pair.before.kernel, pair.after.kernel
    if one is None or two is None:
        return {}
    before, after = (_known(kernel) for kernel in (one.constants, two.constants))
    both: dict[str, tuple[Value, Value]] = {name: (before[name], after[name]) for name in before if name in after}
    for name, first, second in (
        ("warps", one.warps, two.warps),
        ("stages", one.stages, two.stages),
        ("CTAs", one.ctas, two.ctas),
    ):
        if first is not None and second is not None:
            both[name] = first, second
    return {name: values for name, values in both.items() if values[0] != values[1]}


def _known(constants: Mapping[str, Value]) -> Mapping[str, Value]:
    return {name: value for name, value in constants.items() if isinstance(value, int | float | str)}


def _launched(pair: Pair, what: Literal["grid", "block"]) -> str:
    """`8192 -> 16384`: the grid or block of all launches of a side, where both sides' are known and differ."""
    one, two = ({getattr(launch, what) for launch in part.launches} for part in (pair.before, pair.after))
    known = len(one) == len(two) == 1 and all(map(any, (*one, *two)))
    return f"{say.dims(*one)} -> {say.dims(*two)}" if known and one != two else ""
