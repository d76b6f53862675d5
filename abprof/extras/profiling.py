"""`abprof profile` and `abprof memory` on refs or on a run: nothing is timed, each arm runs alone under Nsight Compute."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from abprof import report, store
from abprof.builds import in_use, sandbox
from abprof.evidence.ncu import capture
from abprof.evidence.ncu.capture import captured
from abprof.evidence.probes import subjects
from abprof.measure import Continued, Plan, RunContext, continued, make_plan
from abprof.measure.plan import build_kernels
from abprof.measure.run_context import alone, signals, worktrees
from abprof.records import Arm, Cell, Profile, Run
from abprof.records.errors import AbprofError
from abprof.records.options import Options
from abprof.session import begin, finish, interruptible, new_record, start
from abprof.store import RUN, Record, RunFolder
from abprof.system import processes as proc
from abprof.system.console import View

Rows = Sequence[tuple[Cell, Sequence[Arm]]]
LOGS = "profile"  # under the run's logs
_NAMED = 8  # arms that the warning after ^C names


@dataclass(frozen=True)
class Profiled:
    """The run, its folder, and the profiles that this invocation made."""

    run: Run
    folder: Path
    made: tuple[Profile, ...]
    interrupted: bool


def refs(config: Options, order: Profile, view: View) -> Profiled:
    """Profile every cell of the matrix on every side, variant and peer, in a new run folder without timings.

    Raises AbprofError for user errors; the run folder is removed if ncu refuses the first arm.
    """
    sandbox.refuse_foreground(config.contain, "what ncu looks at")
    ncu = capture.find()
    config = msgspec.structs.replace(config, all=True)  # cells of identical code, too
    with begin(config, view) as (place, folder, trees):
        plan = make_plan(place, trees, folder.logs, view, dry=True)
        options = msgspec.structs.replace(plan.run.options, timed=False)
        plan = dataclasses.replace(plan, run=msgspec.structs.replace(plan.run, options=options))
        record = new_record(folder, plan.run, [], view)

        def keep(found: Profile) -> None:
            record.add(found)
            folder.write_run(record.judged("running"))

        try:
            made = _profile(place, plan, record, (order, ncu, folder.path, view), lambda _: True, keep)
        except capture.Refused:
            if any(one.kernels for one in record.profiles.values()):
                record.interrupted = True
                finish(record)
            else:
                (folder.path / RUN).unlink(missing_ok=True)  # the folder goes with it
            raise
        return Profiled(finish(record), folder.path, made, record.interrupted)


def run(path: Path, only: Sequence[str], repo: str, order: Profile, view: View) -> Profiled:
    """Profile the cells of a run that changed, or those of `only`, and add the profiles to its folder.

    Raises AbprofError when code, workloads, machine or toolchain differ from the run's, and if no cell changed.
    """
    ncu = capture.find()
    head, blocks, notes = store.read(path)
    continued.of_workloads(head, str(path))
    sandbox.refuse_foreground(head.options.contain, "what ncu looks at")
    folder = RunFolder(path.parent if path.is_file() else path)
    changed = subjects(head)
    chosen = continued.choose(head, only) if only else tuple({cell.id: cell for cell, _ in changed}.values())
    if not chosen:
        raise AbprofError("no cell changed", where=str(path), advice="choose cells with --only CELL")
    wanted = {(cell.id, arm.id) for cell, arms in changed for arm in arms}
    if only:
        wanted = {(cell.id, arm.id) for cell in chosen for arm in head.arms}
    place = continued.same_place(head, repo, folder.path.parent, 1.0, view)
    profiles = {(one.cell, one.arm): one for one in head.profiles}

    def keep(found: Profile) -> None:
        profiles[found.cell, found.arm] = found
        folder.write_run(msgspec.structs.replace(head, profiles=tuple(profiles.values())))

    with (
        signals(),
        proc.no_orphans(),
        worktrees(place, folder.path.name, view) as trees,
        alone(place, view, wait=True),
    ):
        view.attach(folder.path / "output.txt")
        logs, aside = folder.logs / LOGS, Path(trees[0].path).parent / "look"
        logs.mkdir(exist_ok=True)
        aside.mkdir(exist_ok=True)
        plan = make_plan(place, trees, logs, view, Continued(head, chosen), dry=True)
        # The builds and arms of this invocation are not the run's.
        record = new_record(RunFolder(aside), plan.run, blocks, view, older=len(blocks))
        for note in notes:
            view.warn(note)
        made = _profile(place, plan, record, (order, ncu, folder.path, view), lambda key: key in wanted, keep)
        view.detach()
        head = msgspec.structs.replace(head, profiles=tuple(profiles.values()))
        folder.write_run(head)
        report.write_all(folder.path, head, blocks)
        return Profiled(head, folder.path, made, record.interrupted)


def _profile(
    place: RunContext,
    plan: Plan,
    record: Record,
    job: tuple[Profile, capture.Ncu, Path, View],
    wanted: Callable[[tuple[str, str]], bool],
    keep: Callable[[Profile], None],
) -> tuple[Profile, ...]:
    """Profile the wanted (cell, arm)s, each kept at once; ^C ends it with a warning that names the rest."""
    order, ncu, folder, view = job
    made: list[Profile] = []
    rows: Rows = ()
    for line in sandbox.foreground_notes(plan.factory.wall, "what ncu looks at"):
        view.say(line)
    with interruptible(record), in_use(place.cache):
        plan = start(place, plan, build_kernels(place, plan, view), record)
        rows = _rows(plan, wanted)
        for found in itertools.chain(_broken(plan, order), captured(plan, rows, order, folder, ncu, view.say)):
            made.append(found)
            keep(found)
    if record.interrupted:
        done = {(one.cell, one.arm) for one in made}
        missing = [f"{cell.id} {arm.id}" for cell, arms in rows for arm in arms if (cell.id, arm.id) not in done]
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        view.warn(f"not profiled: {', '.join(missing[:_NAMED]) or 'every arm'}{more}")
    return tuple(made)


def _rows(plan: Plan, wanted: Callable[[tuple[str, str]], bool]) -> Rows:
    """The wanted arms of the matrix except controls, which are base again."""
    cells = [cell for cell in plan.run.cells if cell.kernel and cell.id in plan.arms]
    rows = [(c, [a for a in plan.arms[c.id] if a.side != "control" and wanted((c.id, a.id))]) for c in cells]
    return [(cell, arms) for cell, arms in rows if arms]


def _broken(plan: Plan, order: Profile) -> Iterator[Profile]:
    """A record for each workload whose cells are not known because it failed."""
    for cell, failure in plan.broken.items():
        yield msgspec.structs.replace(order, cell=cell, arm="base", status=failure.status, reason=failure.reason)
