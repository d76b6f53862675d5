"""Plan a run: `Plan.of` lays out cells and worker settings, `assign_arms` adds builds and the arms of each cell."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from abprof.builds import (
    Job,
    Watch,
    WorkerFactory,
    WorkerSpec,
    build_packages,
    differences,
    environment,
    identical,
    missing,
)
from abprof.builds import sandbox as contain
from abprof.devices import Device
from abprof.measure import discovery, matrix
from abprof.measure.pool import Foreground, WorkerPool
from abprof.measure.run_context import RunContext
from abprof.records import (
    SCHEMA,
    STANDING_IN,
    SUSTAINED,
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
    power_bound,
)
from abprof.records import messages as wire
from abprof.records.errors import AbprofError
from abprof.records.options import Options
from abprof.system import paths, workload_files
from abprof.system.console import View
from abprof.system.processes import WorkerDied
from abprof.system.trees import remove_tree

_KEPT_AS_CONTROLS = 3  # cells of identical code, drawn at random, that are measured as controls
_MOST_SECONDS = 60.0  # of a build; of a longer one no second build is made
_SLICE_EPOCHS = 6  # most epochs of slices without pauses
_SHOWN = ("CUDA", "TORCH", "TRITON", "OMP", "GOMP", "KMP", "FFA", "CXX")  # prefixes of the variables in run.json


@dataclass(frozen=True)
class Plan:
    """What is measured and how. Nothing in the plan changes once turns begin."""

    factory: WorkerFactory
    device: Device
    run: Run  # the run's header: run.json without results
    cells: tuple[Cell, ...]  # cells of this invocation: a rerun measures only some of the run's cells
    checkouts: Mapping[str, Checkout]  # side id -> its worktree
    packages: Mapping[str, Package]  # by name
    broken: Mapping[str, Failure]  # cell id -> why its workload could not be described
    arms: Mapping[str, tuple[Arm, ...]] = field(default_factory=dict)  # cell id -> the arms that take turns in it
    identical: frozenset[str] = frozenset()  # cells of identical code on all sides that are measured as controls

    @classmethod
    def of(cls, place: RunContext, trees: Sequence[Checkout], logs: Path, view: View, *, dry: bool = False) -> Plan:
        """Lay out the cells that the workloads describe, or take the cells of a continued run. Builds nothing.

        Measures the device's peak rates once in a run, but not if `dry`.
        """
        continued = place.continued
        source, files, digest = _copy_workloads(place, trees, continued.run.workloads_from if continued else "")
        factory = _factory(place, trees, files, logs)
        walled, notes = factory.contained(place.options)
        if factory.forks.plenty and not dry:  # elsewhere they take the cores of the discovery's worker
            if walled.sandbox is None:
                factory.forks.start(factory.argv("base"))
            elif walled.pauses and place.device.kind != "cpu":
                with contextlib.suppress(WorkerDied):  # `judge` says why
                    walled.begin_judge()
        found, chains, ceilings = _discovered(place, factory, digest, dry=dry)
        factory, more = _contained(place, walled, chains, dry=dry)
        notes += more
        if not (continued and continued.part):
            for line in (*place.notes, *notes):
                view.say(line)
            for line in place.workloads_differ(trees, source):
                view.warn(line)
        for name in found.empty:
            view.warn(f"workload {name} has no cell in preset {place.options.preset}")
        head = continued.run if continued else _head(place, factory, found, f"{source} sha256:{digest}")
        sandboxes = dict.fromkeys((head.options.sandbox, _sandbox(factory)))  # "" if any part of the run had no sandbox
        head = msgspec.structs.replace(
            head,
            notes=tuple(dict.fromkeys((*head.notes, *notes))),
            options=msgspec.structs.replace(head.options, sandbox=", ".join(sandboxes) if all(sandboxes) else ""),
            ceilings=ceilings,
            uncertified=place.uncertified(),
            toolchains=head.toolchains or chains,
        )
        kernels = dict.fromkeys(cell.kernel for cell in found.cells if cell.kernel)
        return cls(
            factory=factory,
            device=place.device,
            run=head,
            cells=found.cells,
            checkouts={checkout.side.id: checkout for checkout in trees},
            packages={name: place.file.package(name) for name in kernels},
            broken=found.broken,
        )

    def build(self, side: str, kernel: str) -> Build | None:
        """Return the side's build of the package `kernel`, which may have failed; None: it was not built."""
        return next((b for b in self.run.builds if b.side == side and b.kernel == kernel), None)

    def workload(self, cell: Cell) -> Workload:
        return next(load for load in self.run.workloads if load.name == cell.workload)

    def labelled(self, block: Block) -> Block:
        """Return the block with outcomes `identical` in place of `ok` if all sides run the same code in its cell."""
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

    def pool(self, kernel: str, ids: Sequence[str], epoch: int) -> WorkerPool:
        """Return the package's workers `ids` (sides, "control", "peers") whose build succeeded, not yet started."""
        specs = []
        for id in ids:
            side = self.checkouts["base" if id in STANDING_IN else id]
            made = self.build(id, kernel) or self.build(side.side.id, kernel)
            if made is not None and made.failure is None:
                specs.append(WorkerSpec(id, side, self.packages[kernel].of(side.side), made))
        return WorkerPool(self.factory, specs, epoch)

    def check_packages(self, place: RunContext, builds: Sequence[Build] = ()) -> None:
        """Raise AbprofError if no side has any package. Without `builds`, look into the sides' folders."""
        absent = [(b.kernel, b.failure.reason if b.failure and b.failure.status == "missing" else "") for b in builds]
        absent = absent or [(job.package.name, missing(Path(job.checkout.path), job.package)) for job in self._jobs()]
        if absent and all(reason for _, reason in absent):
            names, package = ", ".join(dict(absent)), place.file.package(absent[0][0])
            where = place.file.at(f"kernels.{package.name}.path") if package.path else ""
            advice = "name its folder in abprof.toml (docs/CONFIG.md)"
            raise AbprofError(f"no side has a kernel package {names}: {absent[0][1]}", where=where, advice=advice)

    def build_kernels(self, place: RunContext, view: View) -> tuple[Build, ...]:
        """Build the package of every cell on every side. Raises AbprofError if no side has any of these packages."""
        gpu, how = place.device.kind == "cuda", {"rebuild": place.options.rebuild, "untrusted": place.options.untrusted}
        builds = build_packages(self.factory, self._jobs(), view, gpu=gpu, **how)
        self.check_packages(place, builds)
        return builds

    def second_builds(self, builds: Sequence[Build], view: View, *, rebuild: bool = False) -> tuple[Build, ...]:
        """Make a second build of base's code for the control, and for each target that shares base's build.

        Return `builds` with these in place. So a comparison of the same code contains what differs between builds,
        such as layout. A build stays shared if it took more than a minute, or if its second build fails.
        """
        made = {(build.side, build.kernel): build for build in builds}
        controls = {cell for cell, arms in self.arms.items() if any(arm.side == "control" for arm in arms)}
        kernels = {cell.kernel for cell in self.cells if cell.id in controls | self.identical}
        jobs = []
        for job in self._jobs():
            base, own = made["base", job.package.name], made[job.id, job.package.name]
            quick = base.failure is None and base.seconds <= _MOST_SECONDS
            if quick and own.key == base.key and base.kernel in kernels:
                jobs.append(dataclasses.replace(job, second="control" if own is base else job.id))
        gpu = self.device.kind == "cuda"
        again = build_packages(self.factory, jobs, view, gpu=gpu, rebuild=rebuild) if jobs else ()
        for build in again:
            same = build.key.startswith(made["base", build.kernel].key)  # not if a build changed its side's files
            if same and not build.failure:
                made[build.side, build.kernel] = build
        return tuple(made.values())

    def with_builds(self, builds: Sequence[Build]) -> Plan:
        """Return the plan with `builds` in place of all earlier builds of these packages."""
        kernels = {build.kernel for build in builds}
        others = [build for build in self.run.builds if build.kernel not in kernels]
        return dataclasses.replace(self, run=msgspec.structs.replace(self.run, builds=(*others, *builds)))

    def _jobs(self) -> list[Job]:
        cells = {name: tuple(c for c in self.cells if c.kernel == name and not c.skip) for name in self.packages}
        return [
            Job(checkout, self.packages[name].of(checkout.side), mine)
            for name, mine in cells.items()
            if mine
            for checkout in self.checkouts.values()
        ]

    def watched(self, place: RunContext) -> Watch:
        """Return a watch on the files that code under test must not change."""
        judging = (self.factory.scratch.with_name("workloads"), Path(self.factory.argv("base")[-1]).parent)
        strict = environment.mode(place.options.env) == "clean" and self.factory.sandbox is None
        trees, packages = self.checkouts.values(), self.packages.values()
        return Watch(judging, trees, self.factory.scratch, packages, strict=strict)

    def broken_workloads(self) -> tuple[Observation, ...]:
        """Return an observation for every side and each workload that could not be described."""
        return tuple(
            Observation(cell=cell, arm=side, status=failure.status, reason=failure.reason, at=failure.at)
            for cell, failure in self.broken.items()
            for side in self.checkouts
        )

    def assign_arms(
        self, place: RunContext, builds: tuple[Build, ...], blocks: Sequence[Block]
    ) -> tuple[Plan, list[Block]]:
        """Return the plan with builds and every cell's arms, and a block for each cell that need not be measured.

        Cells that have earlier `blocks` get no such block. Raises AbprofError if a continued run's build differs.
        """
        folders = {
            name: {id: package.of(checkout.side) for id, checkout in self.checkouts.items()}
            for name, package in self.packages.items()
        }
        alike = {name for name, packages in folders.items() if identical(builds, packages, self.factory.toolchain)}
        same = {cell.id for cell in self.cells if cell.kernel in alike}  # these cells load the same bytes on every side
        measured = same
        if not (place.options.all or self.run.one_code):
            rng = random.Random(place.options.seed)
            measured = set(rng.sample(sorted(same), min(len(same), _KEPT_AS_CONTROLS)))
        candidates = [cell for cell in self.cells if cell.kernel and (cell.id not in same or cell.id in measured)]
        controlled = matrix.controls(candidates, place.sides, measured, quick=place.options.quick)
        arms = {
            cell.id: matrix.arms(
                self.workload(cell),
                place.sides,
                builds,
                control=cell.id in controlled,
                peers=not place.options.no_peers,
            )
            for cell in self.cells
        }
        every = dict.fromkeys((*self.run.arms, *(arm for row in arms.values() for arm in row)))
        known = _same_builds(self.run, builds, place.cache)
        run = msgspec.structs.replace(self.run, builds=known, arms=tuple(every))
        begun = {block.cell for block in blocks}
        skipped = []
        for cell in self.cells:
            outcomes = self._known_outcomes(cell, arms[cell.id], identical=cell.id in same - measured)
            if outcomes and cell.id not in begun:
                skipped.append(Block.unmeasured(cell.id, arms[cell.id], outcomes))
        return dataclasses.replace(self, run=run, arms=arms, identical=frozenset(measured)), skipped

    def _known_outcomes(self, cell: Cell, arms: Sequence[Arm], *, identical: bool) -> dict[str, Outcome]:
        if cell.id in self.broken:
            failure = self.broken[cell.id]
            broken = Outcome(status=failure.status, reason=failure.reason, log=failure.log, at=failure.at)
            return {arm.id: broken for arm in arms}
        if cell.skip:
            return {arm.id: Outcome(status="unsupported", reason=cell.skip) for arm in arms}
        return {arm.id: Outcome(status="identical") for arm in arms if not arm.peer} if identical else {}

    def owed(self, before: Sequence[Block]) -> set[str]:
        """Return the ids of the cells that still need follow-up measurements. `before`: the run's blocks."""
        return {*self.slices_due(before), *self.to_profile(before)}

    def to_profile(self, before: Sequence[Block]) -> dict[str, list[Arm]]:
        """Return cell -> the sides' arms that were timed without a failure. Leaves out cells that are already profiled."""
        turned = timed(before)
        seen = {block.cell for block in before for outcome in block.outcomes.values() if outcome.census is not None}
        found = {}
        for cell in self.cells:
            own = [arm for arm in self.arms.get(cell.id, ()) if arm.under_test]
            arms = [arm for arm in own if turned.get((cell.id, arm.id))]
            if arms and cell.id not in seen:
                found[cell.id] = arms
        return found

    def slices_due(self, before: Sequence[Block]) -> dict[str, tuple[list[Arm], int]]:
        """Return cell -> (its arms, epochs of slices that they still need), for cells at the power limit.

        Failed slices are not tried again. Leaves out controls, cells whose arms do not fit into memory together, and
        cells with fewer than two arms to time. With --regime sustained each epoch has its slices.
        """
        if self.run.options.regime != "auto" or self.run.options.quick:
            return {}
        own: dict[str, list[Block]] = {}
        for block in before:
            own.setdefault(block.cell, []).append(block)
        turned, due = timed(before), {}
        for cell in self.cells:
            blocks = own.get(cell.id, [])
            had = sum(block.metric == SUSTAINED for block in blocks)
            arms = [a for a in self.arms.get(cell.id, ()) if a.side != "control" and turned.get((cell.id, a.id))]
            together = not any(block.alone for block in blocks)
            if len(arms) > 1 and had < _SLICE_EPOCHS and together and power_bound(blocks):
                due[cell.id] = arms, _SLICE_EPOCHS - had
        return due

    def foreground(
        self, build: Build, cell: Cell, arm: Arm, *, warmup: int, runs: int, facts: bool = False
    ) -> Foreground:
        """Return the command of a process that loads `build`, calls `arm` once to compile, then `warmup + runs` times.

        `facts`: whether the process also reports facts of the workload, such as tile sizes.
        """
        side, factory, name = self.checkouts[build.side], self.factory, f"cell-{uuid.uuid4().hex}"
        spec = WorkerSpec(build.side, side, self.packages[cell.kernel].of(side.side), build)
        file, result = factory.scratch / f"{name}.json", factory.scratch / f"{name}.result.json"
        start = factory.start(build.side, factory.mount(spec))
        opened = wire.Open(cell.workload, dict(cell.params), arm.id, arm.variant, arm.peer, seed=self.run.options.seed)
        file.write_bytes(wire.dump(wire.pack(wire.Foreground(start, opened, warmup, runs, str(result), facts))))
        argv = (*factory.argv(build.side), "--cell", str(file))
        return Foreground(argv, factory.worker_env(spec), spec.place / "src", result)


