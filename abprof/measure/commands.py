"""Measure a command that times itself and prints `name,ms` lines (`abprof run ... -- COMMAND`).

`Bench.of` runs the command once on every side: the names that it prints are the cells. In each epoch, `epochs` runs one
process per side and yields the cells' blocks.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path

import msgspec

from abprof.builds import environment
from abprof.builds import sandbox as contain
from abprof.devices import Device
from abprof.measure import matrix, turns
from abprof.measure.plan import new_head
from abprof.measure.run_context import RunContext
from abprof.records import (
    COMMAND,
    LONGEST_CALL,
    REPORTED,
    VERSION,
    Arm,
    Block,
    Cell,
    Checkout,
    Command,
    MachineState,
    Outcome,
    Run,
    Status,
    Turn,
    Workload,
)
from abprof.records.errors import AbprofError
from abprof.records.filters import select
from abprof.records.quantities import plural
from abprof.system import doorway
from abprof.system import processes as proc
from abprof.system.config_file import fill
from abprof.system.console import View
from abprof.system.files import refuse_full_disk
from abprof.system.processes import WorkerDied, WorkerHung, how_ended

AXIS = "name"
CONTROL = "control"
_ORDERS = 64  # orders drawn at once: more than epochs, so that they do not depend on the number of epochs
MOST_TIMES = 200_000  # most times that a process prints, of all names together: each becomes a round
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|nan|[-+]?inf(?:inity)?", re.I)


@dataclass(frozen=True)
class Bench:
    """A command that times itself, ready to be run: the run's header, the sides and the arms."""

    head: Run
    sides: dict[str, _Side]  # side id -> how the command runs there
    arms: dict[str, tuple[Arm, ...]]  # cell id -> the arms that are measured in it

    @classmethod
    def of(cls, place: RunContext, trees: Sequence[Checkout], logs: Path, view: View) -> Bench:
        """Build every side, run the command once on each without counting its times, and lay out the cells.

        Raises AbprofError if the command fails on every side, or if no cell is left.
        """
        continued = place.continued
        entry, mode = place.file.command, environment.mode(place.options.env)
        command = continued.run.command if continued else None
        command = command or Command(
            argv=place.options.command, build=entry.build, env=entry.env, network=entry.network
        )
        env, withheld = environment.clean(os.environ, mode, place.file.environment.allow)
        env |= place.file.environment.set
        sandbox, why = contain.chosen(place.options.contain, mode)
        if sandbox is not None and place.device.kind == "cuda" and place.options.contain == "auto":
            sandbox, why = (
                None,
                "whether this GPU works in bubblewrap is not tried for a command; --contain always does",
            )
        notes = (*place.notes, *((f"not contained: {why}",) if why else ()))
        for line in notes:
            view.say(line)
        sides = {tree.side.id: _side(place, tree, command, env, sandbox, logs, view) for tree in trees}
        first = {id: _first(side, place.options.timeout, view) for id, side in sides.items()}
        if all(ended.status != "ok" for ended in first.values()):
            id, ended = next(iter(first.items()))
            if ended.status == "build_failed":
                raise AbprofError(ended.reason, where=f"the build of {id}", advice="abprof.toml [command] names it")
            where = f"{Path(command.argv[0]).name} on {id}"
            raise AbprofError(ended.reason, where=where, advice="docs/ADOPT.md says what a command prints")
        names = dict.fromkeys(name for ended in first.values() for name in ended.times)
        if continued:
            cells = continued.cells
        elif place.options.cell:  # ids may name cells that no side printed this time
            cells = tuple(_cell(id.removeprefix(_cell("").id)) for id in place.options.cell)
        else:
            cells = select(tuple(map(_cell, names)), place.options.only)
        controlled = matrix.controls(cells, place.sides, quick=place.options.quick)
        load = Workload(
            name=COMMAND, kernel="", suite=COMMAND, axes=(AXIS,), judge="reported", text=shlex.join(command.argv)
        )
        arms = {
            cell.id: matrix.arms(load, place.sides, (), control=cell.id in controlled, peers=False) for cell in cells
        }
        if continued:
            head = continued.run
        else:
            options = msgspec.structs.replace(
                place.options.resolved(place.device.kind, "reported"),
                env=mode,
                sandbox=sandbox.version if sandbox else "",
            )
            head = new_head(
                place,
                options,
                command=command,
                workloads=(load,),
                cells=cells,
                versions={"abprof": VERSION},
                withheld=withheld,
                notes=notes,
            )
        every = dict.fromkeys((*head.arms, *(arm for row in arms.values() for arm in row)))  # a rerun may add controls
        return cls(msgspec.structs.replace(head, arms=tuple(every)), sides, arms)

    def epochs(self, device: Device, wanted: Callable[[], set[str]], *, first: int, budget: float) -> Iterator[Block]:
        """Yield blocks of all cells, epoch by epoch, until `wanted` names no cell or no epoch fits into `budget` seconds.

        Decided cells get blocks too, because a process prints the times of all cells.
        """
        number, cost = first, 0.0
        while todo := wanted() & self.arms.keys():
            if number > first and (self.head.options.quick or cost > budget):
                return
            began, clock = time.time(), time.monotonic()
            device.watch(frozenset)  # abprof does not know the command's processes
            ended = {
                arm.id: _run(self._side_of(arm), f"epoch {number}, {arm.id}", self.head.options.timeout)
                for arm in self._order(todo, number)
            }
            cost = time.monotonic() - clock
            budget -= cost
            start, end = min(each.began for each in ended.values()), max(each.ended for each in ended.values())
            bad = dict.fromkeys(why for begin, stop, why in device.bad_times() if begin <= end and stop >= start)
            state = device.state()
            for cell in (cell for cell in self.head.cells if cell.id in self.arms):
                yield _block(self, cell, number, ended, (began, cost), "; ".join(bad), state)
            number += 1

    def _side_of(self, arm: Arm) -> _Side:
        return self.sides["base" if arm.side == CONTROL else arm.side]

    def _order(self, todo: set[str], number: int) -> list[Arm]:
        """Return the arms that run in epoch `number`, in order. Every second epoch mirrors the order of the epoch before.

        The control runs only if a cell of `todo` has a control.
        """
        arms = list({arm.id: arm for cell in sorted(todo) for arm in self.arms[cell]}.values())
        arms.sort(key=lambda arm: (arm.side == CONTROL, arm.id))
        orders = turns.orders(len(arms), max(_ORDERS, number), self.head.options.seed)
        return [arms[place] for place in orders[number - 1]]


