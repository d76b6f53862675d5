"""From a place to a plan: ask the workloads, lay out the cells."""

from __future__ import annotations

import dataclasses
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from abprof.builds import environment
from abprof.builds import sandbox as contain
from abprof.builds.tampering import Watch, elsewhere, inputs_of
from abprof.builds.worker_factory import Workshop, alone, command, surroundings, wall_for
from abprof.measure import plan
from abprof.measure.discovery import (
    Survey,
    ceilings,
    copy_workloads,
    find_workloads,
    known,
    packages,
    same_judge,
    survey,
    who_is,
)
from abprof.measure.run_context import Place, forbidden, sources, toolchain
from abprof.measure.timers import INSTALL, PACKAGE, lacking
from abprof.measure.turns import CUPTI
from abprof.measure.workload_source import root_of, workloads_differ, workloads_folder
from abprof.records import SCHEMA, Cell, Checkout, Observation, Package, Run, Toolchain
from abprof.records.errors import AbprofError
from abprof.records.options import Options
from abprof.sides import Repository, releases
from abprof.system import config_unused as unused
from abprof.system.console import View
from abprof.system.trees import remove_tree


@dataclass(frozen=True)
class Plan:
    """What will be measured, and with what."""

    shop: Workshop
    survey: Survey
    packages: dict[str, Package]
    checkouts: dict[str, Checkout]
    head: Run


@dataclass(frozen=True)
class Again:
    """A run that is gone on with, and which of its cells."""

    run: Run
    cells: tuple[Cell, ...]
    part: bool = False  # it goes on elsewhere at the same time: what is to be said of all of it was said there
    told: Mapping[str, str] = field(
        default_factory=dict
    )  # cell -> what read its turns so far (abprof/measure/timers.py)


def make_plan(
    place: Place, trees: Sequence[Checkout], logs: Path, view: View, again: Again | None = None, *, dry: bool = False
) -> Plan:
    """Ask the workloads what they are, and lay out the cells; or take the cells of a run that is gone on with.

    Measures the device's ceilings, once in a run; not when `dry`. Raises AbprofError.
    """
    config = place.options
    beside = Path(trees[0].path).parent  # this run's own folder: what is put here goes with the worktrees
    source, files, digest = _laid_out(place, trees, again.run.workloads_from if again else "")
    env, withheld = surroundings(config, place.cache)
    workers = {checkout.side.id: command(config, checkout.side.id, place.cache) for checkout in trees}
    device = place.device
    log = logs / "survey.log"
    asked = alone(config, place.cache, device.worker, beside, log=log)
    try:
        if again:
            found = known(asked, files, digest, again.run, again.cells, device=device.worker, timeout=config.timeout)
        else:
            found = survey(asked, files, config, device=device.worker, kind=device.kind, timeout=config.timeout)
        installed = packages(asked, config.timeout)
        best = again.run.ceilings if again else None
        best = best or (None if dry or config.executor else ceilings(asked, config.timeout))
    finally:
        asked.stop()
    wall, not_contained = wall_for(config, place.cache, device.worker, beside)
    if "ncu" in config.probe:
        not_contained += contain.foreground_notes(wall, "what --probe ncu looks at")
    mine = toolchain(found.ready.versions, found.ready.facts, device.kind, env)
    chains = _toolchains(place, workers, Toolchain(versions=mine, packages=installed), env, beside, log)
    if config.by_timer == "cupti" and device.kind != "cpu":
        _cupti_is_there(config.asked_by("--timer"), workers, chains)
    for cell in (cell for cell in again.cells if again.told.get(cell.id) == CUPTI) if again else ():
        _cupti_is_there(f"{cell.id}, which CUPTI's records read so far", workers, chains)
    shop = Workshop(
        cache=place.cache,
        logs=logs,
        scratch=beside / "scratch",
        workers=workers,
        env=env,
        device=place.device.worker,
        forbidden=forbidden(place),
        sources=sources(place),
        workloads={name: str(file) for name, file in files.items()},
        toolchain={side: chain.versions for side, chain in chains.items()},
        timeout=config.timeout,
        build_timeout=config.build_timeout,
        named=frozenset({*place.file.environment.set, *place.file.environment.allow}),
        wall=wall,
    )
    idle = () if again else _unused(config, found)
    told = (*not_contained, *_lacking(trees, chains), *idle)
    if not (again and again.part):
        for line in (*place.notes, *told):
            view.say(line)
        for line in workloads_differ(place, trees, source):
            view.warn(line)
    for name in found.empty:
        view.warn(f"workload {name} has no cell in preset {config.preset}")
    options = _stored(place, workers, wall)
    shown = environment.shared(env, device.worker)
    head = again.run if again else _head(place, found, f"{source} sha256:{digest}", shown, withheld, options)
    head = msgspec.structs.replace(head, notes=tuple(dict.fromkeys((*head.notes, *told))))
    head = msgspec.structs.replace(head, options=_all_behind(head.options, options.wall))
    head = msgspec.structs.replace(head, ceilings=best, toolchains=head.toolchains or chains)
    return Plan(shop, found, place.packages(_kernels(found)), {c.side.id: c for c in trees}, head)


