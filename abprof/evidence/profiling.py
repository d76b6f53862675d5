"""`abprof profile` and `abprof memory` on refs or on a run: nothing is timed, and each arm runs alone under ncu."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from abprof import report
from abprof.builds import sandbox as contain
from abprof.builds.cleaning import BUILDS_IN_USE
from abprof.builds.stage import build_kernels
from abprof.evidence.ncu import tool
from abprof.evidence.ncu.capture import Order, captured
from abprof.evidence.probes.after import subjects
from abprof.measure import resume as rerun
from abprof.measure.arms import lay_ground
from abprof.measure.epochs import Ground
from abprof.measure.prepare import Again, Plan, make_plan
from abprof.measure.resources import alone, signals, worktrees
from abprof.measure.run_context import Place
from abprof.records import Arm, Cell, Profile, Run
from abprof.records.errors import AbprofError
from abprof.records.options import Options
from abprof.session import begun, interruptible
from abprof.store import runfolder
from abprof.store.record import Record
from abprof.store.runfolder import RunFolder
from abprof.system import locks as leases
from abprof.system import processes as proc
from abprof.system.console import View

Rows = Sequence[tuple[Cell, Sequence[Arm]]]
Keep = Callable[[Profile], None]
LOGS = "profile"  # in the run's logs: those of its own builds stay
_SHOWN = 8  # arms that a ^C names


@dataclass(frozen=True)
class Looked:
    """What an invocation came to. `made`: the arms of this one; a run may have others, of before."""

    run: Run
    folder: Path
    made: tuple[Profile, ...]
    interrupted: bool


@dataclass(frozen=True)
class _Ask:
    """What every arm is asked, and by which ncu."""

    order: Order
    ncu: tool.Ncu
    folder: Path  # the run's
    view: View


def refs(config: Options, order: Order, view: View) -> Looked:
    """Every cell of the matrix on every side, variant and peer; a run folder in which nothing was timed.

    Raises AbprofError for what the user can mend; nothing is left of a run that ncu refused at once.
    """
    contain.refuse_foreground(config.contain, "what ncu looks at")
    ncu = tool.find(os.environ)
    config = msgspec.structs.replace(config, all=True)  # same code or not, its counters are asked for
    with begun(config, view) as (place, folder, trees):
        plan = make_plan(place, trees, folder.logs, view, dry=True)
        _say_uncontained(plan, view)
        options = msgspec.structs.replace(plan.head.options, timed=False)
        record = Record(folder, msgspec.structs.replace(plan.head, id=folder.id, options=options), [], view)

        def keep(found: Profile) -> None:
            record.add(found)
            folder.write_run(record.judged("running"))

        try:
            made = _look(place, plan, record, _Ask(order, ncu, folder.path, view), _every, keep)
        except tool.Refused:
            if any(one.kernels for one in record.profiles.values()):
                record.interrupted = True
                record.finish()
            else:
                (folder.path / runfolder.RUN).unlink(missing_ok=True)  # the folder goes with it
            raise
        return Looked(record.finish(), folder.path, made, record.interrupted)


def _say_uncontained(plan: Plan, view: View) -> None:
    for line in contain.foreground_notes(plan.shop.wall, "what ncu looks at"):
        view.say(line)


def run(path: Path, only: Sequence[str], repo: str, order: Order, view: View) -> Looked:
    """The cells of a run that changed, or those that `only` says, added to its own folder, of which nothing else changes.

    Raises AbprofError when code, judge, machine or toolchain is another now, and where no cell changed.
    """
    ncu = tool.find(os.environ)
    head, blocks, notes = runfolder.read(path)
    rerun.of_workloads(head, str(path))
    contain.refuse_foreground(head.options.contain, "what ncu looks at")
    folder = RunFolder(path.parent if path.is_file() else path)
    chosen = rerun.choose(head, only) if only else tuple({s.cell.id: s.cell for s in subjects(head)}.values())
    if not chosen:
        raise AbprofError("no cell changed", where=str(path), advice="--only CELL says which to look at all the same")
    place = rerun.same_place(head, repo, folder.path.parent, 1.0, view)
    profiles = {(one.cell, one.arm): one for one in head.profiles}

    def kept() -> Run:
        return msgspec.structs.replace(head, profiles=tuple(profiles.values()))

    def keep(found: Profile) -> None:
        profiles[found.cell, found.arm] = found
        folder.write_run(kept())

    with (
        signals(),
        proc.no_orphans(),
        worktrees(place, folder.path.name, view) as trees,
        alone(place, view, wait=True),
    ):
        view.attach(folder.path / "output.txt")
        plan = make_plan(place, trees, _made(folder.logs / LOGS), view, Again(head, chosen), dry=True)
        _say_uncontained(plan, view)
        aside = RunFolder(_made(Path(trees[0].path).parent / "look"))  # builds and arms of now are not the run's
        record = Record(aside, plan.head, blocks, view, older=len(blocks))
        for note in notes:
            view.warn(note)
        flagged = {(subject.cell.id, arm.id) for subject in subjects(head) for arm in subject.arms}
        known = {(cell.id, arm.id) for cell in chosen for arm in head.arms} if only else flagged
        ask = _Ask(order, ncu, folder.path, view)
        made = _look(place, plan, record, ask, lambda ground: _only(ground, known), keep)
        view.detach()
        folder.write_run(kept())
        report.write_all(folder.path, kept(), blocks)
        return Looked(kept(), folder.path, made, record.interrupted)


def _made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


def _look(
    place: Place, plan: Plan, record: Record, ask: _Ask, rows: Callable[[Ground], Rows], keep: Keep
) -> tuple[Profile, ...]:
    """The arms that were looked at, each kept as soon as it was; ^C ends it, and says which were not."""
    made: list[Profile] = []
    wanted: list[tuple[str, str]] = []
    with interruptible(record), leases.shared(place.cache / BUILDS_IN_USE):
        ground = lay_ground(place, plan, build_kernels(place, plan, ask.view), record)
        asked = rows(ground)
        wanted += [(cell.id, arm.id) for cell, arms in asked for arm in arms]
        arms = captured(ground, asked, ask.order, ask.folder, ask.ncu, ask.view.say)
        for found in itertools.chain(broken(plan, ask.order), arms):
            made.append(found)
            keep(found)
    looked = {(one.cell, one.arm) for one in made}
    missing = [f"{cell} {arm}" for cell, arm in wanted if (cell, arm) not in looked]
    if record.interrupted:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        ask.view.warn(f"not looked at: {', '.join(missing[:_SHOWN]) or 'every arm'}{more}")
    return tuple(made)


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