@dataclass(frozen=True)
class _Side:
    """How the command runs on one side, with {worktree} and other placeholders filled in."""

    id: str
    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path  # the side's worktree
    own: Path  # folder of the side's caches and builds
    log: Path
    sandbox: contain.Sandbox | None = None
    named: frozenset[str] = frozenset()  # variables that abprof.toml sets
    unbuilt: str = ""  # why the build failed; "": it succeeded

    def started(self, argv: Sequence[str], *, network: bool) -> tuple[Sequence[str], Mapping[str, str]]:
        """Return argv and environment that start `argv`, in the sandbox if any. `network`: whether to allow network."""
        if self.sandbox is None:
            return argv, self.env
        return self.sandbox.around(argv, self.env, own=self.own, writable=[self.cwd], names=self.named, network=network)


@dataclass(frozen=True)
class _Ended:
    """How one process of the command ended. `began` and `ended`: ns of time.monotonic_ns()."""

    status: Status  # ok, crash, timeout, build_failed
    reason: str
    began: int
    ended: int
    times: Mapping[str, Sequence[float]] = field(default_factory=dict)  # ns by name, in the order they were printed
    last_digit_ns: float = 0.0  # last digit of the most precise printed time, in ns


# ---------------------------------------------------------------- preparing


def _side(
    place: RunContext,
    tree: Checkout,
    command: Command,
    env: Mapping[str, str],
    sandbox: contain.Sandbox | None,
    logs: Path,
    view: View,
) -> _Side:
    """Run the build of abprof.toml, if any, in the side's worktree, and return how to run the command there."""
    own = Path(tree.path).parent / COMMAND / tree.side.id  # removed with the worktree
    places = {"worktree": tree.path, "build_dir": str(own / "out"), "side": tree.side.id}
    (own / "out").mkdir(parents=True)
    temporary = own.with_name(f"{own.name}.tmp")
    temporary.mkdir()
    extra = fill(command.env, "abprof.toml [command.env]", **places)
    settings = place.file.environment
    if "TMPDIR" not in {*settings.set, *settings.allow}:
        extra = {"TMPDIR": str(temporary), **extra}
    given = environment.worker(env, own / "caches", place.device.worker, extra)
    if tree.side.id in place.pythons:
        own_bin = str(Path(place.pythons[tree.side.id]).parent)
        given["PATH"] = os.pathsep.join([own_bin, given.get("PATH", os.defpath)])
    if tree.side.kind == "dist":  # so that the interpreter's installed copy is not measured
        given["PYTHONPATH"] = os.pathsep.join([tree.path, *filter(None, [given.get("PYTHONPATH")])])
    log, named = logs / f"command-{tree.side.id}.log", frozenset({*command.env, *place.file.environment.set})
    side = _Side(tree.side.id, _filled(command.argv, places), given, Path(tree.path), own, log, sandbox, named)
    if not command.build:
        return side
    view.say(f"{side.id}: building")
    try:
        argv, env = side.started(_filled(command.build, places), network=command.network)
        code = proc.logged(argv, env=env, cwd=side.cwd, log=log, timeout=place.options.build_timeout)
        why = f"exit code {code}" if code else ""
    except WorkerDied as died:
        why = died.reason
    printed = _tail(log).strip().splitlines() if why else []
    unbuilt = ": ".join([*filter(None, [why]), *printed[-1:]])
    if unbuilt:
        refuse_full_disk(unbuilt, side.cwd, log.parent)
    return replace(side, unbuilt=unbuilt)


