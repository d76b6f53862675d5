"""The plan of a run: what is measured, and with what. `make_plan` asks the workloads; `assign_arms` adds arms once builds are known."""

from __future__ import annotations

import dataclasses
import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from abprof.builds import Job, Watch, WorkerFactory, build_packages, environment, identical, missing, sandbox
from abprof.devices import Device
from abprof.measure import continued as earlier
from abprof.measure import discovery, matrix
from abprof.measure.pool import WorkerSpec
from abprof.measure.run_context import RunContext, forbidden, sources, toolchain
from abprof.records import (
    SCHEMA,
    STANDING_IN,
    Arm,
    Block,
    Build,
    Ceilings,
    Cell,
    Checkout,
    Failure,
    Observation,
    Outcome,
    Package,
    Run,
    Toolchain,
    Workload,
)
from abprof.records import messages as wire
from abprof.records.errors import AbprofError
from abprof.records.options import Options
from abprof.sides import Repository
from abprof.system.console import View
from abprof.system.processes import Worker
from abprof.system.trees import remove_tree

_KEPT_AS_CONTROLS = 3  # cells of identical code that are measured all the same, at random
_SHOWN = ("CUDA", "TORCH", "TRITON", "OMP", "GOMP", "KMP", "FFA", "CXX")  # prefixes of variables that run.json keeps


@dataclass(frozen=True)
class Plan:
    """Everything that is settled before the first turn."""

    factory: WorkerFactory
    device: Device
    run: Run  # the head: settings, sides, all cells, workloads, builds
    cells: tuple[Cell, ...]  # those of this invocation: a rerun measures some of the run's
    checkouts: Mapping[str, Checkout]  # side id -> files
    packages: Mapping[str, Package]
    broken: Mapping[str, Failure]  # cell id -> why its workload could not be asked
    arms: Mapping[str, tuple[Arm, ...]] = field(default_factory=dict)  # cell id -> who takes turns in it
    identical: frozenset[str] = frozenset()  # cells of identical code on all sides that are measured as controls

    def build(self, side: str, kernel: str) -> Build | None:
        """This side's build of a package, failed or not."""
        return next((b for b in self.run.builds if b.side == side and b.kernel == kernel), None)

    def workload(self, cell: Cell) -> Workload:
        """The workload of a cell."""
        return next(load for load in self.run.workloads if load.name == cell.workload)

    def labelled(self, block: Block) -> Block:
        """The block with `identical` for the sides' arms of a cell of identical code: it judges the instrument."""
        if block.cell not in self.identical:
            return block
        own = {arm.id for arm in self.arms[block.cell] if not arm.peer}
        outcomes = {
            id: msgspec.structs.replace(outcome, status="identical")
            if id in own and outcome.status == "ok"
            else outcome
            for id, outcome in block.outcomes.items()
        }
        return msgspec.structs.replace(block, outcomes=outcomes)

    def specs(self, kernel: str, ids: Sequence[str]) -> list[WorkerSpec]:
        """The workers of a package, of those sides (or "control", "peers") that have a whole build of it."""
        found = []
        for id in ids:
            side = self.checkouts["base" if id in STANDING_IN else id]
            made = self.build(side.side.id, kernel)
            if made is not None and made.failure is None:
                found.append(WorkerSpec(id, side, self.packages[kernel].of(side.side), made))
        return found


@dataclass(frozen=True)
class Continued:
    """A run to go on with."""

    run: Run
    cells: tuple[Cell, ...]  # those to measure
    part: bool = False  # a shard: notes and warnings were shown where the run was begun


