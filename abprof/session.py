"""Call the stages of a run in order, for `run`, `rerun`, `dry_run` and `report`.

The stages: check out the sides, plan, build, measure, judge, and write the reports.
"""

from __future__ import annotations

import contextlib
import importlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec

from abprof import report as reports
from abprof.builds import Watch, in_use
from abprof.evidence import Ncu, explained, keep_listings, probed, read_kernels
from abprof.fleet import Executor, coordinate, executor_of, read_options
from abprof.measure import Bench, Estimate, Plan, RunContext, epochs, follow_up, look_around
from abprof.records import LOOKS, Block, Build, CellHistory, Checkout, Item, Run, filters, names
from abprof.records.errors import AbprofError
from abprof.records.options import Options
from abprof.records.quantities import plural, signed
from abprof.store import Record, RunFolder, Wanted, kernel_key, new_folder, read
from abprof.system import processes as proc
from abprof.system.console import View
from abprof.verdict import CellCache, epochs_counted, judge, provisional, stats, undecided

Past = Callable[[Run, Path], tuple[CellHistory, ...]]  # (the run, folder of runs) -> the nights of its cells
_LATER = ("scipy.special", "pandas", "jinja2")  # what verdicts and reports import on their first use
_FOLLOW_UP = 0.1  # share of the budget that profiled passes get even after epochs have spent it: causes need them


def run(config: Options, view: View, until: Wanted | None = None, past: Past | None = None) -> tuple[Run, Path]:
    """Compare two refs or more, or profile one ref. Return the run and the path of its folder.

    `until` returns the ids of the cells that need another epoch; by default, the undecided cells. `past` returns the
    nights of the run's cells, for the report. After ^C the report is still written. Raises AbprofError for errors that
    the user can correct.
    """
    with begin(config, view) as (place, folder, trees):
        record_of = partial(new_record, folder, blocks=(), view=view, until=until)
        return finish(_measured(place, trees, folder.logs, record_of, view), past), folder.path


def rerun(
    path: Path,
    only: Sequence[str],
    repo_path: str,
    budget: float,
    view: View,
    *,
    resume: bool,
    until: Wanted | None = None,
    past: Past | None = None,
) -> tuple[Run, Path]:
    """Add epochs to the cells that `only` selects, or with `resume` finish an interrupted run.

    `path` is the run's folder, `budget` is in seconds, `until` and `past` are as for `run`. Earlier results are kept. Return the
    run and the path of its folder. Raises AbprofError if code, workloads, machine or toolchain have changed.
    """
    head, blocks, notes = read(path)
    if not head.options.timed:
        raise AbprofError("nothing was timed in this run", where=str(path), advice="start a new run: abprof run")
    if any(block.timer == "cupti" and block.metric == "gpu_span" for block in blocks):
        raise AbprofError("CUPTI timed this run, but --timer auto no longer uses CUPTI", advice="start a new run")
    folder = RunFolder(path.parent if path.is_file() else path)
    if resume and head.status == "complete" and until is None:
        return head, folder.path
    cells = head.cells if resume else filters.choose(head, only)
    before = epochs_counted(head, blocks, head.proofs)
    if not resume:
        head = msgspec.structs.replace(head, options=msgspec.structs.replace(head.options, quick=False))
        cells = tuple(cell for cell in cells if before[cell.id] < LOOKS[-1])
    if not cells:
        most = f"each cell has {LOOKS[-1]} epochs, the maximum"
        view.say(f"nothing to measure: {most}; make the machine quieter, or accept a wider --margin")
        return head, folder.path
    whole = head.options.all or not resume
    place = RunContext.again(head, cells, repo_path, folder.path.parent, budget, view, all=whole)
    with held(place, folder.path.name, view) as (place, trees):
        folder.sweep()
        view.attach(folder.path / "output.txt")
        for note in notes:
            view.warn(note)
        older = 0 if resume else len(blocks)
        record_of = partial(new_record, folder, blocks=blocks, view=view, older=older, until=until)
        return finish(_measured(place, trees, folder.logs, record_of, view), past), folder.path