def _copy_workloads(place: RunContext, trees: Sequence[Checkout], recorded: str) -> tuple[Path, dict[str, Path], str]:
    """Copy the run's workloads, or the `recorded` ones, and make empty folders for scratch and temporary files, beside the worktrees.

    Returns the original folder, workload -> copied file, and the SHA-256 of all content.
    """
    folder = Path(trees[0].path).parent  # removed with the worktrees
    for name in ("workloads", "worker", "scratch", "temporary"):
        remove_tree(folder / name)
    source = place.workloads_folder(trees, recorded)
    by = "--cell" if place.options.cell else "--workloads"
    files = workload_files.find(source, place.options.workloads, by)
    own = Path(trees[0].path) if place.judged_by_base else place.root
    root = next((Path(tree.path) for tree in trees if source.is_relative_to(tree.path)), own)
    wrapped = {name: root / name for name in place.file.benchmarks}
    checkout = root if root != place.root else place.repository.path
    digest = workload_files.copy(source, folder / "workloads", wrapped, place.file.at("benchmarks"), checkout)
    for name in ("scratch", "temporary"):
        (folder / name).mkdir()
    return source, {name: folder / "workloads" / file.name for name, file in files.items()}, digest


def _factory(place: RunContext, trees: Sequence[Checkout], files: Mapping[str, Path], logs: Path) -> WorkerFactory:
    ids, scratch = [checkout.side.id for checkout in trees], Path(trees[0].path).parent / "scratch"
    own = place.pythons
    factory = WorkerFactory.of(place.options, place.cache, scratch, place.device.worker, ids, logs, files, own)
    ours = (str(place.cache / name) for name in ("worktrees", "builds", "dists"))
    sources, home = (*place.repository.folders(), *ours), paths.home()
    shared = (str(home / name) for name in (".cache", ".triton", ".local")) if home else ()  # shared by all branches
    imports = 0 if place.file.benchmarks or place.options.quick else factory.imports
    return dataclasses.replace(factory, sources=sources, forbidden=(*sources, *shared), imports=imports)


