"""Find the likeliest causes of a change of time, from the records of both sides. No function has side effects.

A cause is reported only if both sides have the records that its rule compares, and only if it acts in the direction of
the change, because a wrong cause is worse than none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from abprof.evidence.causes import cpu, gpu
from abprof.evidence.causes.lines import located
from abprof.evidence.causes.sides import SHARE, Sides, listed, ns
from abprof.records import Arm, Cause, Comparison, Observation, Range, Run

CHANGED = frozenset({"slower", "faster", "slight"})
MOST = 3  # causes per row


def explained(run: Run) -> Run:
    """Return the judged run with the causes of each change; `causes` is None if a side lacks records."""
    known, rows = {id(sides.row): sides for sides in changed(run)}, list(run.comparisons)
    for place, row in enumerate(rows):
        if row.verdict in CHANGED and not row.with_peer:
            causes = _causes(run, known[id(row)]) if id(row) in known else None
            causes = causes if causes is None else tuple(located(run, known[id(row)], causes))
            rows[place] = msgspec.structs.replace(row, causes=causes)
    return msgspec.structs.replace(run, comparisons=tuple(rows))


def changed(run: Run, *, or_sampled: bool = False) -> Iterator[Sides]:
    """Yield both sides of each row whose time changed, if a cause can be searched for.

    `or_sampled`: also of rows with samples by instruction of both arms.
    """
    sampled = {(one.cell, one.arm) for one in run.profiles if or_sampled and one.source}
    seen = {(one.cell, one.arm): one for one in run.observations}
    packages = {cell.id: cell.kernel for cell in run.cells}
    for row in run.comparisons:
        wanted = row.verdict in CHANGED or {(row.cell, row.from_), (row.cell, row.to)} <= sampled
        if wanted and not row.with_peer and (sides := _sides(run, seen, packages[row.cell], row)):
            yield sides


def _causes(run: Run, sides: Sides) -> tuple[Cause, ...] | None:
    """Return the causes of a change, the surest first; None if a side lacks records."""
    row, named = sides.row, _passes(sides)
    if sides.on_gpu and not sides.counted:
        return tuple(named or _phase(sides)) or None
    rules = gpu if sides.on_gpu else cpu
    full = {p.arm: p for p in run.profiles if p.cell == row.cell and p.purpose == "profile" and not p.missing}
    counters = (full[row.from_], full[row.to]) if row.from_ in full and row.to in full else None
    found = named + [one for one in rules.causes(sides) if not counters or not gpu.refutes(one, counters)]
    # More passes through a phase make it slower by themselves; a clock slows arithmetic and not waits for memory.
    if not named and not gpu.clocked(sides):
        found += _phase(sides)
    none = not found and not list(_moved(sides))
    if counters:
        found += gpu.counted(sides, counters)
    if none:  # last: counters may still show what moved
        found += rules.same_code(sides)
    if not found and run.status != "complete":
        kernels = [kernel for side in sides.kernels for kernel in side]
        if not kernels or any(kernel.missing == "not read" for kernel in kernels):
            return None  # interrupted before machine code was read
    return tuple(found[:MOST])


def _sides(run: Run, seen: Mapping[tuple[str, str], Observation], package: str, row: Comparison) -> Sides | None:
    arms = row.from_, row.to
    one, two = (seen.get((row.cell, arm)) for arm in arms)
    if not row.pct or one is None or two is None or row.metric not in one.metrics:
        return None
    own = [k for k in run.kernels if k.package == package]
    before, after = (tuple(k for k in own if k.side == Arm.of(arm).side) for arm in arms)
    if not any((one.census, two.census, before, after, one.phases, two.phases)):
        return None
    sampled = {s.arm: s for s in run.sampled if s.cell == row.cell and not s.missing and s.samples}
    base_ns, census, phases = one.metrics[row.metric].value, (one.census, two.census), (one.phases, two.phases)
    perf = sampled.get(row.from_), sampled.get(row.to)
    return Sides(row, run.machine.kind == "cuda", base_ns, census, (before, after), phases, perf)


# ---------------------------------------------------------------- one phase has all of the change

_MOST_OF_IT = 0.6  # share of the profiled pass's change that the one changed phase must have
_AGREES = (0.5, 2.0)  # the profiled pass's change over the row's: a single pass must roughly agree
_REST = 0.05  # of a call that must lie outside the phase
_APART = 3.0  # factor by which the phase's change in per cent must exceed the rest's: a clock changes all alike


def _phase(sides: Sides) -> list[Cause]:
    """Return a cause if exactly one phase of a call changed, and explains the change of the whole call; else []."""
    before, after = (side or {} for side in sides.phases)
    whole, whole_after = before.get("total"), after.get("total")
    if not whole or not whole_after:
        return []
    total = whole_after - whole
    if not _AGREES[0] <= total / sides.change_ns <= _AGREES[1]:
        return []
    found = []
    for name in before.keys() - {"total", "residual"}:
        one, two = before[name], after.get(name)
        if not one or two is None or whole - one < max(_REST * whole, 1e-9):
            continue
        moved, apart = two - one, abs(two - one) / one >= _APART * abs(total - (two - one)) / (whole - one)
        if apart and moved / sides.change_ns >= _AGREES[0] and moved / total >= _MOST_OF_IT:
            way, pct = "slower" if two > one else "faster", 100 * (two / one - 1)
            text = f"{way} phase {name}: {ns(one)} -> {ns(two)} ({pct:+.1f} %)"
            found.append(Cause(kind="phase", text=text, evidence=("phases",)))
    return found if len(found) == 1 else []


# ---------------------------------------------------------------- a part of the package runs more often, by its ranges

_MOST_PASSES = 2.0  # times the row's change that ranges may take; above this limit their code ran before without ranges
_LOST = 0.5  # share of the ranges' time by which unmarked time may shrink; above this limit code only got ranges


def _passes(sides: Sides) -> list[Cause]:
    """Return a cause if the slower side enters profiler ranges more often, and this explains the change; else []."""
    few, many = (side.get("total") if side else None for side in (sides.phases if sides.slower else sides.phases[::-1]))
    if not few or not many or (sides.on_gpu and sides.same_launches):
        return []
    moved = list(_moved(sides))
    extra = {one.name: _extra_ns(less, one) / many for less, one in moved if one.count > less.count}
    other = sum(_extra_ns(one, less) / few for less, one in moved if one.count < less.count)
    pct = sides.row.pct or 0.0
    change = abs(pct) / max(100.0, 100.0 + pct)  # as a share of the slower side's time
    taken = sum(extra.values())
    fast, slow = (max(0.0, 1 - sum(one.ns for one in ranges or ()) / total)  # unmarked
                  for ranges, total in zip(_ranges(sides), (few, many), strict=True))  # fmt: skip
    lost = fast * (1 - change) - slow
    if not SHARE <= taken / change <= _MOST_PASSES or other >= SHARE * change or lost >= _LOST * taken:
        return []
    parts = []
    for less, one in sorted(moved, key=lambda both: -both[1].ns):
        if extra.get(one.name, 0.0) >= SHARE * change:
            before, after = (less, one) if sides.slower else (one, less)
            parts.append(f"{one.name} {before.count} -> {after.count} times a call ({ns(_extra_ns(less, one))})")
    text = f"a part of the package runs {'more' if sides.slower else 'less'} often: {listed(parts)}"
    return [Cause(kind="part", text=text, evidence=("census", "phases"))] if parts else []


def _moved(sides: Sides) -> Iterator[tuple[Range, Range]]:
    """Yield each profiler range that the sides enter unequally often, as (faster side's range, slower side's range)."""
    fast, slow = _ranges(sides)
    if fast is None or slow is None:
        return
    before, after = ({one.name: one for one in ranges} for ranges in (fast, slow))
    for name in dict.fromkeys((*before, *after)):
        one, two = (side.get(name) or Range(name=name, count=0, ns=0.0) for side in (before, after))
        if one.count != two.count:
            yield one, two


def _ranges(sides: Sides) -> list[tuple[Range, ...] | None]:
    """Return the profiler ranges of both sides, the faster side first; None for a side without recorded ranges."""
    both = [census.ranges if census else None for census in sides.census]
    return both if sides.slower else both[::-1]


def _extra_ns(few: Range, many: Range) -> float:
    """Return how much of the time of range `many`, in ns a call, is due to its being entered more often than `few`."""
    return many.ns * (many.count - few.count) / many.count
