"""Run `abprof run-cell`: call one cell of one side in the foreground, for a profiler, without measuring."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec

from abprof import session
from abprof.builds import in_use, sandbox
from abprof.measure import Plan, look_around
from abprof.records import Arm, Build, Cell, names, variants_of
from abprof.records import messages as wire
from abprof.records.errors import AbprofError
from abprof.records.options import Options
from abprof.system import processes as proc
from abprof.system.console import View

_SUBJECT = "the cell of run-cell"


def run(options: Options, id: str, view: View, *, variant: str | None, peer: str | None, warmup: int, runs: int) -> str:
    """Call the cell `id` in a process that shares this terminal, `warmup` + `runs` times, and return a summary line.
    Raises AbprofError for an unknown cell, ref, `variant` or `peer`, and for a failed call."""
    sandbox.refuse_foreground(options.contain, _SUBJECT)
    workload, values = names.id_parts(id)
    if peer and variant:
        raise AbprofError("a peer has no variants", where="--variant", advice="give either --peer or --variant")
    # The cell's id names workload and values, which may be outside all presets.
    options = msgspec.structs.replace(options, workloads=(workload,), set=values, peer=(peer,) if peer else ())
    place = look_around(options, view)
    side = place.sides[0]
    with (
        tempfile.TemporaryDirectory() as logs,
        session.held(place, place.id, view, wait=not options.no_wait) as (place, trees),
    ):
        try:
            plan = Plan.of(place, trees, Path(logs), view, dry=True)
        except AbprofError as error:
            if error.where not in ("--set", "--workloads", "--preset"):
                raise
            raise AbprofError(error.what, where=f"no cell {id} on {side.label}", advice=error.advice) from error
        for line in sandbox.foreground_notes(plan.factory.sandbox, _SUBJECT):
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
        return Arm(id=f"peer:{peer}", side="base", peer=peer)
    variants = variants_of(plan.run.workloads[0], [build])
    if variant and variant not in variants:
        advice = f"variants: {', '.join(variants)}" if variants else "the kernel has no variants"
        raise AbprofError(f"{build.kernel} has no variant {variant!r}", where="--variant", advice=advice)
    variant = variant or next(iter(variants), "")
    return Arm(id=f"base:{variant}" if variant else "base", side="base", variant=variant)
