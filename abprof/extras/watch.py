"""`abprof BASE . --watch`: measure one epoch of the working tree against BASE after every save, until ^C.

Writes no run folder.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from abprof import session, store
from abprof import sides as repo
from abprof.builds import in_use
from abprof.measure import Plan, RunContext, epochs, look_around
from abprof.records import Run, names
from abprof.records.errors import AbprofError
from abprof.records.options import Options
from abprof.records.quantities import signed
from abprof.report import sentences
from abprof.report.text import clean
from abprof.system.console import View
from abprof.system.workload_files import content

_QUIET_MS = 300  # pause that ends a save: editors write a file in several steps, a checkout writes many files
_WAKE_MS = 500  # longest wait between checks for signals


def watch(config: Options, view: View, answer: Callable[[list[str]], None]) -> None:
    """Measure the working tree against base now and after every save that changes it, until a KeyboardInterrupt. Calls
    `answer` with the lines of each result. Raises AbprofError before the first result; later errors are warnings."""
    began, before = time.monotonic(), None
    place = look_around(msgspec.structs.replace(config, quick=True), view)
    if len(place.sides) != 2 or place.sides[1].kind != "worktree":
        specs = " ".join(side.spec for side in place.sides)
        raise AbprofError("target must be the working tree", where=f"{specs} --watch", advice="abprof BASE . --watch")
    with (
        tempfile.TemporaryDirectory() as folder,
        session.held(place, f"{place.id}-watch", view, wait=not config.no_wait) as (reserved, trees),
        in_use(place.cache),
    ):
        place = reserved
        saves = _saves(place.root, (place.root / ".git", place.runs_dir))
        next(saves)  # start watching
        logs = Path(folder) / "logs"
        logs.mkdir()
        plan = Plan.of(place, trees, logs, view)
        workloads = content(place.workloads_folder(trees))  # workers use a copy of the workloads
        for number in itertools.count(1):
            try:
                run_id, now = f"{place.id}-watch-{number}", place.sides[1:]  # the working tree as last saved
                with repo.checkouts(place.repository, now, run=run_id, submodules=place.submodules) as (target,):
                    plan = dataclasses.replace(plan, checkouts={**plan.checkouts, "target": target})
                    workloads, last = content(place.workloads_folder((plan.checkouts["base"], target))), workloads
                    if workloads != last:
                        view.warn("the workloads changed: restart --watch to use the new ones")
                    run = _measured(place, plan, number, Path(folder), view)
                answer(_lines(run, before, time.monotonic() - began))
                before = run
            except AbprofError as error:
                if number == 1:
                    raise
                view.warn(error.line)
            began, place = _next_save(place, saves, view)
            plan = dataclasses.replace(plan, run=msgspec.structs.replace(plan.run, sides=place.sides))


def _measured(place: RunContext, plan: Plan, number: int, folder: Path, view: View) -> Run:
    quiet = View(quiet=True)
    record = session.new_record(store.create(folder / "runs", place.id), plan.run, [], quiet)
    builds = plan.build_kernels(place, view if view.verbose else quiet)
    plan = session.start(place, plan, builds, record)
    for item in epochs(plan, record.wanted, first=number, budget=place.options.budget):
        record.add(item)
    return record.judged("complete")


def _next_save(place: RunContext, saves: Iterator[float], view: View) -> tuple[float, RunContext]:
    """Wait for a save that changes the working tree. Return its time, and the run context with the tree as saved."""
    released = {side.ref: (side, ()) for side in place.sides if side.kind == "dist"}
    while True:
        saved = next(saves)
        try:
            (_, now), _ = repo.resolve(place.repository, place.options.specs, kernel_paths=(), known=released)
        except AbprofError as error:
            view.warn(error.line)
            continue
        if now.tree != place.sides[1].tree:  # if equal, the save changed nothing, or a file that git ignores
            now = msgspec.structs.replace(now, requirements=place.sides[1].requirements)
            return saved, dataclasses.replace(place, sides=(place.sides[0], now))


def _saves(root: Path, ignored: Sequence[Path]) -> Iterator[float]:
    """Yield the time (time.monotonic()) when watching begins, then after each save under `root`. Leaves out saves in
    the folders `ignored`. Raises AbprofError if watchfiles is missing or `root` cannot be watched."""
    try:
        import watchfiles
    except ImportError:
        raise AbprofError("watchfiles is missing", where="--watch", advice="pip install 'abprof[watch]'") from None
    watching = False
    aside = tuple(os.path.join(path, "") for path in ignored)  # noqa: PTH118 - with a slash at its end
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
        advice = "raise fs.inotify.max_user_watches"
        raise AbprofError(f"changes here cannot be watched: {error}", where=str(root), advice=advice) from error


def _lines(run: Run, before: Run | None, seconds: float) -> list[str]:
    labels, was = names.short_labels(run.cells), _changes(before) if before else {}
    found = []
    for (cell, arm), change in _changes(run).items():
        text = f"{clean(labels[cell])}{f' {arm}' if ':' in arm else ''}: {change}"
        found.append(f"{text} (before: {was[cell, arm]})" if (cell, arm) in was else text)
    since = "the save" if before else "the start"
    return [*(found or ["nothing was measured"]), f"answered {seconds:.1f} s after {since}"]


def _changes(run: Run) -> dict[tuple[str, str], str]:
    """Return (cell, arm) -> its change as text (`3.2 % slower, one epoch: worth confirming`), or why there is none."""
    whys = {(seen.cell, seen.arm): f": {clean(seen.reason)}" for seen in run.observations if seen.reason}
    found = {}
    for row in run.comparisons:
        if not row.with_peer:
            why = whys.get((row.cell, row.to), "") if row.verdict == "broken" else ""
            change = row.verdict if row.pct is None else signed(row.pct)
            found[row.cell, row.to] = f"{change}, {sentences.reasons(row)}{why if row.pct is None else ''}"
    return found