def make_plan(
    place: RunContext,
    trees: Sequence[Checkout],
    logs: Path,
    view: View,
    continued: Continued | None = None,
    *,
    dry: bool = False,
) -> Plan:
    """Ask the workloads what they are and lay out the cells, or take the cells of a continued run.

    Measures the device's ceilings once in a run, but not if `dry`. Raises AbprofError.
    """
    config, device, before = place.options, place.device, continued.run if continued else None
    folder = Path(trees[0].path).parent  # this run's own: what is put here goes with the worktrees
    source, files, digest = _lay_out(place, trees, before.workloads_from if before else "")
    ids = [checkout.side.id for checkout in trees]
    factory = WorkerFactory.of(config, place.cache, folder / "scratch", device.worker, ids, logs)
    factory.forks.start(factory.argv("base"), at_once=not dry)
    found, installed, best = _surveyed(factory.alone("survey", forked=True), files, digest, place, continued, dry=dry)
    factory, notes = factory.contained(config)
    if "ncu" in config.probe:
        notes += sandbox.foreground_notes(factory.sandbox, "what --probe ncu looks at")
    chains = _toolchains(factory, found.ready, installed, device.kind)
    if config.by_timer == "cupti" and device.kind != "cpu":
        _require_cupti(config.asked_by("--timer"), factory.workers, chains)
    if factory.sandbox is not None or dry:
        factory.forks.close()
    else:
        factory.forks.start(factory.argv("base"))
    factory = dataclasses.replace(
        factory,
        forbidden=forbidden(place),
        sources=sources(place),
        workloads={name: str(file) for name, file in files.items()},
        toolchain={side: chain.versions for side, chain in chains.items()},
    )
    if not (continued and continued.part):
        for line in (*place.notes, *notes):
            view.say(line)
        for line in discovery.workloads_differ(place, trees, source):
            view.warn(line)
    for name in found.empty:
        view.warn(f"workload {name} has no cell in preset {config.preset}")
    options = _stored(place, factory)
    shown = environment.shared(factory.env, device.worker)
    head = before or new_head(
        place,
        options,
        workloads=found.workloads,
        workloads_from=f"{source} sha256:{digest}",
        arms=(),
        cells=found.cells,
        versions=found.ready.versions,
        environment={name: shown[name] for name in sorted(shown) if name.startswith(_SHOWN)},
        withheld=factory.withheld,
        notes=place.notes,
    )
    contained = dict.fromkeys((head.options.sandbox, options.sandbox))  # a continued run was if all its parts were
    head = msgspec.structs.replace(
        head,
        notes=tuple(dict.fromkeys((*head.notes, *notes))),
        options=msgspec.structs.replace(head.options, sandbox=", ".join(contained) if all(contained) else ""),
        ceilings=best,
        toolchains=head.toolchains or chains,
    )
    kernels = dict.fromkeys(cell.kernel for cell in found.cells if cell.kernel)
    return Plan(
        factory=factory,
        device=device,
        run=head,
        cells=found.cells,
        checkouts={checkout.side.id: checkout for checkout in trees},
        packages={name: place.file.package(name) for name in kernels},
        broken=found.broken,
    )


def _surveyed(
    worker: Worker, files: Mapping[str, Path], digest: str, place: RunContext, continued: Continued | None, *, dry: bool
) -> tuple[discovery.Survey, dict[str, str], Ceilings | None]:
    """The workloads' cells, the packages of base's interpreter, and the device's ceilings. Stops the worker."""
    config, device = place.options, place.device
    try:
        if continued:
            run, cells = continued.run, continued.cells
            found = discovery.known(worker, files, digest, run, cells, device=device.worker, timeout=config.timeout)
        else:
            kind = device.kind
            found = discovery.survey(worker, files, config, device=device.worker, kind=kind, timeout=config.timeout)
        installed = discovery.packages(worker, config.timeout)
        best = continued.run.ceilings if continued else None
        best = best or (None if dry or config.executor else discovery.ceilings(worker, config.timeout))
    finally:
        worker.stop()
    return found, installed, best


def new_head(place: RunContext, options: Options, **rest: Any) -> Run:
    """The head of a new run. `rest`: what is found out about its code."""
    return Run(
        schema=SCHEMA,
        id=place.id,
        status="running",
        began=datetime.now(UTC).isoformat(timespec="seconds"),
        options=options,
        sides=place.sides,
        waivers=place.waivers,
        night=place.options.night,
        machine=place.device.machine(),
        **rest,
    )