def _discovered(
    place: RunContext, factory: WorkerFactory, digest: str, *, dry: bool
) -> tuple[discovery.Discovered, dict[str, Toolchain], Ceilings | None]:
    """Return the cells found, each side's toolchain, and the device's peak rates (None: not measured here)."""
    options, kind, continued = place.options, place.device.kind, place.continued
    ceilings = continued.run.ceilings if continued else None
    chains: dict[tuple[str, ...], Toolchain] = {}
    tools = discovery.compilers(factory.env)  # first, because `alone` waits until the fork server has imported torch
    with factory.alone("discovery", forked=True) as worker:
        if continued:
            found = discovery.known(worker, factory, digest, continued.run, continued.cells)
        else:
            found = discovery.Discovered.of(worker, factory, options, kind)
        chains[tuple(factory.argv("base"))] = discovery.toolchain(worker, factory, found.ready, kind, tools)
        if not (ceilings or dry or options.executor):
            ceilings = discovery.ceilings(worker, options.timeout)
        worker.kill()  # an interpreter with torch, or with a device, takes long to end by itself
    for side, argv in factory.workers.items():
        if tuple(argv) not in chains:
            with factory.alone("discovery", side) as worker:
                ready = discovery.start(worker, factory)
                chains[tuple(argv)] = discovery.toolchain(worker, factory, ready, kind, tools)
    return found, {side: chains[tuple(argv)] for side, argv in factory.workers.items()}, ceilings


