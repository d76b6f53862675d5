"""The hallway: `run` is the whole of abprof, a line a stage. Each stage's room is named by its module."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from abprof.builds.cleaning import BUILDS_IN_USE
from abprof.builds.stage import build_kernels, would_be_on_some_side
from abprof.evidence.machine_code.reader import Reader
from abprof.evidence.probes import probed
from abprof.fleet.coordinator import coordinate
from abprof.fleet.executor import Executor
from abprof.fleet.executors import asked, cluster_of, pool_of
from abprof.measure import resume as rerun
from abprof.measure import timers
from abprof.measure.arms import lay_ground
from abprof.measure.commands import epochs as reported
from abprof.measure.commands.bench import Bench, ready
from abprof.measure.epochs import Ground, Item, epochs
from abprof.measure.followup import afterwards
from abprof.measure.prepare import Again, Plan, broken_workloads, make_plan, watched
from abprof.measure.resources import alone, signals, worktrees
from abprof.measure.run_context import Place, look_around
from abprof.records import Block, Checkout, Run
from abprof.records.errors import AbprofError
from abprof.records.options import Options
from abprof.store import runfolder
from abprof.store.orphans import new_folder
from abprof.store.record import Record, Until
from abprof.store.runfolder import RunFolder
from abprof.system import locks as leases
from abprof.system import processes as proc
from abprof.system.console import View
from abprof.verdict import stats

Study = Callable[[Ground, int], Iterator[Block]]


def run(config: Options, view: View, also: Study | None = None, until: Until | None = None) -> tuple[Run, Path]:
    """Compare two refs or more, or profile one. Returns the run as run.json has it, and its folder.

    `also`: blocks to record after all others, which no verdict reads, from the same ground and the number of an epoch.
    `until`: which cells need one more epoch; by default those without a verdict.
    Raises AbprofError for what the user can mend; ^C ends measuring, and the report is written all the same.
    """
    with begun(config, view) as (place, folder, trees):
        if config.command:
            bench = ready(place, trees, folder.logs, view)
            record = Record(folder, msgspec.structs.replace(bench.head, id=folder.id), [], view, until=until)
            measure_command(place, bench, record, view)
        else:
            plan = make_plan(place, trees, folder.logs, view)
            record = Record(folder, msgspec.structs.replace(plan.head, id=folder.id), [], view, until=until)
            measure(place, plan, record, view, also)
        return record.finish(), folder.path


def again(
    path: Path,
    only: Sequence[str],
    repo_path: str,
    budget: float,
    view: View,
    *,
    resume: bool,
    until: Until | None = None,
) -> tuple[Run, Path]:
    """Go on with a run in its own folder: fresh epochs of some cells, or the rest of a run that was interrupted; with an
    `until` of its own also of one that is complete.

    Results are added, never replaced. Raises AbprofError when code, judge, machine or toolchain is another now.
    """
    head, blocks, notes = runfolder.read(path)
    if not head.options.timed:
        raise AbprofError("nothing was timed in this run", where=str(path), advice="start a new one: abprof run")
    folder = RunFolder(path.parent if path.is_file() else path)
    if resume and head.status == "complete" and until is None:
        return head, folder.path
    cells = head.cells if resume else rerun.choose(head, only)
    before = rerun.epochs(head, blocks)
    if not resume:
        head = msgspec.structs.replace(head, options=msgspec.structs.replace(head.options, quick=False))
        cells = tuple(cell for cell in cells if before[cell.id] < stats.LOOKS[-1])
    if not cells:
        view.say(f"nothing to measure: all {stats.LOOKS[-1]} planned epochs are there")
        return head, folder.path
    everything = head.options.all or not resume
    place = rerun.same_place(head, repo_path, folder.path.parent, budget, view, all=everything)
    with (
        signals(),
        proc.no_orphans(),
        worktrees(place, folder.path.name, view) as trees,
        alone(place, view, wait=True) as fit,
    ):
        folder.sweep()
        view.attach(folder.path / "output.txt")
        older = 0 if resume else len(blocks)
        for note in notes:
            view.warn(note)
        if head.command:
            bench = ready(fit, trees, folder.logs, view, Again(head, cells))
            record = Record(folder, bench.head, blocks, view, older, until)
            measure_command(fit, bench, record, view)
        else:
            plan = make_plan(fit, trees, folder.logs, view, Again(head, cells, told=timers.told(blocks)))
            record = Record(folder, plan.head, blocks, view, older, until)
            measure(fit, plan, record, view)
        waiting = rerun.between_looks(before, rerun.epochs(record.head, record.blocks))
        if waiting:
            view.say(f"{waiting} of {len(cells)} cells: the epochs added do not reach the next planned look")
            view.say("their intervals still rest on the last look completed")
        return record.finish(), folder.path


def dry_run(config: Options, view: View) -> Run:
    """The plan alone: sides, cells and machine as a run's head, and of workloads that are broken why they are.

    Nothing is built or measured, no run folder is made.
    """
    place = look_around(config, view)
    with (
        signals(),
        proc.no_orphans(),
        tempfile.TemporaryDirectory() as logs,
        worktrees(place, place.id, view) as trees,
    ):
        plan = make_plan(place, trees, Path(logs), view, dry=True)
        would_be_on_some_side(place, plan)
        asked(place)
        several = place.devices if len(place.devices) > 1 and len(plan.head.cells) > 1 else ()
        machines = {device.lease: device.machine() for device in several}
        return msgspec.structs.replace(plan.head, observations=broken_workloads(plan), machines=machines)


def report(path: Path) -> tuple[Run, Path]:
    """Judge a run again from its head and rounds, and write every report anew. Raises AbprofError."""
    record = _record(path)
    return record.finish(status=record.head.status), record.folder.path


def judged(path: Path, say: Callable[[str], None]) -> tuple[Run, list[Block]]:
    """A run judged again, and its blocks; nothing is written. What could not be read is told to `say`. Raises AbprofError."""
    record = _record(path, say)
    return record.judged(record.head.status), record.blocks


def _record(path: Path, say: Callable[[str], None] | None = None) -> Record:
    head, blocks, notes = runfolder.read(path)
    view = View(quiet=True)
    for note in notes:
        (say or view.warn)(note)
    record = Record(RunFolder(path.parent if path.is_file() else path), head, blocks, view)
    return record


def measure(place: Place, plan: Plan, record: Record, view: View, also: Study | None = None) -> None:
    """Build, and add epochs to the record until all is decided, the budget is spent, or ^C."""
    # What a child left behind that neither group nor mark finds ends before the results are written, not after.
    with (
        proc.no_orphans(),
        interruptible(record),
        leases.shared(place.cache / BUILDS_IN_USE),
        cluster_of(place, plan, record) as cluster,
    ):
        watch = watched(place, plan)
        spread = spread_over(place, plan, record)
        builds = build_kernels(place, plan, view)
        ground = lay_ground(place, plan, builds, record)
        record.note(watch.built(builds, "while kernels were built"))
        with view.measuring():
            for item in spread_out(place, ground, record, cluster) if spread else in_turns(place, ground, record):
                record.add(item)
                if isinstance(item, Block) and not spread:
                    record.note(watch.look(f"in epoch {item.epoch}"))
        for block in () if spread else after_epochs(place, ground, record):
            record.add(block)
        for block in also(ground, record.next_epoch) if also else ():
            record.add(block)
        for trace in probed(
            ground, record.judged, place.options.probe, record.folder.path, record.next_epoch, view.say
        ):
            record.add(trace)
        record.note(watch.look("after the epochs"))  # the last of what runs code under test was just now
        chains = plan.shop.toolchain.values()
        record.read_kernels(Reader(place.cache / "code", [chain.get("prefix", "") for chain in chains]))


def spread_over(place: Place, plan: Plan, record: Record) -> bool:
    """Whether shards travel: where there are devices and cells for it, or the run's blocks are of several."""
    several = len(place.devices) > 1
    return bool(place.options.executor) or (several and (len(plan.survey.cells) > 1 or bool(record.head.machines)))


