"""Run arms for profilers, without measuring: `abprof profile` and `memory` under Nsight Compute, `run-cell` under any."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from abprof import report, store
from abprof.builds import in_use, sandbox
from abprof.evidence import Ncu, Refused, explained, keep_listings, subjects
from abprof.measure import Plan, RunContext, look_around
from abprof.records import Arm, Build, Cell, Profile, Run, arm_id, filters, names, variants_of
from abprof.records import messages as wire
from abprof.records.errors import AbprofError
from abprof.records.options import Options
from abprof.session import begin, finish, held, interruptible, new_record, start
from abprof.store import RUN, Record, RunFolder
from abprof.system import processes as proc
from abprof.system.console import View

_Wanted = Collection[tuple[str, str]] | None  # (cell id, arm id) of each arm to profile; None: all arms
_SUBJECT, _CALLED = "what ncu profiles", "the cell of run-cell"


@dataclass(frozen=True)
class Profiled:
    """What `abprof profile` or `abprof memory` made: the profiles, and the run and folder that they are in."""

    run: Run
    folder: Path
    made: tuple[Profile, ...]
    interrupted: bool


def refs(config: Options, order: Profile, view: View) -> Profiled:
    """Profile every cell on every side (ref), variant and peer, in a new run folder without timings. Raises
    AbprofError, for instance if ncu is missing. Removes the run folder if ncu refuses the first arm."""
    sandbox.refuse_foreground(config.contain, _SUBJECT)
    ncu, made = Ncu.find(), []
    config = msgspec.structs.replace(config, all=True)  # also profile cells whose code is unchanged
    with begin(config, view) as (place, folder, trees):
        plan = Plan.of(place, trees, folder.logs, view, dry=True)
        options = msgspec.structs.replace(plan.run.options, timed=False)
        plan = dataclasses.replace(plan, run=msgspec.structs.replace(plan.run, options=options))
        record = new_record(folder, plan.run, [], view)
        try:
            with interruptible(record), in_use(place.cache):
                for found in _profiles(place, plan, record, order, ncu, folder.path, None):
                    made.append(found)
                    record.add(found)
                    folder.write_run(record.judged("running"))
        except Refused:
            if any(one.kernels for one in made):
                record.interrupted = True
                finish(record)
            else:
                (folder.path / RUN).unlink(missing_ok=True)  # a folder without run.json is removed
            raise
        return Profiled(finish(record), folder.path, tuple(made), record.interrupted)


def run(path: Path, only: Sequence[str], repo: str, order: Profile, view: View) -> Profiled:
    """Profile the changed cells of the run in `path`, or the cells in `only`, and add the profiles to the run's folder.
    Raises AbprofError if code, workloads, machine or toolchain differ from those of the run, or if no cell changed."""
    ncu, made = Ncu.find(), []
    head, blocks, notes = store.read(path)
    if head.command:
        raise AbprofError("a command has no operation to profile", where=str(path), advice="profile the command itself")
    sandbox.refuse_foreground(head.options.contain, _SUBJECT)
    folder = RunFolder(path.parent if path.is_file() else path)
    changed = [(cell, arm) for cell, arms in subjects(head) for arm in arms]
    if only:
        changed = [(cell, arm) for cell in filters.choose(head, only) for arm in head.arms]
    chosen = tuple({cell.id: cell for cell, _ in changed}.values())
    if not chosen:
        raise AbprofError("no cell changed", where=str(path), advice="choose cells with --only CELL")
    wanted = {(cell.id, arm.id) for cell, arm in changed}
    profiles = {(one.cell, one.arm): one for one in head.profiles}
    place = RunContext.again(head, chosen, repo, folder.path.parent, 1.0, view)
    with held(place, folder.path.name, view) as (_, trees):
        view.attach(folder.path / "output.txt")
        for note in notes:
            view.warn(note)
        logs, aside = folder.logs / "profile", Path(trees[0].path).parent / "look"
        logs.mkdir(exist_ok=True)
        aside.mkdir(exist_ok=True)
        plan = Plan.of(place, trees, logs, view, dry=True)
        # The builds and arms of this command are not part of the run.
        record = new_record(RunFolder(aside), plan.run, blocks, view, older=len(blocks))
        with interruptible(record), in_use(place.cache):
            for found in _profiles(place, plan, record, order, ncu, folder.path, wanted):
                made.append(found)
                profiles[found.cell, found.arm] = found
                head = msgspec.structs.replace(head, profiles=tuple(profiles.values()))
                folder.write_run(head)
        head = explained(keep_listings(head, trees, folder.path))  # samples by line of source, after ^C too
        folder.write_run(head)
        view.detach()
        report.write_all(folder.path, head, blocks)
        return Profiled(head, folder.path, tuple(made), record.interrupted)


def _profiles(
    place: RunContext, plan: Plan, record: Record, order: Profile, ncu: Ncu, folder: Path, wanted: _Wanted
) -> Iterator[Profile]:
    """Build the packages, then yield a profile of each (cell, arm) in `wanted`, except of controls. A broken workload
    yields one failed profile. `order`: a profile with only the settings, to be copied for each arm."""
    say = record.view.say
    for line in sandbox.foreground_notes(plan.factory.sandbox, _SUBJECT):
        say(line)
    plan = start(place, plan, plan.build_kernels(place, record.view), record)
    for id, failure in plan.broken.items():
        yield msgspec.structs.replace(order, cell=id, arm="base", status=failure.status, reason=failure.reason)
    cells = [cell for cell in plan.run.cells if cell.kernel and cell.id in plan.arms]
    rows = [(cell, [arm for arm in plan.arms[cell.id] if arm.side != "control"]) for cell in cells]
    if wanted is not None:
        rows = [(cell, [arm for arm in arms if (cell.id, arm.id) in wanted]) for cell, arms in rows]
    yield from ncu.captured(plan, rows, order, folder, say)


def call(
    options: Options, id: str, view: View, *, variant: str | None, peer: str | None, warmup: int, runs: int
) -> str:
    """Call the cell `id` in a process that shares this terminal, `warmup` + `runs` times, and return a summary line.
    Raises AbprofError for an unknown cell, ref, `variant` or `peer`, and for a failed call."""
    sandbox.refuse_foreground(options.contain, _CALLED)
    workload, values = names.id_parts(id)
    if peer and variant:
        raise AbprofError("a peer has no variants", where="--variant", advice="give either --peer or --variant")
    # The cell's id names workload and values, which may be outside all presets.
    options = msgspec.structs.replace(options, workloads=(workload,), set=values, peer=(peer,) if peer else ())
    place = look_around(options, view)
    side = place.sides[0]
    with tempfile.TemporaryDirectory() as logs, held(place, place.id, view, wait=not options.no_wait) as (place, trees):
        try:
            plan = Plan.of(place, trees, Path(logs), view, dry=True)
        except AbprofError as error:
            if error.where not in ("--set", "--workloads", "--preset"):
                raise
            raise AbprofError(error.what, where=f"no cell {id} on {side.label}", advice=error.advice) from error
        for line in sandbox.foreground_notes(plan.factory.sandbox, _CALLED):
            view.say(line)
        cell = _cell(plan, id)
        with in_use(place.cache):
            (build,) = plan.build_kernels(place, view)
            arm = _arm(plan, build, variant, peer)
            job = plan.foreground(build, cell, arm, warmup=warmup, runs=runs)
            outcome = job.outcome(proc.foreground(job.argv, env=job.env, cwd=job.cwd))
    if outcome.status != "ok":
        raise AbprofError(f"{outcome.status}: {outcome.reason}", where=f"{cell.id} on {side.label}")
    what = f"peer {peer}" if peer else f"{cell.kernel} {arm.variant}".strip()
    of = f"{side.spec} ({side.commit[:10]}{', as it is now' if side.kind == 'worktree' else ''})"
    marked = f", each in the NVTX range {wire.CALL_RANGE}" if place.device.kind == "cuda" else ""
    return f"ran {cell.id}: {what} of {of}, {warmup} + {runs} calls{marked}; outputs not checked"


def _cell(plan: Plan, id: str) -> Cell:
    for failure in plan.broken.values():
        raise AbprofError(f"the workload is broken: {failure.reason}", where=id)
    found = next((cell for cell in plan.cells if cell.id == id), None)
    if found is None:
        like = ", ".join(cell.id for cell in plan.cells[:3])
        raise AbprofError(f"no cell {id}", advice=f"an id names every axis: {like}")
    if found.skip:
        raise AbprofError(f"unsupported: {found.skip}", where=id)
    return found


def _arm(plan: Plan, build: Build, variant: str | None, peer: str | None) -> Arm:
    if build.failure:
        raise AbprofError(f"{build.kernel}: {build.failure.status}: {build.failure.reason}")
    if peer:
        return Arm.of(f"peer:{peer}")
    variants = variants_of(plan.run.workloads[0], [build])
    if variant and variant not in variants:
        advice = f"variants: {', '.join(variants)}" if variants else "the kernel has no variants"
        raise AbprofError(f"{build.kernel} has no variant {variant!r}", where="--variant", advice=advice)
    return Arm.of(arm_id("base", variant or next(iter(variants), "")))