def other_cells(place: Place, ready: Plan, run: Run, logs: Path) -> Plan:
    """The plan of another part of the same run on the same device: its toolchain was looked at, and stands. No worker of the
    part before lives any more, and what they kept is gone.

    Raises AbprofError when the judge is another now.
    """
    _, files, digest = _laid_out(place, list(ready.checkouts.values()), run.workloads_from)
    same_judge(run, files, digest)
    shop = dataclasses.replace(ready.shop, logs=logs, token=secrets.token_hex(8))
    found = dataclasses.replace(ready.survey, workloads=run.workloads, cells=run.cells)
    then = ready.head
    head = msgspec.structs.replace(
        run, notes=then.notes, options=then.options, ceilings=run.ceilings or then.ceilings, toolchains=then.toolchains
    )
    return Plan(shop, found, place.packages(_kernels(found)), ready.checkouts, head)


def _laid_out(place: Place, trees: Sequence[Checkout], judge: str) -> tuple[Path, dict[str, Path], str]:
    """The workloads (of a run that is gone on with those of its `judge`), copied beside the worktrees, with empty folders for
    what workers keep: where they are from, the copied files, and what identifies them. Raises AbprofError."""
    beside = Path(trees[0].path).parent
    for name in ("workloads", "scratch", "caches"):
        remove_tree(beside / name)
    source = workloads_folder(place, trees, judge)
    by = "--cell" if place.options.cell else "--workloads"
    files, root = find_workloads(source, place.options.workloads, by), root_of(place, trees, source)
    wrapped = {name: root / name for name in place.file.benchmarks}
    digest = copy_workloads(source, beside / "workloads", wrapped, place.file.at("benchmarks"))
    (beside / "scratch").mkdir()
    (beside / "caches").mkdir()
    return source, {name: beside / "workloads" / file.name for name, file in files.items()}, digest


def _kernels(found: Survey) -> list[str]:
    return list(dict.fromkeys(cell.kernel for cell in found.cells if cell.kernel))


def _toolchains(
    place: Place, workers: Mapping[str, tuple[str, ...]], base: Toolchain, env: dict[str, str], beside: Path, log: Path
) -> dict[str, Toolchain]:
    """Side -> toolchain. Each interpreter but base's, which is known, is asked once."""
    config, device = place.options, place.device
    by_worker = {workers["base"]: base}
    for side, argv in workers.items():
        if argv not in by_worker:
            ready, installed = who_is(
                alone(config, place.cache, device.worker, beside, side=side, log=log), device.worker, config.timeout
            )
            versions = toolchain(ready.versions, ready.facts, device.kind, env)
            by_worker[argv] = Toolchain(versions=versions, packages=installed)
    return {side: by_worker[argv] for side, argv in workers.items()}


def _cupti_is_there(where: str, workers: Mapping[str, Sequence[str]], chains: Mapping[str, Toolchain]) -> None:
    """Raises AbprofError where a side's interpreter certainly lacks what CUPTI's timer needs."""
    side = lacking(chains)
    if side:
        advice = f"{workers[side][0]} -m pip install {PACKAGE} (abprof's extra: {INSTALL})"
        raise AbprofError(f"{PACKAGE} is not installed for {side}", where=where, advice=advice)


