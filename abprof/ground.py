"""From a plan and its builds to a ground that can be measured on: who takes turns in each cell, and what is known already."""

from __future__ import annotations

import random
from collections.abc import Sequence

from abprof import build, gathering, plan, rerun
from abprof.measure import Ground, unmeasured
from abprof.model import Arm, Build, Cell, Outcome
from abprof.place import Place
from abprof.prepare import Plan
from abprof.record import Record
from abprof.survey import Survey

_KEPT_AS_CONTROLS = 3  # identical-code cells that are measured all the same, at random


def lay_ground(place: Place, ready: Plan, builds: tuple[Build, ...], record: Record) -> Ground:
    """Arms of every cell; cells that need no measuring are recorded at once; the head is complete and written."""
    cells, sides = ready.survey.cells, place.sides
    same = _identical_cells(ready, builds)
    rng = random.Random(place.config.seed)
    everything = place.config.all or gathering.same_code(ready.head)
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
