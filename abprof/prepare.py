"""From a place to a ground that can be measured on: plan the cells, build the kernels, decide who takes turns."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from abprof import build, contain, environment, evidence, plan, rerun
from abprof.builder import Job
from abprof.errors import AbprofError
from abprof.measure import Ground, unmeasured
from abprof.model import SCHEMA, Arm, Build, Cell, Checkout, Observation, Outcome, Package, Run, Setup, Toolchain
from abprof.place import Place, forbidden, sources, toolchain
from abprof.record import Record
from abprof.repo import Repository
from abprof.survey import (
    Survey,
    ceilings,
    content,
    copy_workloads,
    find_workloads,
    known,
    packages,
    survey,
    who_is,
)
from abprof.untouched import Watch, elsewhere, inputs_of
from abprof.view import View
from abprof.workshop import Workshop, alone, command, surroundings, wall_for

_KEPT_AS_CONTROLS = 3  # identical-code cells that are measured all the same, at random


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


def make_plan(
    place: Place, trees: Sequence[Checkout], logs: Path, view: View, again: Again | None = None, *, dry: bool = False
) -> Plan:
    """Ask the workloads what they are, and lay out the cells; or take the cells of a run that is gone on with.

    Measures the device's ceilings, once in a run; not when `dry`. Raises AbprofError.
    """
    config = place.config
    beside = Path(trees[0].path).parent  # this run's own folder: what is put here goes with the worktrees
    source = workloads_folder(place, trees, again.run.workloads_from if again else "")
    files = find_workloads(source, config.workloads)
    root = _root_of(place, trees, source)
    digest = copy_workloads(source, beside / "workloads", {name: root / name for name in place.file.benchmarks})
    files = {name: beside / "workloads" / file.name for name, file in files.items()}
    env, withheld = surroundings(config, place.cache)
    (beside / "scratch").mkdir()
    (beside / "caches").mkdir()
    workers = {checkout.side.id: command(config, checkout.side.id, place.cache) for checkout in trees}
    device = place.device
    asked = alone(config, place.cache, device.worker, beside, log=logs / "survey.log")
    try:
        if again:
            found = known(asked, files, digest, again.run, again.cells, device=device.worker, timeout=config.timeout)
        else:
            found = survey(asked, files, config, device=device.worker, kind=device.kind, timeout=config.timeout)
        installed = packages(asked, config.timeout)
        best = again.run.ceilings if again else None
        best = best or (None if dry else ceilings(asked, config.timeout))
    finally:
        asked.stop()
    wall, not_contained = wall_for(config, place.cache, device.worker, beside)
    mine = toolchain(found.ready.versions, found.ready.facts, device.kind, env)
    chains = {workers["base"]: Toolchain(versions=mine, packages=installed)}
    for side, argv in workers.items():
        if argv not in chains:
            other = alone(config, place.cache, device.worker, beside, side=side, log=logs / "survey.log")
            ready, installed = who_is(other, device.worker, config.timeout)
            theirs = toolchain(ready.versions, ready.facts, device.kind, env)
            chains[argv] = Toolchain(versions=theirs, packages=installed)
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
        toolchain={side: chains[argv].versions for side, argv in workers.items()},
        timeout=config.timeout,
        build_timeout=config.build_timeout,
        named=frozenset({*place.file.environment.set, *place.file.environment.allow}),
        wall=wall,
    )
    for line in (*place.notes, *not_contained):
        view.say(line)
    for line in workloads_differ(place, trees, source):
        view.warn(line)
    for name in found.empty:
        view.warn(f"workload {name} has no cell in preset {config.preset}")
    setup = _setup(place, workers, wall)
    shown = environment.shared(env, device.worker)
    head = again.run if again else _head(place, found, f"{source} sha256:{digest}", shown, withheld, setup)
    head = msgspec.structs.replace(head, notes=tuple(dict.fromkeys((*head.notes, *not_contained))))
    head = msgspec.structs.replace(head, setup=_all_behind(head.setup, setup.wall))
    by_side = {side: chains[argv] for side, argv in workers.items()}
    head = msgspec.structs.replace(head, ceilings=best, toolchains=head.toolchains or by_side)
    kernels = list(dict.fromkeys(cell.kernel for cell in found.cells if cell.kernel))
    return Plan(shop, found, place.packages(kernels), {c.side.id: c for c in trees}, head)


def _setup(place: Place, workers: Mapping[str, Sequence[str]], wall: contain.Wall | None) -> Setup:
    config, folder = place.config, place.config.workloads_from
    return Setup(
        python={side: argv[0] for side, argv in workers.items()},
        env=environment.mode(config.env, os.environ),
        autotune=config.autotune,
        check=config.check,
        contain=config.contain,
        wall=wall.version if wall else "",
        workloads_from=folder if folder in {"", *workers} else str(Path(folder).absolute()),
        timeout=config.timeout,
        build_timeout=config.build_timeout,
    )


def _all_behind(setup: Setup, now: str) -> Setup:
    """The setup of a run that is gone on with: it stood behind a wall if all its parts did."""
    walls = dict.fromkeys((setup.wall, now))
    return msgspec.structs.replace(setup, wall=", ".join(walls) if all(walls) else "")


def _head(
    place: Place, found: Survey, source: str, env: dict[str, str], withheld: tuple[str, ...], setup: Setup
) -> Run:
    shown = ("CUDA", "TORCH", "TRITON", "OMP", "GOMP", "KMP", "FFA", "CXX")
    return Run(
        schema=SCHEMA,
        id=place.id,
        status="running",
        began=datetime.now(UTC).isoformat(timespec="seconds"),
        arguments=place.config.arguments,
        settings=place.config.settings(place.device.kind, "gpu" if place.device.kind == "cuda" else "wall"),
        sides=place.sides,
        waivers=place.waivers,
        workloads=found.workloads,
        workloads_from=source,
        night=place.config.night,
        arms=(),
        cells=found.cells,
        machine=place.device.machine(),
        setup=setup,
        versions=found.ready.versions,
        environment={name: env[name] for name in sorted(env) if name.startswith(shown)},
        withheld=withheld,
        notes=place.notes,
    )


def broken_workloads(ready: Plan) -> tuple[Observation, ...]:
    """What is known of workloads that could not say what they are, on every side."""
    return tuple(
        Observation(cell=cell, arm=side, status=failure.status, reason=failure.reason)
        for cell, failure in ready.survey.broken.items()
        for side in ready.checkouts
    )


def workloads_folder(place: Place, trees: Sequence[Checkout], recorded: str = "") -> Path:
    """Where the judge comes from: the working tree, or --workloads-from. With CI set it is base's commit, like
    abprof.toml, so that a pull request does not bring its own judge; one that lies beside the repository is in no commit,
    and stays where it is.

    It may be a file, where one workload alone was asked for by its path.
    A run that is gone on with takes the folder that judged it (`recorded`, its "PATH sha256:HEX"). Where that was a
    worktree which is gone, it is the one of the new worktrees that holds the same. Raises AbprofError.
    """
    name = place.file.workloads or "workloads"
    own = Path(os.path.normpath(place.root / name))
    in_commits = own.is_relative_to(place.root) and place.sides[0].kind != "dist"
    in_ci = "base" if os.environ.get("CI") and in_commits else ""
    wanted = place.config.workloads_from or in_ci
    by_side = {checkout.side.id: Path(checkout.path) / name for checkout in trees}
    folder = by_side.get(wanted) or (Path(wanted) if wanted else own)
    before, _, digest = recorded.rpartition(" sha256:")
    if digest and Path(before).exists():
        folder = Path(before)
    elif digest:
        places = (folder, *by_side.values())
        folder = next((path for path in places if path.is_dir() and content(path) == digest), folder)
    if not folder.exists():
        advice = "put them there, name a folder in abprof.toml (docs/CONFIG.md), or give their path to --workloads"
        raise AbprofError("no workloads: there is no such folder", where=str(folder), advice=advice)
    return folder


def _root_of(place: Place, trees: Sequence[Checkout], source: Path) -> Path:
    """The tree that the workloads are of: what they wrap comes from there too."""
    return next((Path(tree.path) for tree in trees if source.is_relative_to(tree.path)), place.root)


def workloads_differ(place: Place, trees: Sequence[Checkout], source: Path) -> list[str]:
    """A line for each side whose own workloads are not those that judge."""
    name = place.file.workloads or "workloads"
    mine = content(source)
    lines = []
    for checkout in trees:
        folder = Path(checkout.path) / name
        if folder.is_dir() and content(folder) != mine:
            lines.append(f"{checkout.side.label}'s own {name}/ differs from the one that judges, {source}")
    return lines


def watched(place: Place, ready: Plan) -> Watch:
    """Looks at what code under test must not write to, from now on; where it may be a stranger's and nothing contains it, at
    other places too."""
    folder = ready.shop.scratch.parent
    judging = (folder / "workloads", Path(ready.shop.argv("base")[-1]).parent)
    alone = environment.mode(place.config.env, os.environ) == "clean" and ready.shop.wall is None
    git = place.repository.common_dir if isinstance(place.repository, Repository) else place.root / ".git"
    others = elsewhere(place.root, git, place.runs_dir, os.environ) if alone else ()
    inputs = {
        (side, package.name): inputs_of(Path(checkout.path), package.of(checkout.side))
        for package in ready.packages.values()
        for side, checkout in ready.checkouts.items()
    }
    return Watch(judging, ready.checkouts.values(), others, ready.shop.scratch, inputs)


# ---------------------------------------------------------------- build


def build_kernels(place: Place, ready: Plan, view: View) -> tuple[Build, ...]:
    """Every package that a cell is to be measured with, on every side."""
    cells = {name: tuple(c for c in ready.survey.cells if c.kernel == name and not c.skip) for name in ready.packages}
    jobs = [
        Job(checkout, package.of(checkout.side), cells[package.name])
        for package in ready.packages.values()
        for checkout in ready.checkouts.values()
        if cells[package.name]
    ]
    slots = max(1, len(os.sched_getaffinity(0)) // 2) if place.device.kind == "cuda" else len(os.sched_getaffinity(0))
    with view.building():
        builds = build.build_all(ready.shop, jobs, slots=slots, rebuild=place.config.rebuild, say=view.build_line)
    for made in builds:
        state = made.failure.reason if made.failure else ("cached" if made.cached else f"built in {made.seconds:.1f} s")
        view.say(f"{made.side} {made.kernel}: {state}", style="red" if made.failure else "")
    _some_side(builds)
    return builds


def _some_side(builds: Sequence[Build]) -> None:
    """Nothing can be measured if no side has any of the packages."""
    if builds and all(b.failure and b.failure.status == "missing" for b in builds):
        names = ", ".join(dict.fromkeys(b.kernel for b in builds))
        where = builds[0].failure.reason if builds[0].failure else ""
        raise AbprofError(
            f"no side has a kernel package {names}: {where}", advice="name its folder in abprof.toml (docs/CONFIG.md)"
        )


# ---------------------------------------------------------------- who takes turns


def lay_ground(place: Place, ready: Plan, builds: tuple[Build, ...], record: Record) -> Ground:
    """Arms of every cell; cells that need no measuring are recorded at once; the head is complete and written."""
    cells, sides = ready.survey.cells, place.sides
    same = _identical_cells(ready, builds)
    rng = random.Random(place.config.seed)
    everything = place.config.all or evidence.same_code(ready.head)
    measured_all_the_same = same if everything else set(rng.sample(sorted(same), min(len(same), _KEPT_AS_CONTROLS)))
    candidates = [c for c in cells if c.kernel and (c.id not in same or c.id in measured_all_the_same)]
    with_control = set() if len(sides) == 1 or place.config.quick else plan.controls(candidates, measured_all_the_same)
    loads = {load.name: load for load in ready.survey.workloads}
    arms = {
        cell.id: plan.arms(
            loads[cell.workload], sides, builds, control=cell.id in with_control, peers=not place.config.no_peers
        )
        for cell in cells
    }
    every = tuple({arm.id: arm for arm in (*record.head.arms, *(arm for row in arms.values() for arm in row))}.values())
    record.start(rerun.same_builds(record.head, builds, place.cache / "builds"), arms=every)
    for cell in cells:
        outcomes = _known(cell, arms[cell.id], ready.survey, same - measured_all_the_same)
        if outcomes and not any(block.cell == cell.id for block in record.blocks):
            record.add(unmeasured(cell, arms[cell.id], outcomes))
    return Ground(
        shop=ready.shop,
        device=place.device,
        run=record.head,
        checkouts=ready.checkouts,
        packages=ready.packages,
        arms=arms,
        timeout=place.config.timeout,
        identical=frozenset(measured_all_the_same),
    )


def _identical_cells(ready: Plan, builds: Sequence[Build]) -> set[str]:
    """Cells whose kernels load the same bytes on every side, by the same toolchain."""
    chains = ready.shop.toolchain
    lies = {
        name: {id: package.of(checkout.side) for id, checkout in ready.checkouts.items()}
        for name, package in ready.packages.items()
    }
    same = {name for name, packages in lies.items() if build.identical(builds, packages, chains)}
    return {cell.id for cell in ready.survey.cells if cell.kernel in same}


def _known(cell: Cell, arms: Sequence[Arm], found: Survey, same: set[str]) -> dict[str, Outcome]:
    """Outcomes that are known without measuring."""
    if cell.id in found.broken:
        failure = found.broken[cell.id]
        return {arm.id: Outcome(status=failure.status, reason=failure.reason, log=failure.log) for arm in arms}
    if cell.skip:
        return {arm.id: Outcome(status="unsupported", reason=cell.skip) for arm in arms}
    if cell.id in same:
        return {arm.id: Outcome(status="identical") for arm in arms if not arm.peer}
    return {}
