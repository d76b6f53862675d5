"""What most likely changed the time of a row, from what was recorded of both sides. Pure: records in, causes out.

A rule speaks only of a row that changed, only where what it reads was recorded on both sides, and only in the direction
that the time went. A cause that is wrong costs more than none.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from abprof.evidence.causes import calls, counters, device, host, passes, phase
from abprof.evidence.causes.sides import Sides
from abprof.records import Arm, Cause, Comparison, Kernel, Observation, Run, Verdict

CHANGED: frozenset[Verdict] = frozenset({"slower", "faster", "slight"})
MOST = 3  # causes of a row: what follows is less sure still


def explained(run: Run) -> Run:
    """The judged run with causes on the rows that changed between sides; None on a row without records to explain it by."""
    seen = {(one.cell, one.arm): one for one in run.observations}
    packages = {cell.id: cell.kernel for cell in run.cells}
    rows = tuple(
        msgspec.structs.replace(row, causes=causes(run, seen, packages[row.cell], row))
        if row.verdict in CHANGED and not row.with_peer
        else row
        for row in run.comparisons
    )
    return msgspec.structs.replace(run, comparisons=rows)


Seen = Mapping[tuple[str, str], Observation]


def causes(run: Run, seen: Seen, package: str, row: Comparison) -> tuple[Cause, ...] | None:
    """The causes of one changed row, the surest first; None where the evidence of a side is missing."""
    sides = _sides(run, seen, package, row)
    if sides is None:
        return None
    named = passes.causes(sides)
    if sides.on_gpu and not sides.counted:
        return tuple(named or phase.causes(sides)) or None
    counted = counters.of_row(run.profiles, sides)
    found = [*named, *(device.causes(sides) if sides.on_gpu else host.causes(sides))]
    if counted:
        found = [cause for cause in found if not counters.refutes(cause, counted)]
    # Where more runs in it a phase is slower for that; and a clock slows what computes and not what waits for memory.
    if not named and not device.clocked(sides):
        found += phase.causes(sides)
    none = not found and not passes.differ(sides)
    if counted:
        found += counters.causes(sides, counted)
    if none:  # last: counters may say what moved all the same
        found += device.same_code(sides) if sides.on_gpu else host.same_code(sides)
    if not found and run.status != "complete" and _unread(sides):
        return None
    return tuple(found[:MOST])


def _unread(sides: Sides) -> bool:
    """Whether machine code, which is read after all timing, was not: a run that was interrupted before found no cause because it
    did not look."""
    kernels = [kernel for side in sides.kernels for kernel in side]
    return not kernels or any(kernel.missing == "not read" for kernel in kernels)


def _sides(run: Run, seen: Seen, package: str, row: Comparison) -> Sides | None:
    arms = row.from_, row.to
    observed = [seen[row.cell, arm] for arm in arms if (row.cell, arm) in seen]
    if not row.pct or len(observed) < 2 or row.metric not in observed[0].metrics:
        return None
    census = [one.census for one in observed]
    kernels = [_kernels(run, Arm.of(arm).side, package) for arm in arms]
    phases = [one.phases for one in observed]
    if not any(census) and not any(kernels) and not any(phases):
        return None
    return Sides(
        row=row,
        on_gpu=run.machine.kind == "cuda",
        base_ns=observed[0].metrics[row.metric].value,
        census=(census[0], census[1]),
        kernels=(kernels[0], kernels[1]),
        phases=(phases[0], phases[1]),
        sampled=calls.sampled(run.sampled, row),
    )


def _kernels(run: Run, side: str, package: str) -> tuple[Kernel, ...]:
    return tuple(kernel for kernel in run.kernels if (kernel.side, kernel.package) == (side, package))
