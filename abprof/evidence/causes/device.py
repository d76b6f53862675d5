"""Rules over a GPU's launches and machine code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from abprof.evidence.causes import wording
from abprof.evidence.causes.sides import SHARE, Pair, Sides
from abprof.records import Cause, Kernel, Value

_SIZES = re.compile(r"(^|_)(BLOCK|TILE|CHUNK)|(BLOCK|TILE)$|^B[MNK]$", re.IGNORECASE)  # a program's share of the work
_SPILLS = 4  # instructions of local memory: one or two are an array's and cost nothing
_GROWN = 1.2  # a class of instructions that grew by less is not an additional pass
_HIDDEN = 0.05  # of a call's kernel time: less that overlaps is nothing to lose
_CODE = ("census", "kernels")
Found = tuple[str, str] | None  # kind, text


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
    """No change of code explains the row: machine code and launches are equal. Kernels whose code was not read (a library's,
    mostly) must not have changed by what would explain it."""
    unread = [pair for pair in sides.pairs if pair.same_code is None]
    read = len(sides.pairs) - len(unread)
    known = read > 0 and all(pair.same_code is not False for pair in sides.pairs)
    objects = all(one.code and one.code == two.code for one, two in sides.objects) and sides.matched
    if not (sides.same_launches and known and objects) or sides.carries(_change_ns(unread)):
        return []
    text = "same machine code and the same launches on both sides, different time"
    if unread:
        text += f" (the code of {read} of {len(sides.pairs)} kernels was read)"
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


def _change_ns(pairs: list[Pair]) -> float:
    return sum(pair.after.ns - pair.before.ns for pair in pairs)


# ---------------------------------------------------------------- what is launched


def _launches(sides: Sides) -> Iterator[Cause]:
    """Launches that were added or removed; a renamed kernel is neither."""
    new, gone = sides.new, sides.gone
    more = [pair for pair in sides.pairs if pair.after.count != pair.before.count]
    ns = sum(part.ns for part in new) - sum(part.ns for part in gone) + _change_ns(more)
    count = sum(part.count for part in new) - sum(part.count for part in gone)
    count += sum(pair.after.count - pair.before.count for pair in more)
    if not (new or gone or more) or not sides.carries(ns):
        return
    items = [f"{part.name} appeared ({wording.times(part.count)}, {wording.ns(part.ns)})" for part in new]
    items += [f"{part.name} is gone ({wording.times(part.count)}, {wording.ns(part.ns)})" for part in gone]
    items += [f"{pair.before.name} {pair.before.count} -> {pair.after.count} times" for pair in more]
    launches = f"launch{'es' if abs(count) > 1 else ''}"
    head, kind = f"{abs(count)} kernel {launches} {'added to' if count > 0 else 'gone from'} a call", "launches"
    if count == 0:
        head, kind = "other kernels are launched", "kernels_replaced"
    elif (count > 0) != sides.slower:  # fewer launches that take longer: replaced
        head = f"{abs(count)} {launches} {'more' if count > 0 else 'fewer'} a call, of others"
        kind = "kernels_replaced"
    names = tuple(part.name for part in (*new, *gone)) + tuple(pair.before.name for pair in more)
    yield Cause(kind=kind, text=f"{head}: {wording.listed(items)}", kernels=names, evidence=("census",))


def _overlap(sides: Sides) -> Iterator[Cause]:
    """Kernels that ran beside each other on one side only."""
    before, after = (census.hidden_ns if census else None for census in sides.census)
    total = sum(part.ns for part in sides.parts[0])
    if before is None or after is None or not sides.same_launches or not total:
        return
    halved = min(before, after) < max(before, after) / 2
    if max(before, after) >= _HIDDEN * total and sides.carries(before - after) and halved:
        text = (
            f"overlap {'lost' if after < before else 'gained'}: of a call's kernel time {wording.ns(before)} -> "
            f"{wording.ns(after)} passed beside another kernel"
        )
        yield Cause(kind="overlap", text=text, evidence=("census",))


def _grid(sides: Sides, pair: Pair) -> list[Cause]:
    """The same code over another grid or in other blocks."""
    moved = [f"{what} ({change})" for what in ("grid", "block") if (change := _launched(pair, what))]
    if not moved or not (sides.shown(pair) or sides.is_all(pair)):
        return []
    text = f"the same code is launched with another {' and '.join(moved)} in {pair.after.name}"
    return [Cause(kind="grid", text=text, kernels=(pair.after.name,), evidence=_CODE)]


def _launched(pair: Pair, what: Literal["grid", "block"]) -> str:
    """`8192 -> 16384`: the grid or block of all launches of a side, if known and different."""
    one, two = ({getattr(launch, what) for launch in part.launches} for part in (pair.before, pair.after))
    known = len(one) == len(two) == 1 and all(map(any, (*one, *two)))
    return f"{wording.dims(*one)} -> {wording.dims(*two)}" if known and one != two else ""


# ---------------------------------------------------------------- what a kernel is made of


def _code(sides: Sides, pair: Pair) -> list[Cause]:
    """Why a kernel's own time changed: the first rule that holds, with what else of its machine code may have cost it.

    A constant alone is the weakest: nothing else was seen of the change, so the profiled call must show the kernel. If no
    rule holds, the kernel itself narrows the search.
    """
    shown, whole, name = sides.shown(pair), sides.is_all(pair), pair.after.name
    for rule in (_autotune, _tensor, _block_size, _stages, _spills, _memory, _constants):
        found = rule(sides, pair) if shown or (whole and rule is not _constants) else None
        if found is not None:
            also = [other(sides, pair) for other in (_spills, _tensor, _memory) if other is not rule]
            with_it = wording.listed([each[1] for each in also if each is not None])
            evidence = ("census",) if pair.before.kernel is None else _CODE
            text = f"{found[1]} in {name} (with it {with_it})" if with_it else f"{found[1]} in {name}"
            return [Cause(kind=found[0], text=text, kernels=(name,), evidence=evidence)]
    if not shown or pair.same_code is not False:
        return []
    grids = _launched(pair, "grid")
    differs = f"other machine code, grid {grids}" if grids else "other machine code"
    times = f"{wording.ns(pair.before.ns)} -> {wording.ns(pair.after.ns)}"
    text = f"the change is in {name}: {times} in the profiled call ({differs}); what of it costs the time is not known"
    return [Cause(kind="kernel", text=text, kernels=(name,), evidence=_CODE)]


def _autotune(_sides: Sides, pair: Pair) -> Found:
    (before, one), (after, two) = pair.before.choice, pair.after.choice
    if not before or not after or before == after:
        return None
    others = "" if one == two else "other configurations to choose from, and a "
    return "autotune", f"{others}different autotune choice ({wording.settings(before, after)})"


def _tensor(sides: Sides, pair: Pair) -> Found:
    counts = pair.read and [side.get("tensor", 0) for side in pair.read]
    if not counts or min(counts) > 0 or max(counts) == 0 or (counts[1] == 0) != sides.slower:
        return None
    return "tensor", f"tensor-core instructions {counts[0]} -> {counts[1]}"


def _block_size(_sides: Sides, pair: Pair) -> Found:
    sizes = {name: both for name, both in _settings(pair).items() if _SIZES.search(name) or name == "warps"}
    if not sizes:
        blocks = _launched(pair, "block")
        return ("block_size", f"block size changed: {blocks} threads") if blocks else None
    grids = _launched(pair, "grid")
    return "block_size", f"block size changed: {wording.changes(sizes)}{f', grid {grids}' if grids else ''}"


def _stages(sides: Sides, pair: Pair) -> Found:
    stages = _settings(pair).get("stages")
    copies = pair.read and tuple(side.get("asynchronous copies", 0) for side in pair.read)
    lost = "overlap of copies and arithmetic lost"
    if stages is None:
        if copies and min(copies) == 0 < max(copies) and (copies[1] == 0) == sides.slower:
            way = lost if sides.slower else lost.replace("lost", "gained")
            return "overlap", f"{way}: asynchronous copies {copies[0]} -> {copies[1]}"
        return None
    fewer = int(stages[1]) < int(stages[0])
    text = f"pipeline stages {stages[0]} -> {stages[1]}"
    if copies and copies[0] != copies[1]:
        text += f", asynchronous copies {copies[0]} -> {copies[1]}"
    if fewer == sides.slower:
        return "overlap", f"{lost if fewer else lost.replace('lost', 'gained')}: {text}"
    return "stages", text


def _spills(sides: Sides, pair: Pair) -> Found:
    if pair.read is None:
        return None
    stores, loads = ([side.get(name, 0) for side in pair.read] for name in ("local stores", "local loads"))
    more = stores[1] + loads[1] - stores[0] - loads[0]
    if abs(more) < _SPILLS or (more > 0) != sides.slower:
        return None
    registers = pair.before.registers, pair.after.registers
    items = [f"registers {registers[0]} -> {registers[1]}"] if None not in registers else []
    items += [wording.appeared(stores[0], stores[1], "spill store")]
    items.append(wording.appeared(loads[0], loads[1], "spill load"))
    return "spills", ", ".join(filter(None, items))


def _memory(sides: Sides, pair: Pair) -> Found:
    """More instructions that access global memory, by more than the whole code grew: an unrolled loop has more of all."""
    if pair.read is None:
        return None
    names = ("global loads", "global stores", "asynchronous copies", "atomics")
    before, after = ({name: side.get(name, 0) for name in names} for side in pair.read)
    loops = [side.get("loops", 0) for side in pair.read]
    first, second = sum(before.values()), sum(after.values())
    whole = [sum(n for name, n in side.items() if name != "loops") for side in pair.read]
    small, large = sorted((first, second))
    if (second > first) != sides.slower or first == second or large < _GROWN * small:
        return None
    longer = loops[1] - loops[0]
    if longer and (longer > 0) == sides.slower:
        way = f"a loop {'more' if sides.slower else 'less'} over global memory"
        return "memory", f"{way}: {wording.counts({'loops': loops[0]} | before, {'loops': loops[1]} | after)}"
    grown = second / max(first, 1), whole[1] / max(whole[0], 1)
    if (grown[0] <= 1.1 * grown[1]) if sides.slower else (1.1 * grown[0] >= grown[1]):
        return None
    return "memory", f"{'more' if sides.slower else 'less'} global memory traffic: {wording.counts(before, after)}"


def _constants(_sides: Sides, pair: Pair) -> Found:
    changed = _settings(pair)
    return ("constants", f"constants changed: {wording.changes(changed)}") if changed else None


def _settings(pair: Pair) -> dict[str, tuple[Value, Value]]:
    """Constants, warps, stages and CTAs that are known on both sides and differ."""
    if pair.before.kernel is None or pair.after.kernel is None:
        return {}
    before, after = _known(pair.before.kernel), _known(pair.after.kernel)
    return {name: (before[name], after[name]) for name in before if name in after and before[name] != after[name]}


def _known(kernel: Kernel) -> dict[str, Value]:
    constants = {name: value for name, value in kernel.constants.items() if isinstance(value, int | float | str)}
    numbers = {"warps": kernel.warps, "stages": kernel.stages, "CTAs": kernel.ctas}
    return constants | {name: value for name, value in numbers.items() if value is not None}
