"""Probes look at cells that changed, after all timing (`--probe`): torch's and Triton's profilers, ncu, perf.

In: the run context and the changed rows. Out: Trace, Profile and Sampled records; a probe reports a failure in the
record's `missing` and raises nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from abprof.evidence.probes.subject import Subject
from abprof.records import Profile, Run, Sampled, Trace

if TYPE_CHECKING:
    from abprof.measure import Plan

KNOWN = ("torch", "proton", "ncu", "perf")
MOST = 8  # rows: a trace of each side is up to 16 MB
_CHANGED = ("slower", "faster", "slight")
Evidence = Trace | Profile | Sampled


def probed(
    plan: Plan,
    judged: Callable[[Literal["running"]], Run],
    names: Sequence[str],
    folder: Path,
    epoch: int,
    say: Callable[[str], None],
) -> Iterator[Evidence]:
    """What these probes find on the rows that changed (of one branch alone: on all), at most eight.

    `epoch`: a number that no other workers have; files go into the run's `folder`.
    """
    if not names:
        return
    run = judged("running")
    worth, option = subjects(run), f"--probe {','.join(names)}"
    if not worth:
        say(f"{option}: no row changed, nothing to probe")
    elif len(worth) > MOST:
        say(f"{option}: {len(worth)} {'rows' if len(run.sides) == 1 else 'rows changed'}, {MOST} of them are probed")
    for name in names:
        for found in _probe(name)(plan, worth[:MOST], folder, epoch):
            if found.missing:
                say(f"--probe {name}: {found.cell} {found.arm}: {found.missing}")
            yield found


def subjects(run: Run) -> list[Subject]:
    """The rows that changed, the most changed first, each with the arms that differ (a side equal to base would cost a pass
    and show nothing). Of one branch alone every cell that ran."""
    ok = {(seen.cell, seen.arm) for seen in run.observations if seen.status == "ok"}
    sides = {side.id for side in run.sides}
    arms = {arm.id: arm for arm in run.arms if arm.side in sides and not arm.peer}
    found: dict[tuple[str, str], set[str]] = {}
    if len(sides) == 1:
        for cell, arm in ((cell, arm) for cell in run.cells for arm in arms.values()):
            found.setdefault((cell.id, arm.variant), set()).add(arm.id)
    else:
        changed = [row for row in run.comparisons if row.verdict in _CHANGED and row.from_ in arms and row.to in arms]
        for row in sorted(changed, key=lambda row: -abs(row.pct or 0.0)):
            found.setdefault((row.cell, arms[row.to].variant), set()).update((row.from_, row.to))
    cells = {cell.id: cell for cell in run.cells}
    made = []
    for (id, variant), ids in found.items():
        own = tuple(arm for arm in arms.values() if arm.id in ids and (id, arm.id) in ok)
        made += [Subject(cells[id], variant, own)] if own else []
    return made


def _probe(name: str) -> Callable[[Plan, Sequence[Subject], Path, int], Iterator[Evidence]]:
    from abprof.evidence.ncu import capture
    from abprof.evidence.probes import perf, traces

    if name == "torch":
        return partial(traces.traces, by="torch")
    if name == "proton":
        return partial(traces.traces, by="proton")
    return capture.profiles if name == "ncu" else perf.samples
