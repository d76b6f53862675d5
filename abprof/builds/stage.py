"""The packages of a plan, built: which builds a run needs, how many are made at a time, and what is said of each."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from abprof.builds import build
from abprof.builds.builder import Job
from abprof.measure.plan import Plan
from abprof.measure.run_context import Place
from abprof.records import Build
from abprof.records.errors import AbprofError
from abprof.system.console import View


def build_kernels(place: Place, ready: Plan, view: View) -> tuple[Build, ...]:
    """Every package that a cell is to be measured with, on every side. Raises AbprofError where no side has any."""
    cpus = len(os.sched_getaffinity(0))
    slots = max(1, cpus // 2 if place.device.kind == "cuda" else cpus)
    rebuild = place.options.rebuild
    with view.building():
        builds = build.build_all(ready.shop, _jobs(ready), slots=slots, rebuild=rebuild, say=view.build_line)
    told(builds, view)
    on_some_side(place, builds)
    return builds


def to_build(ready: Plan) -> list[str]:
    """The packages that a cell is to be measured with."""
    measured = {cell.kernel for cell in ready.cells if not cell.skip}
    return [name for name in ready.packages if name in measured]


def _jobs(ready: Plan) -> list[Job]:
    """A package's sides follow each other."""
    cells = {name: tuple(c for c in ready.cells if c.kernel == name and not c.skip) for name in to_build(ready)}
    return [
        Job(checkout, ready.packages[name].of(checkout.side), mine)
        for name, mine in cells.items()
        for checkout in ready.checkouts.values()
    ]


def told(builds: Sequence[Build], view: View) -> None:
    """Say what came of each."""
    for made in builds:
        state = made.failure.reason if made.failure else ("cached" if made.cached else f"built in {made.seconds:.1f} s")
        view.say(f"{made.side} {made.kernel}: {state}", style="red" if made.failure else "")


def nowhere(builds: Sequence[Build]) -> bool:
    """Whether there are builds, and each is `missing`."""
    return bool(builds) and all(b.failure is not None and b.failure.status == "missing" for b in builds)


def on_some_side(place: Place, builds: Sequence[Build]) -> None:
    """Raises AbprofError if no side has any of the packages: nothing can be measured."""
    if nowhere(builds):
        reason = builds[0].failure.reason if builds[0].failure else ""
        raise _on_no_side(place, [made.kernel for made in builds], reason)


def would_be_on_some_side(place: Place, ready: Plan) -> None:
    """The same of what is not built, as far as files tell it."""
    jobs = _jobs(ready)
    if jobs and not any(build.exists(Path(job.checkout.path), job.package) for job in jobs):
        raise _on_no_side(place, [job.package.name for job in jobs], build.absent(jobs[0].package))


def _on_no_side(place: Place, kernels: Sequence[str], reason: str) -> AbprofError:
    """The first of these packages is missing for this reason; where abprof.toml names its folder, that line is told."""
    names, first = ", ".join(dict.fromkeys(kernels)), kernels[0]
    configured = first in place.file.kernels and place.file.kernels[first].path
    return AbprofError(
        f"no side has a kernel package {names}: {reason}",
        where=place.file.at(f"kernels.{first}.path") if configured else "",
        advice="name its folder in abprof.toml (docs/CONFIG.md)",
    )