def dry_run(config: Options, view: View) -> Run:
    """Plan a run without building or measuring. Return the planned run, with an error for each broken workload."""
    place = look_around(config, view)
    with proc.signals(), proc.no_orphans(), tempfile.TemporaryDirectory() as logs, place.worktrees(place.id) as trees:
        plan = Plan.of(place, trees, Path(logs), view, dry=True)
        plan.check_packages(place)
        read_options(place)
        several = place.devices if len(place.devices) > 1 and len(plan.cells) > 1 else ()
        machines = {device.lease: device.machine() for device in several}
        return msgspec.structs.replace(plan.run, observations=plan.broken_workloads(), machines=machines)


def forecast(run: Run) -> tuple[str, bool]:
    """Return a text on how long a planned run takes and what it decides, and whether the first look fits the budget."""
    return Estimate(run).text(stats.epochs_if_unchanged, peers=not run.options.no_peers)


def report(path: Path) -> tuple[Run, Path]:
    """Judge the run at `path` again, and write its reports again. Return the run and its folder."""
    view = View(quiet=True)
    run, blocks = judged(path, view.warn)
    folder = RunFolder(path.parent if path.is_file() else path)
    folder.write_run(run)
    reports.write_all(folder.path, run, blocks)
    return run, folder.path


def judged(path: Path, say: Callable[[str], None]) -> tuple[Run, list[Block]]:
    """Judge the run at `path` again, and write nothing. Return the run and its blocks (results by cell and epoch)."""
    head, blocks, notes = read(path)
    for note in notes:
        say(note)
    return judge_run(head, blocks), blocks


def judge_run(run: Run, blocks: Sequence[Block], cache: CellCache | None = None) -> Run:
    """Return the run with verdicts and causes. Without blocks to judge, keep the verdicts that the run has."""
    if run.observations and not blocks:
        return run
    return explained(judge(run, blocks, run.proofs, cache))


# ---------------------------------------------------------------- the stages


@contextlib.contextmanager
def begin(config: Options, view: View) -> Iterator[tuple[RunContext, RunFolder, tuple[Checkout, ...]]]:
    """Start a new run: create its folder, reserve the devices, and check out the sides for the `with` block."""
    place = look_around(config, view)
    if "ncu" in config.probe:
        Ncu.find()  # refuse before measuring, not after
    with (
        proc.signals(),
        new_folder(place.runs_dir, place.id, view) as folder,
        held(place, folder.id, view, wait=not config.no_wait) as (reserved, trees),
    ):
        yield reserved, folder, trees


@contextlib.contextmanager
def held(
    place: RunContext, id: str, view: View, *, wait: bool = True
) -> Iterator[tuple[RunContext, tuple[Checkout, ...]]]:
    """Reserve the devices and check out the sides for the `with` block; afterwards end all child processes."""
    with proc.signals(), proc.no_orphans(), place.worktrees(id) as trees, place.alone(view, wait=wait) as reserved:
        yield reserved, trees


def _import_later() -> None:
    with contextlib.suppress(ImportError, MemoryError):  # where one is needed, its import says why it fails
        for name in _LATER:
            importlib.import_module(name)


def _measured(
    place: RunContext, trees: Sequence[Checkout], logs: Path, record_of: Callable[[Run], Record], view: View
) -> Record:
    began = time.monotonic()
    # The first worker takes seconds to import torch; meanwhile this process imports what it needs later.
    threading.Thread(target=_import_later, daemon=True).start()
    if place.options.command:
        bench = Bench.of(place, trees, logs, view)
        record = record_of(bench.head)
        measure_command(place, bench, record)
    else:
        plan = Plan.of(place, trees, logs, view)
        record = record_of(plan.run)
        measure(place, plan, record, began)
    return record


