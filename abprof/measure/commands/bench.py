"""Getting a command ready: its worktrees built, its first run on every side, and the cells that this told."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from abprof import __version__
from abprof.builds import environment
from abprof.builds import sandbox as contain
from abprof.measure import plan
from abprof.measure.commands.process import Ended, Stand, run
from abprof.measure.prepare import Again
from abprof.measure.run_context import Place
from abprof.records import SCHEMA, Arm, Cell, Checkout, Command, Run, Workload
from abprof.records.errors import AbprofError
from abprof.system import config_unused as unused
from abprof.system import processes as proc
from abprof.system.console import View
from abprof.system.processes import WorkerDied
from abprof.verdict.headline import many

NAME = "command"  # of its only workload, whose cells are the names that it prints
AXIS = "name"
CONTROL = "control"
_PLACES = ("worktree", "build_dir", "side")


@dataclass(frozen=True)
class Bench:
    """What the epochs stand on: everything that was settled before the first of them."""

    head: Run
    stands: dict[str, Stand]  # side id -> how it runs there
    arms: dict[str, tuple[Arm, ...]]  # cell id -> who takes turns in it
    names: frozenset[str]  # that the first run printed on any side
    logs: Path
    timeout: float


def ready(place: Place, trees: Sequence[Checkout], logs: Path, view: View, again: Again | None = None) -> Bench:
    """Build, run the command once on every side without counting it, and lay out the cells, or take those of a run that is
    gone on with.

    Raises AbprofError when it runs on no side, prints no times on any, or no cell is left.
    """
    command = again.run.command if again and again.run.command else _command(place)
    mode = environment.mode(place.options.env, os.environ)
    env, withheld = environment.clean(os.environ, mode, place.file.environment.allow)
    env |= place.file.environment.set
    wall, not_contained = _wall(place, mode)
    stands = {tree.side.id: _stand(place, tree, command, env, wall) for tree in trees}
    notes = (*place.notes, *_unlike(trees, command.argv), *not_contained)
    for line in notes:
        view.say(line)
    stands = {side: _built(stand, command, logs, place.options.build_timeout, view) for side, stand in stands.items()}
    first = {side: _first(stand, logs, place.options.timeout, view) for side, stand in stands.items()}
    if all(ended.status != "ok" for ended in first.values()):
        side, ended = next(iter(first.items()))
        if ended.status == "build_failed":
            raise AbprofError(ended.reason, where=f"the build of {side}", advice="abprof.toml [command] names it")
        where = f"{Path(command.argv[0]).name} on {side}"
        raise AbprofError(ended.reason, where=where, advice="docs/ADOPT.md says what a command prints")
    cells = again.cells if again else _chosen(place, _cells(first))
    arms = _arms(place, cells)
    known = again.run.arms if again else ()  # a quick run had no controls, and its rerun may have
    every = tuple({arm.id: arm for arm in (*known, *(arm for row in arms.values() for arm in row))}.values())
    if again:
        head = msgspec.structs.replace(again.run, arms=every)
    else:
        idle = unused.thresholds(place.options, (cell.id for cell in cells))
        for line in idle:
            view.say(line)
        head = _head(place, command, cells, every, (*notes, *idle), withheld, wall)
    names = frozenset(name for ended in first.values() for name in ended.readings.times)
    return Bench(head, stands, arms, names, logs, place.options.timeout)


def log(logs: Path, side: str) -> Path:
    """Where all is kept that the command says on a side."""
    return logs / f"command-{side}.log"


# ---------------------------------------------------------------- where it runs


def _command(place: Place) -> Command:
    """As typed, with what abprof.toml adds."""
    entry = place.file.command
    return Command(argv=place.options.command, build=entry.build, env=entry.env)


def _wall(place: Place, environment: str) -> tuple[contain.Wall | None, tuple[str, ...]]:
    """What the command is started behind, and a line where `auto` would have it and it can't be. No worker tries a GPU behind it
    here, so with one only --contain always contains. Raises AbprofError."""
    wall, why = contain.chosen(place.options.contain, environment)
    if wall is not None and place.device.kind == "cuda" and place.options.contain == "auto":
        wall, why = None, "whether this GPU works in bubblewrap is not tried for a command; --contain always does"
    return wall, (f"not contained: {why}",) if why else ()


def _stand(place: Place, tree: Checkout, command: Command, env: dict[str, str], wall: contain.Wall | None) -> Stand:
    """The command on one side. Its caches are the side's own and last as long as the run."""
    own = Path(tree.path).parent / NAME / tree.side.id
    places = {"worktree": tree.path, "build_dir": str(own / "out"), "side": tree.side.id}
    (own / "out").mkdir(parents=True)
    extra = environment.fill(command.env, "abprof.toml [command.env]", **places)
    given = environment.worker(env, own / "caches", place.device.worker, extra)
    if tree.side.kind == "dist":  # else the copy that the interpreter has installed would be measured
        given["PYTHONPATH"] = os.pathsep.join([tree.path, *filter(None, [given.get("PYTHONPATH")])])
    return Stand(tree.side.id, filled(command.argv, places), given, Path(tree.path), own, wall)