def assign_arms(
    place: RunContext, plan: Plan, builds: tuple[Build, ...], blocks: Sequence[Block]
) -> tuple[Plan, list[Block]]:
    """The plan with its builds and the arms of every cell, and a block for each cell that needs no measuring.

    `blocks`: those of earlier invocations. Raises AbprofError if a build is not the continued run's.
    """
    folders = {
        name: {id: package.of(checkout.side) for id, checkout in plan.checkouts.items()}
        for name, package in plan.packages.items()
    }
    alike = {name for name, packages in folders.items() if identical(builds, packages, plan.factory.toolchain)}
    same = {cell.id for cell in plan.cells if cell.kernel in alike}  # load the same bytes on every side
    measured = same
    one_code = len(plan.run.sides) > 1 and len({side.tree for side in plan.run.sides}) == 1
    if not (place.options.all or one_code):
        rng = random.Random(place.options.seed)
        measured = set(rng.sample(sorted(same), min(len(same), _KEPT_AS_CONTROLS)))
    candidates = [cell for cell in plan.cells if cell.kernel and (cell.id not in same or cell.id in measured)]
    controlled = matrix.controls(candidates, place.sides, measured, quick=place.options.quick)
    arms = {
        cell.id: matrix.arms(
            plan.workload(cell), place.sides, builds, control=cell.id in controlled, peers=not place.options.no_peers
        )
        for cell in plan.cells
    }
    every = dict.fromkeys((*plan.run.arms, *(arm for row in arms.values() for arm in row)))
    known = earlier.same_builds(plan.run, builds, place.cache)
    run = msgspec.structs.replace(plan.run, builds=known, arms=tuple(every))
    begun = {block.cell for block in blocks}
    skipped = []
    for cell in plan.cells:
        outcomes = _known_outcomes(plan, cell, arms[cell.id], identical=cell.id in same - measured)
        if outcomes and cell.id not in begun:
            skipped.append(unmeasured(cell, arms[cell.id], outcomes))
    return dataclasses.replace(plan, run=run, arms=arms, identical=frozenset(measured)), skipped


def unmeasured(cell: Cell, arms: Sequence[Arm], outcomes: Mapping[str, Outcome]) -> Block:
    """A block without rounds: what is known of a cell that is not measured (identical code, a broken workload)."""
    return Block(
        epoch=0,
        cell=cell.id,
        metric="",
        timer="",
        calls=0,
        rule="not measured",
        arms=tuple(arm.id for arm in arms),
        began=time.time(),
        seconds=0.0,
        rounds=(),
        outcomes=dict(outcomes),
    )


def _known_outcomes(plan: Plan, cell: Cell, arms: Sequence[Arm], *, identical: bool) -> dict[str, Outcome]:
    if cell.id in plan.broken:
        failure = plan.broken[cell.id]
        broken = Outcome(status=failure.status, reason=failure.reason, log=failure.log, at=failure.at)
        return {arm.id: broken for arm in arms}
    if cell.skip:
        return {arm.id: Outcome(status="unsupported", reason=cell.skip) for arm in arms}
    return {arm.id: Outcome(status="identical") for arm in arms if not arm.peer} if identical else {}


def broken_workloads(plan: Plan) -> tuple[Observation, ...]:
    """What is known of workloads that could not be asked, on every side."""
    return tuple(
        Observation(cell=cell, arm=side, status=failure.status, reason=failure.reason, at=failure.at)
        for cell, failure in plan.broken.items()
        for side in plan.checkouts
    )


def watched(place: RunContext, plan: Plan) -> Watch:
    """Tamper detection from now on: files that code under test must not write to.

    If that code may be a stranger's and no sandbox contains it, places outside the run are watched too.
    """
    folder = plan.factory.scratch.parent
    judging = (folder / "workloads", Path(plan.factory.argv("base")[-1]).parent)
    uncontained = environment.mode(place.options.env, os.environ) == "clean" and plan.factory.sandbox is None
    git = place.repository.common_dir if isinstance(place.repository, Repository) else place.root / ".git"
    outside = (place.root, git, place.runs_dir) if uncontained else None
    return Watch(judging, plan.checkouts.values(), outside, plan.factory.scratch, plan.packages.values())


def _lay_out(place: RunContext, trees: Sequence[Checkout], recorded: str) -> tuple[Path, dict[str, Path], str]:
    """Copy the workloads (`recorded`: those of a continued run) beside the worktrees, with empty folders for workers.

    Returns where they are from, name -> copied file, and their digest. Raises AbprofError.
    """
    folder = Path(trees[0].path).parent
    for name in ("workloads", "scratch"):
        remove_tree(folder / name)
    source = discovery.workloads_folder(place, trees, recorded)
    by = "--cell" if place.options.cell else "--workloads"
    files = discovery.find_workloads(source, place.options.workloads, by)
    root = next((Path(tree.path) for tree in trees if source.is_relative_to(tree.path)), place.root)
    wrapped = {name: root / name for name in place.file.benchmarks}
    digest = discovery.copy_workloads(source, folder / "workloads", wrapped, place.file.at("benchmarks"))
    (folder / "scratch").mkdir()
    return source, {name: folder / "workloads" / file.name for name, file in files.items()}, digest