def _contained(
    place: RunContext, factory: WorkerFactory, chains: Mapping[str, Toolchain], *, dry: bool
) -> tuple[WorkerFactory, tuple[str, ...]]:
    """Return the factory with toolchains, and without a sandbox that does not work; and notes to show."""
    options = place.options
    factory, notes = factory.tried(options)
    if "ncu" in options.probe:
        notes += contain.foreground_notes(factory.sandbox, "what --probe ncu looks at")
    if factory.sandbox is not None or dry:
        factory.forks.close()
    if dry:
        factory.end_judge()
    elif factory.sandbox is None:
        factory.forks.start(factory.argv("base"))
    return dataclasses.replace(factory, toolchain={side: chain.versions for side, chain in chains.items()}), notes


def _head(place: RunContext, factory: WorkerFactory, found: discovery.Discovered, workloads_from: str) -> Run:
    """Return the header of a new run, with all options that a rerun needs to start the same workers."""
    config, kind, folder = place.options, place.device.kind, place.options.workloads_from
    options = msgspec.structs.replace(
        config.resolved(kind, matrix.judge(config.by_timer, kind)),
        python={
            side: config.python[side] if side in place.pythons else factory.argv(side)[0] for side in factory.workers
        },
        env=environment.mode(config.env),
        sandbox=_sandbox(factory),
        workloads_from=folder if folder in {"", *factory.workers} else str(Path(folder).absolute()),
        executor_options=config.executor_options if config.executor else {},
    )
    shown = environment.shared(factory.env, place.device.worker)
    return new_head(
        place,
        options,
        workloads=found.workloads,
        workloads_from=workloads_from,
        cells=found.cells,
        versions=found.ready.versions,
        environment={name: shown[name] for name in sorted(shown) if name.startswith(_SHOWN)},
        withheld=factory.withheld,
        notes=place.notes,
    )