def new_record(
    folder: RunFolder, head: Run, blocks: Sequence[Block], view: View, older: int = 0, until: Wanted | None = None
) -> Record:
    """Return a record that collects and judges results. The first `older` of `blocks` are from earlier invocations."""
    every = CellCache()
    own = CellCache() if older else every  # a rerun plans its looks by its own blocks
    return Record(
        folder,
        msgspec.structs.replace(head, id=folder.id),
        blocks,
        view,
        judge=partial(judge_run, cache=every),
        wanted=until or partial(undecided, cache=own),
        older=older,
    )


def measure(place: RunContext, plan: Plan, record: Record, began: float) -> None:
    """Build, then measure epochs until all cells are decided, the budget is spent, or the user presses ^C. `began`:
    when the budget began, by time.monotonic()."""
    # `no_orphans` here too: stray child processes end before the results are written.
    with (
        proc.no_orphans(),
        interruptible(record),
        in_use(place.cache),
        executor_of(place, plan, record.folder.logs, record.view.say) or contextlib.nullcontext() as executor,
    ):
        watch, add = plan.watched(place), progress(record)
        plan, seconds = build(place, plan, record, watch, add)
        end = began + seconds + place.options.budget
        measure_epochs(place, plan, record, executor, watch, add, end)
        if not executor:  # with an executor each shard does the follow-up of its own cells
            measure_follow_up(place, plan, record, add, end)
        probe(place, plan, record)
        record.note(watch.look("after the epochs", contents=True))
        read_machine_code(place, plan, record)


def build(
    place: RunContext, plan: Plan, record: Record, watch: Watch, add: Callable[[Item], None]
) -> tuple[Plan, float]:
    """Build the packages, and write the run's header. Return the plan with every cell's arms, and the builds' seconds."""
    before = time.monotonic()
    builds = plan.build_kernels(place, record.view)
    plan = start(place, plan, builds, record, add)
    builds = plan.second_builds(builds, record.view, rebuild=place.options.rebuild)
    plan = plan.with_builds(builds)
    record.start(plan.run)
    seconds = time.monotonic() - before
    record.note(watch.built(builds, "while kernels were built"))
    about, fits = forecast(plan.run)
    if not (fits or record.blocks):
        record.view.warn(about)
    return plan, seconds


def measure_epochs(
    place: RunContext,
    plan: Plan,
    record: Record,
    executor: Executor | None,
    watch: Watch,
    add: Callable[[Item], None],
    end: float,
) -> None:
    """Measure epochs until every cell has a verdict or the budget ends (`end`, by time.monotonic())."""
    budget = end - time.monotonic()
    if executor:
        plan.factory.end_judge()  # each shard has its own
        items = coordinate(plan, record, executor, place)
    else:
        items = epochs(plan, record.wanted, first=record.next_epoch, budget=budget)
    with record.view.working("starting workers", budget):
        for item in items:
            add(item)
            if isinstance(item, Block) and not executor:
                record.note(watch.look(f"in epoch {item.epoch}"))


def measure_follow_up(place: RunContext, plan: Plan, record: Record, add: Callable[[Item], None], end: float) -> None:
    """Time cells at the power limit without pauses, then profile each cell once, until the budget ends."""
    if time.monotonic() < end and (due := plan.slices_due(record.blocks)):
        for row in record.judged("running").comparisons:
            if row.cell in due and row.pct is not None and not row.with_peer:
                which, found = f"{row.cell}  {row.from_} -> {row.to}", f"{row.verdict} by burst ({signed(row.pct)})"
                record.view.say(f"  {which}: {found}; next without pauses")
    until = max(end, time.monotonic() + _FOLLOW_UP * place.options.budget)
    for block in follow_up(plan, record.blocks, record.next_epoch, end, until):
        add(block)
    if time.monotonic() > until and (late := len(plan.to_profile(record.blocks))):
        record.view.warn(f"no budget was left to profile {plural(late, 'cell')}; raise --budget")


def probe(place: RunContext, plan: Plan, record: Record) -> None:
    """Run the profilers that --probe names on changed cells."""
    chosen, path, say = place.options.probe, record.folder.path, record.view.say
    for trace in probed(plan, record.judged("running"), chosen, path, record.next_epoch, say) if chosen else ():
        record.add(trace)


