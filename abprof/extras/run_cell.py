"""`abprof run-cell`: calls one cell of one side in the foreground, without measuring. For profilers."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import msgspec

from abprof.builds import in_use, sandbox
from abprof.measure import Plan, look_around, make_plan, matrix
from abprof.measure.plan import build_kernels
from abprof.measure.pool import WorkerSpec, foreground
from abprof.measure.run_context import alone, signals, worktrees
from abprof.records import Arm, Build, Cell, Workload
from abprof.records import messages as wire
from abprof.records.errors import AbprofError
from abprof.records.options import Options
from abprof.system import processes as proc
from abprof.system.console import View


@dataclass(frozen=True)
class Wanted:
    """Which calls: a cell's id, in one variant or of one peer."""

    cell: str
    variant: str = ""
    peer: str = ""
    warmup: int = 10
    runs: int = 50


def run(options: Options, wanted: Wanted, view: View) -> str:
    """Make the calls in a process with this one's input and output. Returns a line that says what was run.

    Raises AbprofError for an unknown cell, ref, variant or peer, and for a call that fails.
    """
    sandbox.refuse_foreground(options.contain, "the cell of run-cell")
    place = look_around(_narrowed(options, wanted), view)
    side = place.sides[0]
    with (
        signals(),
        proc.no_orphans(),
        tempfile.TemporaryDirectory() as logs,
        worktrees(place, place.id, view) as trees,
        alone(place, view, wait=not options.no_wait),
    ):
        try:
            plan = make_plan(place, trees, Path(logs), view, dry=True)
        except AbprofError as error:
            if error.where not in ("--set", "--workloads", "--preset"):
                raise
            where = f"no cell {wanted.cell} on {side.label}"  # its id gave these options
            raise AbprofError(error.what, where=where, advice=error.advice) from error
        for line in sandbox.foreground_notes(plan.factory.wall, "the cell of run-cell"):
            view.say(line)
        cell = _cell(plan, wanted)
        with in_use(place.cache):
            (build,) = build_kernels(place, plan, view)
            arm = _arm(plan.run.workloads[0], build, wanted)
            checkout = plan.checkouts["base"]
            spec = WorkerSpec("base", checkout, plan.packages[cell.kernel].of(checkout.side), build)
            warmup, runs, seed = wanted.warmup, wanted.runs, options.seed
            job = foreground(plan.factory, spec, cell, arm, warmup=warmup, runs=runs, seed=seed)
            outcome = job.outcome(proc.foreground(job.argv, env=job.env, cwd=job.cwd))
    if outcome.status != "ok":
        raise AbprofError(f"{outcome.status}: {outcome.reason}", where=f"{cell.id} on {side.label}")
    what = f"peer {arm.peer}" if arm.peer else f"{cell.kernel} {arm.variant}".strip()
    of = f"{side.spec} ({side.commit[:10]}{', as it is now' if side.kind == 'worktree' else ''})"
    marked = f", each in the NVTX range {wire.CALL_RANGE}" if place.device.kind == "cuda" else ""
    return f"ran {cell.id}: {what} of {of}, {wanted.warmup} + {wanted.runs} calls{marked}; outputs not checked"


def _narrowed(options: Options, wanted: Wanted) -> Options:
    """The matrix of this one cell: its id gives workload and values, also values that no preset has."""
    workload, values = matrix.id_parts(wanted.cell)
    for name, value, least in (("--warmup", wanted.warmup, 0), ("--runs", wanted.runs, 1)):
        if value < least:
            raise AbprofError(f"{value} calls", where=name, advice=f"it is {least} or more")
    if wanted.peer and wanted.variant:
        raise AbprofError("a peer has no variants", where="--variant", advice="leave one of --peer, --variant out")
    peer = (wanted.peer,) if wanted.peer else ()
    return msgspec.structs.replace(options, workloads=(workload,), set=values, peer=peer)


def _cell(plan: Plan, wanted: Wanted) -> Cell:
    for failure in plan.broken.values():
        raise AbprofError(f"the workload is broken: {failure.reason}", where=wanted.cell)
    found = next((cell for cell in plan.cells if cell.id == wanted.cell), None)
    if found is None:
        like = ", ".join(cell.id for cell in plan.cells[:3])
        raise AbprofError(f"no cell {wanted.cell}", advice=f"its id names every axis: {like}")
    if found.skip:
        raise AbprofError(f"unsupported: {found.skip}", where=wanted.cell)
    return found


def _arm(load: Workload, build: Build, wanted: Wanted) -> Arm:
    """The peer, the variant, or the variant that reports name first."""
    if build.failure:
        raise AbprofError(f"{build.kernel}: {build.failure.status}: {build.failure.reason}")
    if wanted.peer:
        return Arm(id=f"peer:{wanted.peer}", side="base", peer=wanted.peer)
    variants = matrix.variants_of(load, [build])
    if wanted.variant and wanted.variant not in variants:
        advice = f"it has {', '.join(variants)}" if variants else "it has none"
        raise AbprofError(f"{load.kernel} has no variant {wanted.variant!r}", where="--variant", advice=advice)
    variant = wanted.variant or (variants[0] if variants else "")
    return Arm(id=f"base:{variant}" if variant else "base", side="base", variant=variant)
