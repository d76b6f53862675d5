"""Measure, answer, wait for a save: until ^C, which puts everything away."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from abprof import session
from abprof import sides as repo
from abprof.builds import in_use
from abprof.extras.watch.saves import Saves
from abprof.extras.watch.warm import Warm
from abprof.measure import Plan, RunContext, epochs, look_around, make_plan
from abprof.measure.discovery import content, workloads_folder
from abprof.measure.plan import build_kernels
from abprof.measure.pool import Prefork
from abprof.measure.resources import alone, signals, worktrees
from abprof.records import Checkout, Run
from abprof.records.errors import AbprofError
from abprof.records.options import Options
from abprof.store import runfolder
from abprof.system import processes as proc
from abprof.system.console import View


@dataclass(frozen=True)
class Answer:
    """What one save came to, and what was so before it."""

    run: Run
    before: Run | None
    seconds: float  # from the save, or the start


def watch(config: Options, view: View, answer: Callable[[Answer], None]) -> None:
    """Measure the working tree against base at once, and again at every save that changes it. Ends by KeyboardInterrupt.

    Raises AbprofError for what the user can mend before the first measurement; what goes wrong with a save is that save's.
    """
    began = time.monotonic()
    config = msgspec.structs.replace(config, quick=True)
    place = look_around(config, view)
    _watchable(place)
    git = place.root / ".git"
    with (
        signals(),
        proc.no_orphans(),
        tempfile.TemporaryDirectory() as folder,
        worktrees(place, f"{place.id}-watch", view) as trees,
        alone(place, view, wait=not config.no_wait),
        in_use(place.cache),
        Saves(place.root, (git, place.runs_dir)) as saves,
    ):
        logs = Path(folder) / "logs"
        logs.mkdir()
        plan = make_plan(place, trees, logs, view)
        with Warm(plan.factory, place.device) as warm:
            _answers(_Loop(place, plan, warm, Path(folder), view), saves, began, answer)


def _watchable(place: RunContext) -> None:
    """Raises AbprofError where there is nothing that a save could change."""
    if len(place.sides) != 2 or place.sides[1].kind != "worktree":
        specs = " ".join(side.spec for side in place.sides)
        what = "only the working tree changes with a save"
        raise AbprofError(what, where=f"{specs} --watch", advice="abprof BASE . --watch")


def _answers(loop: _Loop, saves: Saves, began: float, answer: Callable[[Answer], None]) -> None:
    before = None
    while True:
        run = loop.measured()
        if run is not None:
            answer(Answer(run, before, time.monotonic() - began))
            before = run
        began = saves.wait()
        while not loop.moved_on():  # saved as it was, or a file that git ignores
            began = saves.wait()


class _Loop:
    """The working tree as it was last seen, and how it is measured."""

    def __init__(self, place: RunContext, plan: Plan, warm: Prefork, folder: Path, view: View) -> None:
        self._place, self._plan, self._warm, self._folder, self._view = place, plan, warm, folder, view
        self._number = 0
        self._first = True
        self._judge = self._workloads(plan.checkouts["target"])  # what the workers have: a copy, made at the beginning

    def moved_on(self) -> bool:
        """Whether the working tree is another now."""
        try:
            released = {side.spec: (side, ()) for side in self._place.sides if side.kind == "dist"}
            specs = self._place.options.specs
            (_, target), _ = repo.resolve(self._place.repository, specs, kernel_paths=(), known=released)
        except AbprofError as error:
            self._view.warn(error.line)
            return False
        if target.tree == self._place.sides[1].tree:
            return False
        sides = (self._place.sides[0], target)
        self._place = dataclasses.replace(self._place, sides=sides)
        head = msgspec.structs.replace(self._plan.run, sides=sides)
        self._plan = dataclasses.replace(self._plan, run=head)
        self._first = False
        return True

    def measured(self) -> Run | None:
        """One epoch of it, judged; None where it could not be measured, which was said."""
        self._number += 1
        if self._first:
            return self._run(self._plan)
        run, place = f"{self._place.id}-watch-{self._number}", self._place
        try:
            with repo.checkouts(place.repository, place.sides[1:], run=run, submodules=place.submodules) as (tree,):
                return self._run(self._with(tree))
        except AbprofError as error:
            self._view.warn(error.line)
            return None

    def _workloads(self, target: Checkout) -> str:
        return content(workloads_folder(self._place, (self._plan.checkouts["base"], target)))

    def _with(self, tree: Checkout) -> Plan:
        if (now := self._workloads(tree)) != self._judge:
            self._judge = now
            self._view.warn("the workloads changed; those of the beginning still judge: end this and start it again")
        return dataclasses.replace(self._plan, checkouts={**self._plan.checkouts, "target": tree})

    def _run(self, plan: Plan) -> Run:
        quiet = View(quiet=True)
        folder = runfolder.create(self._folder / "runs", self._place.id)
        record = session.new_record(folder, plan.run, [], quiet)
        builds = build_kernels(self._place, plan, self._view if self._view.verbose else quiet)
        plan = session.start(self._place, plan, builds, record)
        budget = self._place.options.budget
        rows = epochs(plan, record.wanted, first=self._number, done=0, budget=budget, prefork=self._warm)
        for item in rows:
            record.add(item)
        return record.judged("complete")