def _sandbox(factory: WorkerFactory) -> str:
    return factory.sandbox.version if factory.sandbox else ""


def new_head(place: RunContext, options: Options, **rest: Any) -> Run:
    """Return the header of a new run: run.json without results. `rest`: fields about the code under test."""
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
        uncertified=place.uncertified(),
        arms=(),
        **rest,
    )


def _same_builds(run: Run, builds: Sequence[Build], cache: Path) -> tuple[Build, ...]:
    """Return the run's builds, with `builds` added or put in place of earlier ones.

    Raises AbprofError if a new build differs from the earlier one in inputs or toolchain.
    """
    before = {(build.side, build.kernel): build for build in run.builds}
    for build in builds:
        old = before.get((build.side, build.kernel))
        if old is not None and old.key.partition("-")[0] != build.key.partition("-")[0]:
            differing = ", ".join(differences(cache, old.key, build.key))
            why = f"other than then: {differing}" if differing else "sources, toolchain or environment differ"
            what = f"the build of {build.kernel} is not the run's ({why})"
            advice = "make it as it was, or start a new run" if differing else "start a new run"
            raise AbprofError(what, where=f"side {build.side}", advice=advice)
    return tuple((before | {(build.side, build.kernel): build for build in builds}).values())


def timed(before: Sequence[Block]) -> dict[tuple[str, str], bool]:
    """Return (cell, arm) -> whether the arm was timed without a failure in every block."""
    ran: dict[tuple[str, str], bool] = {}
    for block in before:
        for arm, outcome in block.outcomes.items() if block.judged and block.metric else ():
            ran[block.cell, arm] = ran.get((block.cell, arm), True) and outcome.status in {"ok", "identical"}
    return ran
