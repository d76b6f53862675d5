"""`abprof profile` and `abprof memory` on refs or on a run: nothing is timed, and each arm runs alone under ncu."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from abprof import proc, rerun, runfolder
from abprof.cleaning import BUILDS_IN_USE
from abprof.config import Config
from abprof.errors import AbprofError
from abprof.measure import Ground
from abprof.model import Arm, Cell, Profile, Run
from abprof.ncu import tool
from abprof.ncu.capture import Order, captured
from abprof.place import Place, look_around
from abprof.prepare import Again, Plan, build_kernels, lay_ground, make_plan
from abprof.probes.after import subjects
from abprof.record import Record, new_folder
from abprof.repo import leases
from abprof.runfolder import RunFolder
from abprof.session import alone, interruptible, signals, worktrees
from abprof.view import View

Rows = Sequence[tuple[Cell, Sequence[Arm]]]


def refs(config: Config, order: Order, view: View) -> tuple[Run, Path]:
    """Every cell of the matrix on every side, variant and peer; a run folder in which nothing was timed.

    Raises AbprofError for what the user can mend.
    """
    ncu = tool.find(os.environ)
    config = msgspec.structs.replace(config, all=True)  # same code or not, its counters are asked for
    place = look_around(config, view)
    with (
        signals(),
        proc.no_orphans(),
        new_folder(place.runs_dir, place.id, view) as folder,
        worktrees(place, folder.id, view) as trees,
        alone(place, view, wait=not config.no_wait),
    ):
        plan = make_plan(place, trees, folder.logs, view, dry=True)
        settings = msgspec.structs.replace(plan.head.settings, timed=False)
        record = Record(folder, msgspec.structs.replace(plan.head, id=folder.id, settings=settings), [], view)
        _look(place, plan, record, view, order, ncu, _every)
        return record.finish(), folder.path


def run(path: Path, only: Sequence[str], repo: str, order: Order, view: View) -> tuple[Run, Path]:
    """The cells of a run that changed, or those that `only` says, added to its own folder.

    Raises AbprofError when code, judge, machine or toolchain is another now, and where no cell changed.
    """
    ncu = tool.find(os.environ)
    head, blocks, notes = runfolder.read(path)
    folder = RunFolder(path.parent if path.is_file() else path)
    chosen = rerun.choose(head, only) if only else tuple({s.cell.id: s.cell for s in subjects(head)}.values())
    if not chosen:
        raise AbprofError("no cell changed", where=str(path), advice="--only CELL says which to look at all the same")
    place = rerun.same_place(head, repo, folder.path.parent, 1.0, view)
    with (
        signals(),
        proc.no_orphans(),
        worktrees(place, folder.path.name, view) as trees,
        alone(place, view, wait=True),
    ):
        view.attach(folder.path / "output.txt")
        plan = make_plan(place, trees, folder.logs, view, Again(head, chosen))
        record = Record(folder, plan.head, blocks, view, older=len(blocks))
        for note in notes:
            view.warn(note)
        flagged = {(subject.cell.id, arm.id) for subject in subjects(head) for arm in subject.arms}
        _look(place, plan, record, view, order, ncu, lambda g: _every(g) if only else _only(g, flagged))
        return record.finish(status=head.status), folder.path


def _look(
    place: Place, plan: Plan, record: Record, view: View, order: Order, ncu: tool.Ncu, rows: Callable[[Ground], Rows]
) -> None:
    with interruptible(record), leases.shared(place.cache / BUILDS_IN_USE):
        ground = lay_ground(place, plan, build_kernels(place, plan, view), record)
        for found in broken(plan, order):
            record.add(found)
        for found in captured(ground, rows(ground), order, record.folder.path, ncu, view.say):
            record.add(found)


def broken(plan: Plan, order: Order) -> Iterator[Profile]:
    """A record for each workload that could not say what its cells are: it is not passed over."""
    for cell, failure in plan.survey.broken.items():
        yield Profile(cell=cell, arm="base", purpose=order.purpose, warmup=order.warmup, runs=order.runs,
                      status=failure.status, reason=failure.reason)  # fmt: skip


def _every(ground: Ground) -> Rows:
    """All arms of the matrix but controls, which are base again."""
    cells = [cell for cell in ground.run.cells if cell.kernel and cell.id in ground.arms]
    return [(cell, [arm for arm in ground.arms[cell.id] if arm.side != "control"]) for cell in cells]


def _only(ground: Ground, wanted: set[tuple[str, str]]) -> Rows:
    rows = [(cell, [arm for arm in arms if (cell.id, arm.id) in wanted]) for cell, arms in _every(ground)]
    return [(cell, arms) for cell, arms in rows if arms]