def _filled(argv: Sequence[str], places: Mapping[str, str]) -> tuple[str, ...]:
    """Return `argv` with {worktree}, {build_dir} and {side} replaced. Other braces are kept for the command."""
    for name, value in places.items():
        argv = [word.replace(f"{{{name}}}", value) for word in argv]
    return tuple(argv)


def _first(side: _Side, timeout: float, view: View) -> _Ended:
    """Run the command once to fill the side's caches and to learn the cells' names. The times are not used."""
    ended = _run(side, "at first, not counted", timeout)
    ok = ended.status == "ok"
    result = f"times of {plural(len(ended.times), 'name')}" if ok else f"{ended.status}, {ended.reason}"
    seconds = (ended.ended - ended.began) / 1e9
    view.say(f"{side.id}: the command took {seconds:.1f} s: {result}", style="" if ok else "red")
    return ended


def _cell(name: str) -> Cell:
    return Cell(id=f"{COMMAND}/{AXIS}={name}", workload=COMMAND, kernel="", suite=COMMAND, params={AXIS: name})


# ---------------------------------------------------------------- measuring


def _run(side: _Side, heading: str, timeout: float) -> _Ended:
    """Run the command once and append its output to the log. Return its times, or why it failed."""
    began = time.monotonic_ns()
    if side.unbuilt:
        return _Ended("build_failed", side.unbuilt, began, began)
    _append(side.log, f"== {heading}\n")
    before = side.log.stat().st_size
    argv, env = side.started(side.argv, network=False)
    with tempfile.TemporaryFile(dir=side.log.parent) as out:
        began = time.monotonic_ns()
        try:
            code = proc.logged(argv, env=env, cwd=side.cwd, log=side.log, timeout=timeout, out=out)
            ended = time.monotonic_ns()
        except WorkerDied as died:
            status: Status = "timeout" if isinstance(died, WorkerHung) else "crash"
            return _Ended(status, died.reason, began, time.monotonic_ns())
        finally:
            errors = _tail(side.log, before)
            out.seek(0)
            printed = out.read(proc.LOG_LIMIT).decode(errors="replace")
            _append(side.log, printed)
    if side.sandbox is not None and code > 128:  # how bubblewrap reports a signal
        code = 128 - code
    if code:
        how = how_ended(code).removeprefix("ended with ")
        last = (errors.strip() or printed.strip()).splitlines()[-1:]
        why = ": ".join([how, *(line[-400:] for line in last)])
        refuse_full_disk(why, side.cwd, side.log.parent)
        return _Ended("crash", why, began, ended)
    try:
        if len(printed.encode()) >= proc.LOG_LIMIT:
            raise ValueError(f"the command printed more than {proc.LOG_LIMIT >> 20} MiB")
        return _Ended("ok", "", began, ended, *read(printed))
    except ValueError as error:
        return _Ended("crash", str(error), began, ended)


