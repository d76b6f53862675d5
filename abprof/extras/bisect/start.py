"""The start of a bisection: check both ends, find the cells and the commits between, and write the first bisect.json."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from abprof import session
from abprof.builds import keys
from abprof.extras.bisect import steps
from abprof.extras.bisect.report import weaker
from abprof.extras.bisect.search import halvings
from abprof.extras.bisect.steps import Bisection, name
from abprof.measure import RunContext, continued, look_around, make_plan
from abprof.measure import resources as holding
from abprof.measure.commands import NAME as COMMAND
from abprof.measure.commands import prepare
from abprof.measure.discovery import copy_workloads
from abprof.measure.estimate import epoch_seconds, span
from abprof.measure.matrix import id_parts
from abprof.records import Arm, Checkout, Run, Side, names
from abprof.records.errors import AbprofError
from abprof.records.options import Options
from abprof.report import sentences
from abprof.store import runfolder
from abprof.system import processes as proc
from abprof.system.console import View
from abprof.verdict import stats

WORKLOADS = "workloads"  # in the bisection's folder: one judge for all steps, whatever becomes of the working tree


@contextlib.contextmanager
def planned(config: Options, view: View) -> Iterator[tuple[Bisection, RunContext, Path]]:
    """The bisection before its first step, and where it takes place; the folder holds the workloads while the block runs.

    Raises AbprofError for ends that are no good and bad end, and for all that a run would be refused for.
    """
    place = look_around(config, view)
    good, bad = _ends(place)
    with holding.signals(), proc.no_orphans(), tempfile.TemporaryDirectory() as logs:
        with holding.worktrees(place, f"{place.id}-bisect", view) as trees:
            if config.command:
                head, epoch = _measured_by_command(place, trees, Path(logs), view)
            else:
                head = make_plan(place, trees, Path(logs), view, dry=True).run
                epoch = epoch_seconds(head, peers=False)[1]
                copy_workloads(Path(trees[0].path).parent / WORKLOADS, Path(logs) / WORKLOADS)
        yield _state(place, good, bad, head, epoch), place, Path(logs) / WORKLOADS


def _measured_by_command(place: RunContext, trees: Sequence[Checkout], logs: Path, view: View) -> tuple[Run, float]:
    """What the command measures, by running it once at both ends, and how long an epoch of it takes."""
    with holding.alone(place, view, wait=not place.options.no_wait):
        began = time.monotonic()
        head = prepare(place, trees, logs, view).head
        return head, time.monotonic() - began


def folder_of(of: Bisection, place: RunContext, workloads: Path) -> tuple[Bisection, Path]:
    """A folder of its own beside the run folders, with the workloads and the file in it. Raises AbprofError."""
    labels = names.safe_labels((of.labels[commit], commit) for commit in (of.good, of.bad))
    stamp = place.id.partition("-")[0]
    folder = runfolder.create(place.runs_dir, "-".join([stamp, "bisect", *labels])[:180])
    folder.logs.rmdir()
    if not of.options.command:
        copy_workloads(workloads, folder.path / WORKLOADS)
        options = msgspec.structs.replace(of.options, workloads_from=str((folder.path / WORKLOADS).absolute()))
        of = msgspec.structs.replace(of, options=options)
    steps.write(folder.path, of)
    return of, folder.path


def of_run(path: Path, config: Options) -> Options:
    """The bisection of a run: its ends, every cell that got slower in it, and all else as it was measured there.

    Raises AbprofError for one in which no cell did, and for one that is not of commits.
    """
    run, _ = session.judged(path, lambda _: None)
    slower = [row for row in run.comparisons if row.verdict == "slower" and not row.with_peer]
    if not slower:
        raise AbprofError("no cell got slower in this run", where=f"--from-run {path}")
    side, *others = dict.fromkeys(Arm.of(row.to).side for row in slower)
    if others:
        what = f"cells got slower in {', '.join(run.side(one).label for one in (side, *others))}"
        advice = "one bisection has one bad end: abprof bisect GOOD BAD --cell ID"
        raise AbprofError(what, where=f"--from-run {path}", advice=advice)
    base, target = run.side("base"), run.side(side)
    for one in (base, target):
        if one.kind != "commit":
            what = f"{one.id} was no commit but {one.spec}"
            raise AbprofError(what, where=f"--from-run {path}", advice="of commits: abprof bisect GOOD BAD")
    cells = dict.fromkeys(row.cell for row in slower)
    pythons = {"base": run.options.python.get("base"), "target": run.options.python.get(side)}
    return msgspec.structs.replace(
        continued.as_set_up(config, run),
        specs=(base.commit, target.commit),
        cell=tuple(cells),
        command=run.command.argv if run.command else (),
        workloads=() if run.command else tuple(dict.fromkeys(id_parts(cell)[0] for cell in cells)),
        python={id: path for id, path in pythons.items() if path},
        threshold=run.options.threshold,
        thresholds=run.options.thresholds,
        margin=run.options.margin,
    )


def _ends(place: RunContext) -> tuple[Side, Side]:
    if len(place.sides) != 2:
        raise AbprofError("a bisection has two ends", where="abprof bisect", advice="abprof bisect GOOD BAD")
    good, bad = place.sides
    for side in (good, bad):
        if side.kind == "dist":
            raise AbprofError("a release is no commit", where=side.spec, advice="name the tag it was made from")
        if side.kind != "commit":
            what = "the working tree is no commit" if side.kind == "worktree" else "it is no commit"
            raise AbprofError(what, where=side.spec, advice="commit it, or name a ref")
    if good.commit == bad.commit:
        what = f"both are commit {good.commit[:10]}: nothing lies between them"
        raise AbprofError(what, where=f"{good.spec} {bad.spec}")
    if not place.commits.is_ancestor(good.commit, bad.commit):
        raise AbprofError(
            f"{good.spec} is not an ancestor of {bad.spec}", where="abprof bisect", advice=_advice(place, good, bad)
        )
    return good, bad


def _advice(place: RunContext, good: Side, bad: Side) -> str:
    if place.commits.is_ancestor(bad.commit, good.commit):
        return f"it comes after it: abprof bisect {bad.spec} {good.spec}"
    common = place.commits.merge_base(good.commit, bad.commit)
    if common is None:
        return "they have no common ancestor here; in a shallow clone: git fetch --unshallow"
    return f"their merge base is: abprof bisect {common[:10]} {bad.spec}"


def _state(place: RunContext, good: Side, bad: Side, head: Run, epoch: float) -> Bisection:
    """`epoch`: seconds that one takes."""
    cells = tuple(cell for cell in head.cells if (cell.kernel or head.command) and not cell.skip)
    if not cells:
        raise AbprofError("no cell can be measured here", where="abprof bisect", advice="abprof list says why")
    kernels = {cell.id: cell.kernel or COMMAND for cell in cells}
    links = place.commits.between(good.commit, bad.commit)
    commits = tuple(dict.fromkeys([good.commit, *(c for link in links for c in (*link.parents, link.commit))]))
    holds = {kernel: place.commits.contents(commits, folders) for kernel, folders in _inputs(place, kernels)}
    options = msgspec.structs.replace(
        place.options,
        repo=str(place.root),
        no_peers=True,
        file=None,
        filled=(),
        kernels=(),
        only=(),
        set=(),
        peer=(),
        rebuild=False,
        dry_run=False,
    )
    return Bisection(
        began=datetime.now(UTC).isoformat(timespec="seconds"),
        options=options,
        good=good.commit,
        bad=bad.commit,
        labels={side.commit: side.label for side in (good, bad)},
        cells=tuple(kernels),
        unchecked=sentences.lacking(head)[1],
        threshold={cell.id: head.options.threshold_of(cell.id) for cell in cells},
        kernels=kernels,
        links=links,
        holds=holds,
        step_seconds=stats.LOOKS[0] * epoch,
    )


def _inputs(place: RunContext, kernels: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What may change a cell's time: its kernel package's folders; of a command, which may run anything, the whole tree."""
    if place.options.command:
        yield COMMAND, ("",)
        return
    for kernel, package in place.packages(list(dict.fromkeys(kernels.values()))).items():
        yield kernel, keys.folders(package)


def plan(of: Bisection) -> list[str]:
    """The plan in a few lines."""
    lines = [f"{len(of.links)} commits from {name(of, of.good)} to {name(of, of.bad)}", *weaker(of)]
    for kernel in dict.fromkeys(of.kernels.values()):
        history = of.history(kernel)
        path = history.path(of.good, of.bad)
        turns = len(history.turns(path)) - 1
        aside = f" of {len(path) - 1} along first parents" if len(path) - 1 < len(of.links) else ""
        halving = halvings(turns)
        lines.append(f"{kernel}: {turns}{aside} change its inputs: log2 of that is {halving} steps, and one each for the "
                     "ends, for the commit against its parent and for what is left after it")  # fmt: skip
    seconds = of.planned * of.step_seconds
    lines.append(f"{of.planned} steps for one culprit, about {span(seconds)} of measuring where all is clear")
    return lines