def _lacking(trees: Sequence[Checkout], chains: Mapping[str, Toolchain]) -> list[str]:
    """A line for each release that asks for what its side's interpreter has not."""
    lines = []
    for side, path in ((tree.side, Path(tree.path)) for tree in trees if tree.side.kind == "dist"):
        chain = chains[side.id]
        if unmet := releases.unmet(path, chain.versions.get("python", ""), chain.packages):
            lines.append(f"{side.label} asks for {', '.join(unmet)}, and abprof installs no dependencies")
    return lines


def _unused(config: Options, found: Survey) -> tuple[str, ...]:
    """Lines on what abprof.toml says of workloads and packages that this run does not have."""
    cells, loads = (cell.id for cell in found.cells), found.workloads
    named = unused.thresholds(config, cells, [load.name for load in loads])
    return (*named, *unused.packages(config, loads, broken=bool(found.broken)))


def _stored(place: Place, workers: Mapping[str, Sequence[str]], wall: contain.Wall | None) -> Options:
    """The options as run.json has them: what a rerun needs to set up its workers alike is made explicit."""
    config, folder = place.options, place.options.workloads_from
    return msgspec.structs.replace(
        config.resolved(place.device.kind, plan.judge(config.by_timer, place.device.kind)),
        python={side: argv[0] for side, argv in workers.items()},
        env=environment.mode(config.env, os.environ),
        wall=wall.version if wall else "",
        workloads_from=folder if folder in {"", *workers} else str(Path(folder).absolute()),
        executor_options=config.executor_options if config.executor else {},
    )


def _all_behind(options: Options, now: str) -> Options:
    """The options of a continued run: it counts as sandboxed if all its parts were."""
    walls = dict.fromkeys((options.wall, now))
    return msgspec.structs.replace(options, wall=", ".join(walls) if all(walls) else "")


def _head(
    place: Place, found: Survey, source: str, env: dict[str, str], withheld: tuple[str, ...], options: Options
) -> Run:
    shown = ("CUDA", "TORCH", "TRITON", "OMP", "GOMP", "KMP", "FFA", "CXX")
    return Run(
        schema=SCHEMA,
        id=place.id,
        status="running",
        began=datetime.now(UTC).isoformat(timespec="seconds"),
        options=options,
        night=place.options.night,
        sides=place.sides,
        waivers=place.waivers,
        workloads=found.workloads,
        workloads_from=source,
        arms=(),
        cells=found.cells,
        machine=place.device.machine(),
        versions=found.ready.versions,
        environment={name: env[name] for name in sorted(env) if name.startswith(shown)},
        withheld=withheld,
        notes=place.notes,
    )


def broken_workloads(ready: Plan) -> tuple[Observation, ...]:
    """What is known of workloads that could not say what they are, on every side."""
    return tuple(
        Observation(cell=cell, arm=side, status=failure.status, reason=failure.reason, at=failure.at)
        for cell, failure in ready.survey.broken.items()
        for side in ready.checkouts
    )


def watched(place: Place, ready: Plan) -> Watch:
    """Looks at what code under test must not write to, from now on; where it may be a stranger's and nothing contains it, at
    other places too."""
    folder = ready.shop.scratch.parent
    judging = (folder / "workloads", Path(ready.shop.argv("base")[-1]).parent)
    alone = environment.mode(place.options.env, os.environ) == "clean" and ready.shop.wall is None
    git = place.repository.common_dir if isinstance(place.repository, Repository) else place.root / ".git"
    others = elsewhere(place.root, git, place.runs_dir, os.environ) if alone else ()
    inputs = {
        (side, package.name): inputs_of(Path(checkout.path), package.of(checkout.side))
        for package in ready.packages.values()
        for side, checkout in ready.checkouts.items()
    }
    return Watch(judging, ready.checkouts.values(), others, ready.shop.scratch, inputs)
