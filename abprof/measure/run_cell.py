"""`abprof run-cell`: one cell of one side in the foreground, with no measuring apparatus around it. For profilers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from abprof.builds import environment, in_use
from abprof.builds import sandbox as contain
from abprof.devices.lease import lease
from abprof.measure import foreground, matrix
from abprof.measure.plan import Plan, build_kernels, make_plan
from abprof.measure.pool import WorkerSpec
from abprof.measure.resources import signals, worktrees
from abprof.measure.run_context import look_around
from abprof.records import Arm, Build, Cell, Workload
from abprof.records import messages as wire
from abprof.records.errors import AbprofError
from abprof.records.options import Options
from abprof.system import processes as proc
from abprof.system.console import View


@dataclass(frozen=True)
class Wanted:
    """Which calls: a cell as every report prints it, in one variant or of one peer."""

    cell: str
    variant: str = ""
    peer: str = ""
    warmup: int = 10
    runs: int = 50


def run(config: Options, wanted: Wanted, view: View) -> str:
    """Make them, in a process that has this one's input and output; the line that says what was run.

    Raises AbprofError for a cell, ref, variant or peer that is not there, and for a call that fails.
    """
    contain.refuse_foreground(config.contain, "the cell of run-cell")
    place = look_around(_narrowed(config, wanted), view)
    with (
        signals(),
        proc.no_orphans(),
        tempfile.TemporaryDirectory() as logs,
        worktrees(place, place.id, view) as trees,
        lease(place.state, place.device.lease, wait=not config.no_wait, label=place.label, say=view.say),
    ):
        environment.scrub_secrets(place.file.environment.allow)
        ready = _planned(place.sides[0].label, wanted, lambda: make_plan(place, trees, Path(logs), view, dry=True))
        for line in contain.foreground_notes(ready.shop.wall, "the cell of run-cell"):
            view.say(line)
        cell = _cell(ready, wanted)
        with in_use(place.cache):
            (build,) = build_kernels(place, ready, view)
            arm = _arm(ready.run.workloads[0], build, wanted)
            checkout = ready.checkouts["base"]
            spec = WorkerSpec("base", checkout, ready.packages[cell.kernel].of(checkout.side), build)
            child = foreground.job(
                ready.shop, spec, cell, arm, warmup=wanted.warmup, runs=wanted.runs, seed=config.seed
            )
            told = child.outcome(proc.foreground(child.argv, env=child.env, cwd=child.cwd))
    if told.status != "ok":
        raise AbprofError(f"{told.status}: {told.reason}", where=f"{cell.id} on {place.sides[0].label}")
    what = f"peer {arm.peer}" if arm.peer else f"{cell.kernel} {arm.variant}".strip()
    side = place.sides[0]
    of = f"{side.spec} ({side.commit[:10]}{', as it is now' if side.kind == 'worktree' else ''})"
    marked = f", each in the NVTX range {wire.CALL_RANGE}" if place.device.kind == "cuda" else ""
    return f"ran {cell.id}: {what} of {of}, {wanted.warmup} + {wanted.runs} calls{marked}; outputs not checked"


def _narrowed(config: Options, wanted: Wanted) -> Options:
    """The matrix of this one cell: its id says workload and values, also those that no preset has."""
    workload, values = matrix.id_parts(wanted.cell)
    for name, value, least in (("--warmup", wanted.warmup, 0), ("--runs", wanted.runs, 1)):
        if value < least:
            raise AbprofError(f"{value} calls", where=name, advice=f"it is {least} or more")
    if wanted.peer and wanted.variant:
        raise AbprofError("a peer has no variants", where="--variant", advice="leave one of --peer, --variant out")
    peer = (wanted.peer,) if wanted.peer else ()
    return msgspec.structs.replace(config, workloads=(workload,), set=values, peer=peer)


def _planned(label: str, wanted: Wanted, make: Callable[[], Plan]) -> Plan:
    """The plan; what is wrong with a value of the cell's id is said of the cell."""
    try:
        return make()
    except AbprofError as error:
        if error.where not in ("--set", "--workloads", "--preset"):
            raise
        raise AbprofError(error.what, where=f"no cell {wanted.cell} on {label}", advice=error.advice) from error


def _cell(ready: Plan, wanted: Wanted) -> Cell:
    """The one that was asked for. Raises AbprofError."""
    for failure in ready.broken.values():
        raise AbprofError(f"the workload is broken: {failure.reason}", where=wanted.cell)
    found = next((cell for cell in ready.cells if cell.id == wanted.cell), None)
    if found is None:
        like = ", ".join(cell.id for cell in ready.cells[:3])
        raise AbprofError(f"no cell {wanted.cell}", advice=f"its id names every axis: {like}")
    if found.skip:
        raise AbprofError(f"unsupported: {found.skip}", where=wanted.cell)
    return found


def _arm(load: Workload, build: Build, wanted: Wanted) -> Arm:
    """Whose calls: the variant, the peer, or what reports name first. Raises AbprofError."""
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