def _toolchains(factory: WorkerFactory, base: wire.Ready, installed: dict[str, str], kind: str) -> dict[str, Toolchain]:
    """Side -> toolchain. `base` and `installed`: what base's worker answered; each other interpreter is asked once."""
    found = {tuple(factory.argv("base")): (base, installed)}
    for side, argv in factory.workers.items():
        if tuple(argv) not in found:
            worker = dataclasses.replace(factory, sandbox=None).alone("survey", side)
            found[tuple(argv)] = discovery.who_is(worker, factory.device, factory.timeout)
    chains = {
        argv: Toolchain(versions=toolchain(ready.versions, ready.facts, kind, factory.env), packages=packages)
        for argv, (ready, packages) in found.items()
    }
    return {side: chains[tuple(argv)] for side, argv in factory.workers.items()}


def _require_cupti(where: str, workers: Mapping[str, Sequence[str]], chains: Mapping[str, Toolchain]) -> None:
    for side, chain in chains.items():
        packages = {name.lower().replace("_", "-") for name in chain.packages}
        if packages and "cupti-python" not in packages:
            advice = f"{workers[side][0]} -m pip install cupti-python (abprof's extra: pip install 'abprof[cupti]')"
            raise AbprofError(f"cupti-python is not installed for {side}", where=where, advice=advice)


def _stored(place: RunContext, factory: WorkerFactory) -> Options:
    """The options as run.json has them: with everything that a rerun needs to set up its workers alike."""
    config, folder = place.options, place.options.workloads_from
    return msgspec.structs.replace(
        config.resolved(place.device.kind, matrix.judge(config.by_timer, place.device.kind)),
        python={side: argv[0] for side, argv in factory.workers.items()},
        env=environment.mode(config.env, os.environ),
        sandbox=factory.sandbox.version if factory.sandbox else "",
        workloads_from=folder if folder in {"", *factory.workers} else str(Path(folder).absolute()),
        executor_options=config.executor_options if config.executor else {},
    )


# ---------------------------------------------------------------- builds


def build_kernels(place: RunContext, plan: Plan, view: View) -> tuple[Build, ...]:
    """Build every package that a cell is measured with, on every side. Raises AbprofError if no side has any."""
    gpu, rebuild = place.device.kind == "cuda", place.options.rebuild
    builds = build_packages(plan.factory, _jobs(plan), view, gpu=gpu, rebuild=rebuild)
    if builds and all(made.failure is not None and made.failure.status == "missing" for made in builds):
        raise _on_no_side(
            place, [made.kernel for made in builds], builds[0].failure.reason if builds[0].failure else ""
        )
    return builds


def check_packages(place: RunContext, plan: Plan) -> None:
    """Raise AbprofError if no side has any of the packages, as far as files tell."""
    jobs = _jobs(plan)
    reasons = [missing(Path(job.checkout.path), job.package) for job in jobs]
    if jobs and all(reasons):
        raise _on_no_side(place, [job.package.name for job in jobs], reasons[0])


def _jobs(plan: Plan) -> list[Job]:
    """A package's sides follow each other."""
    cells = {name: tuple(c for c in plan.cells if c.kernel == name and not c.skip) for name in plan.packages}
    return [
        Job(checkout, plan.packages[name].of(checkout.side), mine)
        for name, mine in cells.items()
        if mine
        for checkout in plan.checkouts.values()
    ]


def _on_no_side(place: RunContext, kernels: Sequence[str], reason: str) -> AbprofError:
    package = place.file.package(kernels[0])
    names = ", ".join(dict.fromkeys(kernels))
    where = place.file.at(f"kernels.{package.name}.path") if package.path else ""
    advice = "name its folder in abprof.toml (docs/CONFIG.md)"
    return AbprofError(f"no side has a kernel package {names}: {reason}", where=where, advice=advice)
