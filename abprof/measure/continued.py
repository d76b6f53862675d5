"""Continue a run: find its options, sides, machine and builds again, and choose the cells to measure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import msgspec

from abprof.builds import differences
from abprof.measure import matrix
from abprof.measure.run_context import RunContext, look_around
from abprof.records import Build, Cell, Run, Verdict
from abprof.records.errors import AbprofError
from abprof.records.options import Options
from abprof.system.console import View

_KEPT = (
    "python", "env", "autotune", "check", "contain", "workloads_from", "timeout", "build_timeout", "executor",
    "executor_options", "timer", "seed", "sustained", "probe",
)  # fmt: skip


def as_asked(run: Run, repo: str, budget: float) -> Options:
    """Return options that measure a run's code again, on its device and with its timer, seed and worker settings."""
    return Options(
        specs=tuple(side.anew for side in run.sides),
        repo=repo,
        command=run.command.argv if run.command else (),
        budget=budget,
        all=True,  # identical cells that the run did not measure already have a block
        no_peers=not any(arm.peer for arm in run.arms),
        device=(run.machine.uuid or run.machine.kind,),
        **{name: getattr(run.options, name) for name in _KEPT},
    )


def same_place(run: Run, repo: str, runs_dir: Path, budget: float, view: View, *, all: bool = True) -> RunContext:
    """Return the run context in which to continue `run`. Raises AbprofError if the code or the device has changed.

    `all`: whether to measure cells of identical code too. `budget`: seconds.
    """
    options = msgspec.structs.replace(as_asked(run, repo, budget), runs_dir=str(runs_dir), all=all)
    if run.machines and not run.options.executor:
        options = msgspec.structs.replace(options, device=tuple(run.machines), devices=None)
    place = look_around(options, view)
    for before, now in zip(run.sides, place.sides, strict=True):
        if before.tree != now.tree:
            raise AbprofError(
                f"{before.spec} has changed since the run", where=f"side {before.id}", advice="start a new run"
            )
    for device in () if run.options.executor else place.devices:
        here, then = device.machine(), run.machines.get(device.lease, run.machine)
        if (here.device, here.uuid) != (then.device, then.uuid):
            raise AbprofError(f"the run was made on {then.device}, this is {here.device}", advice="start a new run")
    return dataclasses.replace(place, sides=run.sides, notes=(), id=run.id)


def of_workloads(run: Run, where: str) -> None:
    """Raise AbprofError (naming `where`) if the run measured a command, which has no workload to call."""
    if run.command:
        what = "this run is of a command, which has no operation to call"
        raise AbprofError(what, where=where, advice="run the command itself under the profiler")


def choose(run: Run, only: Sequence[str]) -> tuple[Cell, ...]:
    """Return the cells that match `only`: verdicts (`slower`, `unclear`), AXIS=VALUE or parts of ids; (): all cells.

    In a run of one side, verdicts are those on its variants. Raises AbprofError if no cell matches.
    """
    words = set(get_args(Verdict))
    verdicts = {word for text in only for word in text.split(",") if word in words}
    filters = [text for text in only if not set(text.split(",")) <= words]
    cells = run.cells
    if verdicts:
        rows = [row for row in run.comparisons if not row.with_peer] or run.within
        ids = {row.cell for row in rows if row.verdict in verdicts}
        cells = tuple(cell for cell in cells if cell.id in ids)
        if not cells:
            raise AbprofError(f"no cell has the verdict {' or '.join(sorted(verdicts))}", where="--only")
    return matrix.select(cells, filters)


def same_builds(run: Run, builds: Sequence[Build], cache: Path) -> tuple[Build, ...]:
    """Return the run's builds, with `builds` added or put in place of earlier ones.

    Raises AbprofError if a new build differs from the earlier one in inputs or toolchain.
    """
    before = {(build.side, build.kernel): build for build in run.builds}
    for build in builds:
        old = before.get((build.side, build.kernel))
        if old is not None and old.key != build.key:
            differing = ", ".join(differences(cache, old.key, build.key))
            why = f"other than then: {differing}" if differing else "sources, toolchain or environment differ"
            what = f"the build of {build.kernel} is not the run's ({why})"
            advice = "make it as it was, or start a new run" if differing else "start a new run"
            raise AbprofError(what, where=f"side {build.side}", advice=advice)
    return tuple((before | {(build.side, build.kernel): build for build in builds}).values())