def after_epochs(place: Place, ground: Ground, record: Record) -> Iterator[Block]:
    """What is timed after all epochs of all cells; a shard does so after its own cells'."""
    return afterwards(ground, place.options.beside, record.blocks, record.next_epoch)


def in_turns(place: Place, ground: Ground, record: Record) -> Iterator[Item]:
    """Epochs on the run's own device, in this process."""
    budget = place.options.budget
    return epochs(ground, record.wanted, first=record.next_epoch, done=record.done, budget=budget)


def spread_out(place: Place, ground: Ground, record: Record, cluster: Executor | None) -> Iterator[Item]:
    """The same, spread over the run's devices, or a cluster's: each measures shards of whole cells, in programs of their own."""
    with contextlib.nullcontext(cluster) if cluster else pool_of(place, ground, record) as executor:
        yield from coordinate(ground, record, executor, place)


def measure_command(place: Place, bench: Bench, record: Record, view: View) -> None:
    """The same of a command that times itself: nothing of it can be checked or proved, and nothing is looked at after."""
    with proc.no_orphans(), interruptible(record), view.measuring():
        record.start(())
        first, budget = record.next_epoch, place.options.budget
        for block in reported.epochs(bench, place.device, record.wanted, view.warn, first=first, budget=budget):
            record.add(block)


@contextlib.contextmanager
def begun(config: Options, view: View) -> Iterator[tuple[Place, RunFolder, tuple[Checkout, ...]]]:
    """A new run while the block runs: its place, its folder, its sides' worktrees, and the device for it alone."""
    place = look_around(config, view)
    with (
        signals(),
        proc.no_orphans(),
        new_folder(place.runs_dir, place.id, view) as folder,
        worktrees(place, folder.id, view) as trees,
        alone(place, view, wait=not config.no_wait) as fit,
    ):
        yield fit, folder, trees


@contextlib.contextmanager
def interruptible(record: Record) -> Iterator[None]:
    """^C ends the block, and the run goes on to its report."""
    try:
        yield
    except KeyboardInterrupt:
        record.interrupted = True
        record.view.warn("interrupted: writing what was measured")
