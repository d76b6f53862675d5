"""Measure, answer, wait for a save, until ^C. The only place of watchfiles."""

from __future__ import annotations

import dataclasses
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from abprof import session
from abprof import sides as repo
from abprof.builds import in_use
from abprof.measure import Plan, RunContext, epochs, look_around, make_plan
from abprof.measure.discovery import content, workloads_folder
from abprof.measure.plan import build_kernels
from abprof.measure.run_context import alone, signals, worktrees
from abprof.records import Checkout, Comparison, Run, names
from abprof.records.errors import AbprofError
from abprof.records.options import Options
from abprof.report import sentences
from abprof.report.text import clean, signed
from abprof.store import runfolder
from abprof.system import processes as proc
from abprof.system.console import View

_QUIET_MS = 300  # without a further write: an editor writes a file in several steps, a checkout many files
_WAKE_MS = 500  # longest wait before signals are looked at


@dataclass(frozen=True)
class Answer:
    """The judged run of one save, and that of the save before."""

    run: Run
    before: Run | None
    seconds: float  # from the save, or the start


def watch(config: Options, view: View, answer: Callable[[Answer], None]) -> None:
    """Measure the working tree against base at once, and again at every save that changes it. Ends by KeyboardInterrupt.

    Raises AbprofError before the first measurement; after a save an error is logged and the next save awaited.
    """
    began = time.monotonic()
    config = msgspec.structs.replace(config, quick=True)
    place = look_around(config, view)
    _watchable(place)
    with (
        signals(),
        proc.no_orphans(),
        tempfile.TemporaryDirectory() as folder,
        worktrees(place, f"{place.id}-watch", view) as trees,
        alone(place, view, wait=not config.no_wait),
        in_use(place.cache),
    ):
        saves = _saves(place.root, (place.root / ".git", place.runs_dir))
        next(saves)  # watch from here on
        logs = Path(folder) / "logs"
        logs.mkdir()
        plan = make_plan(place, trees, logs, view)
        _answers(_Loop(place, plan, Path(folder), view), saves, began, answer)


def _watchable(place: RunContext) -> None:
    """Raises AbprofError where there is nothing that a save could change."""
    if len(place.sides) != 2 or place.sides[1].kind != "worktree":
        specs = " ".join(side.spec for side in place.sides)
        what = "only the working tree changes with a save"
        raise AbprofError(what, where=f"{specs} --watch", advice="abprof BASE . --watch")


def _answers(loop: _Loop, saves: Iterator[float], began: float, answer: Callable[[Answer], None]) -> None:
    before = None
    while True:
        run = loop.measured()
        if run is not None:
            answer(Answer(run, before, time.monotonic() - began))
            before = run
        began = next(saves)
        while not loop.moved_on():  # saved as it was, or a file that git ignores
            began = next(saves)


class _Loop:
    """The working tree as it was last seen, and its plan."""

    def __init__(self, place: RunContext, plan: Plan, folder: Path, view: View) -> None:
        self._place, self._plan, self._folder, self._view = place, plan, folder, view
        self._number = 0
        self._first = True
        self._judge = self._workloads(plan.checkouts["target"])  # what the workers have: a copy, made at the beginning

    def moved_on(self) -> bool:
        """Whether the working tree has changed."""
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
        """One judged epoch; None on failure (already logged)."""
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
        rows = epochs(plan, record.wanted, first=self._number, done=0, budget=budget)
        for item in rows:
            record.add(item)
        return record.judged("complete")


def _saves(root: Path, beside: Sequence[Path]) -> Iterator[float]:
    """The time of each save under `root` (time.monotonic()), once nothing more is written for a moment; first, when watching begins.

    Changes under `beside` are no saves. Raises AbprofError without watchfiles, or where the system cannot watch.
    """
    try:
        import watchfiles
    except ImportError:
        advice = "pip install 'abprof[watch]'"
        raise AbprofError("needs watchfiles, which is not installed", where="--watch", advice=advice) from None
    watching = False
    aside = tuple(os.path.join(path, "") for path in beside)  # noqa: PTH118 - with a slash at its end
    try:
        for changes in watchfiles.watch(
            root,
            watch_filter=lambda _, path: not path.startswith(aside),
            debounce=10 * _QUIET_MS,
            step=_QUIET_MS,
            rust_timeout=_WAKE_MS,
            yield_on_timeout=True,
        ):
            if changes or not watching:
                watching = True
                yield time.monotonic()
    except OSError as error:
        what, advice = f"cannot be watched: {error}", "raise fs.inotify.max_user_watches"
        raise AbprofError(what, where=str(root), advice=advice) from error


# ---------------------------------------------------------------- the answer as text


def lines(run: Run, before: Run | None, seconds: float) -> list[str]:
    """A line for each cell: its change in one epoch, and before the save; then how long the answer took."""
    labels, was = names.short_labels(run.cells), _rows(before)
    found = []
    for key, row in _rows(run).items():
        text = f"{clean(labels[row.cell])}{f' {row.to}' if ':' in row.to else ''}: {_change_text(run, row)}"
        found.append(f"{text} (before: {_change_text(before, was[key])})" if before and key in was else text)
    return [
        *(found or ["nothing was measured"]),
        f"answered {seconds:.1f} s after {'the save' if before else 'the start'}",
    ]


def _rows(run: Run | None) -> dict[tuple[str, str], Comparison]:
    rows = run.comparisons if run else ()
    return {(row.cell, row.to): row for row in rows if not row.with_peer}


def _change_text(run: Run, row: Comparison) -> str:
    """`3.2 % slower, one epoch: worth confirming`; what failed with its first line."""
    if row.pct is not None:
        return f"{signed(row.pct)}, {sentences.reasons(row)}"
    seen = next((one for one in run.observations if (one.cell, one.arm) == (row.cell, row.to) and one.reason), None)
    why = f": {clean(seen.reason)}" if seen and row.verdict == "broken" else ""
    return f"{row.verdict}, {sentences.reasons(row)}{why}"
