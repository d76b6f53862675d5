"""Which cells the probes look at, and each probe by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from abprof.devices.protocols import Evidence, Probe, Subject
from abprof.evidence.probes.nsight_compute import profiles
from abprof.evidence.probes.perf import samples
from abprof.evidence.probes.torch_profiler import traces, trees
from abprof.measure.epochs import Ground
from abprof.records import Run

MOST = 8  # rows: a trace of each side is up to 16 MB
_CHANGED = ("slower", "faster", "slight")
_PROBES: dict[str, Probe] = {"torch": traces, "proton": trees, "ncu": profiles, "perf": samples}


def probed(
    ground: Ground,
    judged: Callable[[Literal["running"]], Run],
    names: Sequence[str],
    folder: Path,
    epoch: int,
    say: Callable[[str], None],
) -> Iterator[Evidence]:
    """What the probes of these names find on the rows that changed, at most eight; of one branch alone on all."""
    if not names:
        return
    run = judged("running")
    worth = subjects(run)
    if not worth:
        say(f"--probe {','.join(names)}: no row changed, so there is nothing to look at")
    elif len(worth) > MOST:
        what = "rows" if len(run.sides) == 1 else "rows changed"
        say(f"--probe {','.join(names)}: {len(worth)} {what}, {MOST} of them are looked at")
    for name in names:
        for found in _PROBES[name](ground, worth[:MOST], folder, epoch):
            if found.missing:
                say(f"--probe {name}: {found.cell} {found.arm}: {found.missing}")
            yield found


def subjects(run: Run) -> list[Subject]:
    """The rows that changed, the most changed first, each with the arms that differ there: a side that is as base was
    would cost a pass and show nothing. Of one branch alone every cell that ran."""
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
    of_each = {
        key: tuple(a for a in arms.values() if a.id in ids and (key[0], a.id) in ok) for key, ids in found.items()
    }
    return [Subject(cells[id], variant, those) for (id, variant), those in of_each.items() if those]
