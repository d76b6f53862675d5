"""From a plan and its builds to a ground that can be measured on: who takes turns in each cell, and what is known already."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence, Set

from abprof.builds import build
from abprof.measure import plan, timers
from abprof.measure import resume as rerun
from abprof.measure.discovery import Survey
from abprof.measure.epochs import Ground, unmeasured
from abprof.measure.prepare import Plan
from abprof.measure.run_context import Place
from abprof.records import Arm, Build, Cell, Outcome
from abprof.store.record import Record
from abprof.verdict.cells import same_code

_KEPT_AS_CONTROLS = 3  # identical-code cells that are measured all the same, at random


def lay_ground(place: Place, ready: Plan, builds: tuple[Build, ...], record: Record) -> Ground:
    """Arms of every cell; cells that need no measuring are recorded at once; the head is complete and written."""
    cells = ready.survey.cells
    same = identical_cells(ready, builds)
    anyway = measured_all_the_same(place, ready, same)
    candidates = [c for c in cells if c.kernel and (c.id not in same or c.id in anyway)]
    controlled = plan.controls(candidates, anyway) if len(place.sides) > 1 and not place.options.quick else set()
    arms = {cell.id: arms_of(place, ready, builds, cell, controlled) for cell in cells}
    every = {arm.id: arm for arm in (*record.head.arms, *(arm for row in arms.values() for arm in row))}
    record.start(rerun.same_builds(record.head, builds, place.cache / "builds"), arms=tuple(every.values()))
    for cell in cells:
        outcomes = _known(cell, arms[cell.id], ready.survey, same - anyway)
        if outcomes and not any(block.cell == cell.id for block in record.blocks):
            record.add(unmeasured(cell, arms[cell.id], outcomes))
    return Ground(
        shop=ready.shop,
        device=place.device,
        run=record.head,
        checkouts=ready.checkouts,
        packages=ready.packages,
        arms=arms,
        timeout=place.options.timeout,
        timers=timers.told(record.blocks),
        identical=frozenset(anyway),
    )


def arms_of(
    place: Place, ready: Plan, builds: Sequence[Build], cell: Cell, controlled: Collection[str]
) -> tuple[Arm, ...]:
    """Who takes turns in a cell, by the builds that are known."""
    load = next(load for load in ready.survey.workloads if load.name == cell.workload)
    control, peers = cell.id in controlled, not place.options.no_peers
    return plan.arms(load, place.sides, builds, control=control, peers=peers)


def measured_all_the_same(place: Place, ready: Plan, same: set[str]) -> set[str]:
    """Of the cells of identical code those that are measured: a few as controls, or all where that is what was asked."""
    if place.options.all or same_code(ready.head):
        return same
    rng = random.Random(place.options.seed)
    return set(rng.sample(sorted(same), min(len(same), _KEPT_AS_CONTROLS)))


def identical_cells(ready: Plan, builds: Sequence[Build]) -> set[str]:
    """Cells whose kernels load the same bytes on every side, by the same toolchain."""
    chains = ready.shop.toolchain
    lies = {
        name: {id: package.of(checkout.side) for id, checkout in ready.checkouts.items()}
        for name, package in ready.packages.items()
    }
    same = {name for name, packages in lies.items() if build.identical(builds, packages, chains)}
    return {cell.id for cell in ready.survey.cells if cell.kernel in same}


def _known(cell: Cell, arms: Sequence[Arm], found: Survey, same: Set[str]) -> dict[str, Outcome]:
    """Outcomes that are known without measuring."""
    if cell.id in found.broken:
        failure = found.broken[cell.id]
        return {
            arm.id: Outcome(status=failure.status, reason=failure.reason, log=failure.log, at=failure.at)
            for arm in arms
        }
    if cell.skip:
        return {arm.id: Outcome(status="unsupported", reason=cell.skip) for arm in arms}
    if cell.id in same:
        return {arm.id: Outcome(status="identical") for arm in arms if not arm.peer}
    return {}