def filled(argv: Sequence[str], places: dict[str, str]) -> tuple[str, ...]:
    """The words with {worktree}, {build_dir} and {side} filled in; any other brace is the command's own."""
    words = list(argv)
    for name in _PLACES:
        words = [word.replace(f"{{{name}}}", places[name]) for word in words]
    return tuple(words)


def _unlike(trees: Sequence[Checkout], argv: Sequence[str]) -> list[str]:
    """A line for each file that the command names and that is not the same on all sides: every side runs its own."""
    lines = []
    for word in argv:
        if word.startswith("/") or "\0" in word or len(word) > 1000:
            continue
        files = [Path(tree.path) / word for tree in trees]
        there = [file for file in files if file.is_file()]
        if there and (len(there) < len(files) or len({file.read_bytes() for file in there}) > 1):
            lines.append(f"{word} is not the same on all sides: each runs its own, so what it measures may differ too")
    return lines


def _built(stand: Stand, command: Command, logs: Path, timeout: float, view: View) -> Stand:
    """With the build of abprof.toml done in this side's worktree, or with why it failed: nothing is run there then."""
    if not command.build:
        return stand
    places = {"worktree": str(stand.cwd), "side": stand.side, "build_dir": _build_dir(stand)}
    argv, to = filled(command.build, places), log(logs, stand.side)
    view.say(f"{stand.side}: building")
    try:
        around, env = stand.started(argv, network=True)  # it may fetch what it builds with
        code = proc.logged(around, env=env, cwd=stand.cwd, log=to, timeout=timeout)
        why = f"exit code {code}" if code else ""
    except WorkerDied as died:
        why = died.reason
    if not why:
        return stand
    said = to.read_text(errors="replace").strip().splitlines() if to.exists() else []
    return replace(stand, unbuilt=f"{why}{f': {said[-1]}' if said else ''}")


def _build_dir(stand: Stand) -> str:
    return str(stand.own / "out")


# ---------------------------------------------------------------- what it measures


def _first(stand: Stand, logs: Path, timeout: float, view: View) -> Ended:
    """A run that is not counted: it fills the side's caches, and tells the names."""
    ended = run(stand, "at first, not counted", log(logs, stand.side), timeout)
    said = many(len(ended.readings.times), "name") if ended.status == "ok" else f"{ended.status}, {ended.reason}"
    view.say(
        f"{stand.side}: the command took {ended.seconds:.1f} s: {said}", style="" if ended.status == "ok" else "red"
    )
    over = ended.readings.passed_over
    if over:
        more = f" and {len(over) - 1} more" if len(over) > 1 else ""
        view.say(f"{stand.side}: passed over what is not `name,ms`: {over[0][:80]!r}{more}")
    return ended


def _cells(first: dict[str, Ended]) -> tuple[Cell, ...]:
    """A cell for each name that any side printed, in the order of the first that did."""
    return tuple(map(_cell, dict.fromkeys(name for ended in first.values() for name in ended.readings.times)))


def _chosen(place: Place, cells: tuple[Cell, ...]) -> tuple[Cell, ...]:
    """Those that were asked for; by their ids also ones that no side printed this time."""
    if not place.options.cell:
        return plan.select(cells, place.options.only)
    return tuple(_cell(id.removeprefix(_cell("").id)) for id in place.options.cell)


def _cell(name: str) -> Cell:
    return Cell(id=f"{NAME}/{AXIS}={name}", workload=NAME, kernel="", suite=NAME, params={AXIS: name})


def _arms(place: Place, cells: Sequence[Cell]) -> dict[str, tuple[Arm, ...]]:
    """Every side, and base once more as the control of cells spread over the run."""
    sides = tuple(Arm(id=side.id, side=side.id) for side in place.sides)
    alone = len(sides) == 1 or place.options.quick
    controlled = set() if alone else plan.controls(cells, set())
    control = Arm(id=CONTROL, side=CONTROL)
    return {cell.id: (*sides, control) if cell.id in controlled else sides for cell in cells}


def _head(
    place: Place,
    command: Command,
    cells: tuple[Cell, ...],
    arms: tuple[Arm, ...],
    notes: tuple[str, ...],
    withheld: tuple[str, ...],
    wall: contain.Wall | None,
) -> Run:
    config, text = place.options, shlex.join(command.argv)
    return Run(
        schema=SCHEMA,
        id=place.id,
        status="running",
        began=datetime.now(UTC).isoformat(timespec="seconds"),
        options=msgspec.structs.replace(
            config.resolved(place.device.kind, "reported"),
            env=environment.mode(config.env, os.environ),
            wall=wall.version if wall else "",
        ),
        sides=place.sides,
        waivers=place.waivers,
        command=command,
        workloads=(Workload(name=NAME, kernel="", suite=NAME, axes=(AXIS,), judge="reported", text=text),),
        arms=arms,
        cells=cells,
        machine=place.device.machine(),
        versions={"abprof": __version__},
        withheld=withheld,
        notes=notes,
    )