def _tail(log: Path, begin: int = 0) -> str:
    with contextlib.suppress(OSError):
        return doorway.tail(log, proc.LOG_LIMIT, begin).decode(errors="replace")
    return ""


def _append(log: Path, text: str) -> None:
    with contextlib.suppress(OSError), doorway.appended(log) as file:
        file.write(text.encode(errors="replace"))  # a full disk is reported where results are written


def _block(
    bench: Bench,
    cell: Cell,
    number: int,
    ended: Mapping[str, _Ended],
    span: tuple[float, float],
    bad: str,
    state: MachineState,
) -> Block:
    """Make a cell's block. `ended`: arm id -> its process; `span`: start and seconds; `bad`: why to reject all
    rounds."""
    name = str(cell.params[AXIS])
    arms = [arm for arm in bench.arms[cell.id] if arm.id in ended]
    outcomes = {arm.id: _outcome(bench, arm, ended[arm.id], name) for arm in arms}
    ran = [(place, ended[arm.id]) for place, arm in enumerate(arms) if outcomes[arm.id].status == "ok"]
    rounds = _rounds(ran, name, min(each.began for each in ended.values()))
    return Block(
        epoch=number,
        cell=cell.id,
        metric=REPORTED,
        timer="the command",
        calls=1,
        arms=tuple(arm.id for arm in arms),
        began=span[0],
        seconds=span[1],
        rounds=rounds,
        rejected=tuple(range(len(rounds))) if bad else (),
        rejected_why=bad,
        outcomes=outcomes,
        state=state,
        start_order=tuple(ended),
        quick=bench.head.options.quick,
        last_digit_ns=max((one.last_digit_ns for _, one in ran), default=0.0),
    )


def _outcome(bench: Bench, arm: Arm, ended: _Ended, name: str) -> Outcome:
    log = bench._side_of(arm).log.name
    if ended.status != "ok":
        return Outcome(status=ended.status, reason=ended.reason, log=log)
    if name not in ended.times:
        return Outcome(status="missing", reason="the command printed no time with this cell's name", log=log)
    bad = next((ns for ns in ended.times[name] if not 0 < ns <= LONGEST_CALL), None)
    if bad is not None:
        return Outcome(status="crash", reason=f"the command printed {bad / 1e6:g} ms, which is no valid time", log=log)
    return Outcome(status="ok")


def _rounds(ran: Sequence[tuple[int, _Ended]], name: str, origin: int) -> tuple[tuple[Turn, ...], ...]:
    """Make rounds of the times of `name`: round i holds the i-th time that each process printed for it."""
    times = {place: ended.times[name] for place, ended in ran}
    ordered = sorted(ran, key=lambda one: one[1].began)
    return tuple(
        tuple(
            Turn(place, ended.began - origin, ended.ended - origin, times[place][number], 0.0)
            for place, ended in ordered
            if number < len(times[place])
        )
        for number in range(max(map(len, times.values()), default=0))
    )


# ---------------------------------------------------------------- reading


def read(text: str) -> tuple[dict[str, list[float]], float]:
    """Read a command's `name,ms` lines; return name -> times, and one unit of the finest printed digit, both in ns.

    Skips other lines. A name may be on several lines. Raises ValueError if there are no times or too many.
    """
    times: dict[str, list[float]] = {}
    first, last_digit = "", math.inf
    for line in filter(None, map(str.strip, text.splitlines())):
        name, _, ms = (part.strip() for part in line.rpartition(","))
        if not name or not _NUMBER.fullmatch(ms):
            first = first or line
            continue
        clean = " ".join(name.strip('"').encode(errors="replace").decode().split())
        if not clean:
            raise ValueError(f"a time has no name: {_shown(line)}")
        times.setdefault(clean, []).append(float(ms) * 1e6)
        exponent = Decimal(ms).as_tuple().exponent
        last_digit = min(last_digit, 10.0**exponent * 1e6) if isinstance(exponent, int) else last_digit
    if not times:
        what = f"the first line is {_shown(first)}" if first else "the command printed nothing"
        raise ValueError(f"{what}; print a line `name,ms` for each timing")
    if sum(map(len, times.values())) > MOST_TIMES:
        raise ValueError(f"the command printed more than {MOST_TIMES} timings: print a median for each name")
    return times, last_digit if math.isfinite(last_digit) else 0.0


def _shown(text: str) -> str:
    return repr(text[:60] + ("..." if len(text) > 60 else ""))