def read_machine_code(place: RunContext, plan: Plan, record: Record) -> None:
    """Read the machine code of kernels that have not been read, and keep listings of those in changed rows. If a file is
    gone, keep the earlier reading."""
    for kernel in read_kernels(record.known("running"), record.kernels.values(), place.cache / "code"):
        key = kernel_key(kernel)
        if not kernel.missing or record.kernels.get(key, kernel).missing:
            record.kernels[key] = kernel
    listed = keep_listings(record.judged("running"), tuple(plan.checkouts.values()), record.folder.path)
    record.kernels |= {kernel_key(kernel): kernel for kernel in listed.kernels}
    record.head = msgspec.structs.replace(record.head, hunks=listed.hunks, listed=listed.listed, notes=listed.notes)


def start(
    place: RunContext, plan: Plan, builds: tuple[Build, ...], record: Record, add: Callable[[Item], None] | None = None
) -> Plan:
    """Assign the arms to cells, and write the run's header. `add` records each cell that needs no measuring."""
    plan, skipped = plan.assign_arms(place, builds, record.blocks)
    record.start(plan.run)
    for block in skipped:
        (add or record.add)(block)
    return plan


def measure_command(place: RunContext, bench: Bench, record: Record) -> None:
    """Measure a command that times itself. Outputs and loaded files are not checked, and no probe runs."""
    budget, first, add = place.options.budget, record.next_epoch, progress(record)
    with proc.no_orphans(), interruptible(record), record.view.working("starting workers", budget):
        record.start(record.head)
        for block in bench.epochs(place.device, record.wanted, first=first, budget=budget):
            add(block)


def finish(record: Record, past: Past | None = None) -> Run:
    """Judge the run, and write run.json and every report."""
    record.close(datetime.now(UTC).isoformat(timespec="seconds"))
    run = record.judged("interrupted" if record.interrupted else "complete")
    record.folder.write_run(run)
    if past and (nights := past(run, record.folder.path.parent)):  # after run.json: it may be a night itself
        run = msgspec.structs.replace(run, history=nights)
        record.folder.write_run(run)
    record.view.detach()
    reports.write_all(record.folder.path, run, record.blocks)
    return run


@contextlib.contextmanager
def interruptible(record: Record) -> Iterator[None]:
    """Catch ^C in the `with` block, so that the run's report is still written."""
    try:
        yield
    except KeyboardInterrupt:
        record.interrupted = True
        record.view.warn("interrupted: writing what was measured")


def progress(record: Record) -> Callable[[Item], None]:
    """Return a function that records a result, and prints new failures and the changes measured so far."""
    labels = names.short_labels(record.head.cells)
    cells = {cell.id: cell for cell in record.head.cells}
    shown = set[tuple[str, str, str]]()  # a failure is shown once, not in every cell and epoch
    say, known, count = record.view.say, dict[str, list[Block]](), 0  # blocks by cell, since a large run has many

    def add(item: Item) -> None:
        record.add(item)
        if not isinstance(item, Block) or item.beside:
            return
        nonlocal count
        if len(record.blocks) != count + 1:  # earlier invocations have blocks, or a lost shard's blocks were voided
            known.clear()
        for block in (item,) if known else record.blocks:
            known.setdefault(block.cell, []).append(block)
        count, label = len(record.blocks), labels.get(item.cell, item.cell)
        for arm, outcome in item.outcomes.items():
            failure = (arm, outcome.status, outcome.reason)
            if outcome.status not in {"ok", "identical"} and failure not in shown:
                shown.add(failure)
                say(f"  {label}  {arm}: {outcome.status}, {outcome.reason}")
        if item.judged and item.rounds:
            run = msgspec.structs.replace(record.head, cells=(cells[item.cell],))
            for pair, values in provisional(run, known[item.cell]):
                change = signed(stats.percent(sum(values) / len(values)))
                record.view.change(label, f"{pair.before} -> {pair.after}", change, len(values), LOOKS)

    return add
