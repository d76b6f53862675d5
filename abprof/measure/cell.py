"""Measure one cell in one epoch: `measure_cell` opens and checks the arms, lets them take turns, and returns a block."""

from __future__ import annotations

import dataclasses
import functools
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from abprof.devices import Device
from abprof.measure import turns
from abprof.measure.out_of_process import OutOfProcess
from abprof.measure.outside_turns import OutsideTurns
from abprof.measure.pool import WorkerPool
from abprof.measure.setup import ArmState, CellSetup, CellTask
from abprof.records import LONGEST_CALL, STANDING_IN, Block, Turn
from abprof.records import messages as wire
from abprof.system.processes import WorkerDied, WorkerFault

_WATCHED, _LONGEST_WATCH = 4, 20_000_000  # turns for each watch of an idle GPU, and ns of a watch
_BUSY, _TWICE = 0.02, 2  # share of the watches in which the GPU may be busy, and watches that must have found it so
CROWDED = "a graph keeps its memory, and the arms do not fit together"


def measure_cell(pool: WorkerPool, device: Device, task: CellTask, *, alone: bool = False) -> tuple[Block, bool]:
    """Measure one cell in one epoch. `alone`: whether only one arm may be in memory at a time. Return also whether the
    arms do not fit into memory together: then the block is not used."""
    cell = CellSetup(pool, device, task, alone=alone)
    judge = OutOfProcess(cell)
    _open_all(cell, judge)
    crowded = cell.crowded and not alone and task.judge != "graph"
    turn_taking = _Turns(cell, judge)
    device.watch(pool.factory.own.copy)
    device.bad_times()  # forget those before the turns
    outside = OutsideTurns(pool.workers() if task.options.untrusted else {})
    pace, rounds = (
        turn_taking.alone() if alone else turn_taking.graphs() if task.judge == "graph" else turn_taking.all()
    )
    faults = outside.faults()
    for _, state in cell.ready:
        if why := faults.get(state.arm.worker):
            cell.fail(state, "outside_turn", why)
    rejected = turns.rejected(rounds, turn_taking.origin, device.bad_times())
    for _, state in cell.ready if (why := turn_taking.watched()) else ():
        if state.arm.worker != "base" and state.arm.worker not in STANDING_IN:
            cell.fail(state, "outside_turn", why)
    _check_loaded(cell, len(rounds), turn_taking.compiles, rejected)
    if not (alone or task.options.untrusted):  # there timed calls themselves were checked, on inputs that changed
        cell.check_again(len(rounds) * (pace.calls if pace else 0))
    pool.close()
    block = cell.block(
        timer=pace.timer if pace else "",
        calls=pace.calls if pace else 0,
        rounds=rounds,
        rejected=tuple(sorted(rejected)),
        rejected_why="; ".join(dict.fromkeys(rejected[number] for number in rejected)),
        alone=alone,
    )
    return block, crowded


def _open_all(cell: CellSetup, judge: OutOfProcess) -> None:
    """Open and check every arm. The order changes with the epoch, because it decides where inputs lie in memory."""
    for state in () if cell.alone else turns.ranked(cell.states, cell.task.epoch - 1):
        cell.open(state)
    for state in cell.states:  # base first, since other arms' outputs are also compared with base's
        if cell.alone:
            cell.open(state)
        cell.check(state)
        judge.check(state)
        if cell.alone:
            cell.pool.close()


class _Turns:
    def __init__(self, cell: CellSetup, judge: OutOfProcess) -> None:
        self.cell, self.judge, self.task = cell, judge, cell.task
        self.origin = time.monotonic_ns()  # also the workers' clock: they run on the same host
        # Checks of turns' outputs that wait for the end of the round: otherwise one side's turns would come behind them more
        # often than the other's.
        self._due = list[Callable[[], None]]()
        self._lead = self.task.handed.lead
        self._watches: list[tuple[int, int]] = []  # ns of each watch, and ns of them in which the GPU was busy
        # Process id of a worker -> its compiled kernels before its first turn.
        self.compiles: dict[int | None, int] = {}

    def all(self) -> tuple[turns.Pace | None, list[list[Turn]]]:
        """Measure with all arms in memory: each arm takes one turn in every round, until medians are precise enough."""
        ready = self.cell.ready
        if not ready:
            return None, []
        pace, begin = self._pace(), time.monotonic()
        rounds: list[list[Turn]] = []
        judged = {i for i, state in ready if not state.arm.peer}
        times: list[list[float]] = []
        cycles: list[list[float]] = []  # the verdict rests on times or cycles: whichever settles first ends the epoch
        seed = f"{self.task.options.seed}/{self.task.cell.id}"
        for number, order in enumerate(turns.orders(len(ready), pace.most, seed, self.task.epoch)):
            fresh = self.cell.seed + 1000 + number if pace.moves(number) else None
            takers = [ready[i] for i in order if ready[i][1].takes_turns]
            taken = [turn for i, state in takers if (turn := self._turn(i, state, pace, fresh)) is not None]
            self._lead.end_round()
            rounds.append(turns.levelled(taken))
            self._check_due()
            row = sorted((turn.arm, turn.value, turn.mhz) for turn in rounds[-1] if turn.arm in judged)
            if len(row) == len(judged) and all(value > 0 for _, value, _ in row):
                times.append([value for _, value, _ in row])
                cycles += [[value * mhz for _, value, mhz in row]] if all(mhz > 0 for *_, mhz in row) else []
            done = any(map(pace.enough, (times, cycles))) or pace.over(len(rounds), time.monotonic() - begin)
            if done or not any(state.takes_turns for _, state in ready):
                break
        return pace, rounds

    def alone(self) -> tuple[turns.Pace | None, list[list[Turn]]]:
        """Measure with one arm in memory at a time: several turns of each arm, then several of each in reverse order.

        Thus a steady drift cancels (base, target, target, base). The first arm changes with the epoch.
        """
        order = turns.ranked(self.cell.ready, self.task.epoch - 1)
        if not order:
            return None, []
        pace = self._pace()  # at least two rounds: one for each visit
        pace = dataclasses.replace(pace, rounds=max(2, pace.rounds), fewest=max(2, pace.fewest))
        columns: dict[int, list[Turn]] = {i: [] for i, _ in order}
        for i, state in (*order, *order[::-1]):
            self.cell.open(state)
            for _ in range(pace.rounds // 2):
                turn = self._turn(i, state, pace) if state.takes_turns else None
                self._check_due()
                if turn is None:
                    break
                columns[i].append(turn)
            self.cell.pool.close()
        count = max(map(len, columns.values()))
        rounds = [turns.levelled([column[n] for column in columns.values() if n < len(column)]) for n in range(count)]
        return pace, rounds

    def graphs(self) -> tuple[turns.Pace | None, list[list[Turn]]]:
        """Measure replays of CUDA graphs (--timer graph). If one side's arm cannot be captured, no side is timed."""
        cell, own = self.cell, [state for state in self.cell.states if not state.arm.peer]
        if cell.crowded:
            self._leave_out(own, CROWDED)
        for state in turns.ranked(cell.states, self.task.epoch - 1):  # the order decides where graphs keep their memory
            if state.takes_turns and not _uncaptured(own):
                captured: wire.Captured | None = cell.ask(state, wire.Capture(state.arm.id))
                state.captured = captured
                if captured is not None and captured.why:
                    cell.refuse_graph(state, f"{captured.why}: {captured.reason}", spoiled=captured.spoiled)
        if not _uncaptured(own):
            taken = self.all()
            if not _uncaptured(own):
                return taken
        first = _uncaptured(own)[0]
        self._leave_out(own, f"{first.arm.id} cannot be captured: {first.outcome.reason}")
        return None, []

    def _leave_out(self, states: Sequence[ArmState], reason: str) -> None:
        for state in states:
            if state.takes_turns:
                if state.outcome.status == "ok":
                    self.cell.fail(state, "unsupported", f"not timed in a CUDA graph: {reason}")
                state.opened = None

    def _pace(self) -> turns.Pace:
        """Return the pace of the epoch, and begin its lead."""
        task, kind = self.task, self.cell.device.kind
        timer = turns.timer_of(kind, task.judge)
        ready = [state for _, state in self.cell.ready]
        if task.options.untrusted:  # another side could report what makes turns short
            ready = [state for state in ready if state.arm.side == "base"] or ready
        known = [(s.opened, s.captured) for s in ready if s.opened is not None]
        calls = [captured.replay_ns if captured else opened.call_ns for opened, captured in known]
        opens = [opened.open_ns + (captured.capture_ns if captured else 0.0) for opened, captured in known]
        pace = turns.pace(kind, calls, opens, task.options, timer, task.room)
        most = self.judge.most_calls if task.options.untrusted else pace.calls
        pace = dataclasses.replace(pace, calls=min(pace.calls, most))
        if task.options.untrusted and timer == turns.TIMER["cuda"]:
            self._lead.begin(pace.calls)
        return pace

    def _turn(self, index: int, state: ArmState, pace: turns.Pace, fresh: int | None = None) -> Turn | None:
        """Measure one turn of an arm; None if that failed. `fresh`: where to allocate new inputs; None: keep the
        inputs."""
        lead, empties = self._lead.ns, pace.empties
        request = wire.Turn(state.arm.id, pace.calls, pace.timer, placement=fresh, empties=empties, lead=lead)
        first, seen, kept = not state.turns, list[list[Any]](), False
        request = self.judge.drawn(state, request)
        if request.draw and (first or fresh is not None):  # prepare apart: the parent's clock reads a whole turn
            if self.cell.ask(state, dataclasses.replace(request, calls=0, draw=[*request.draw[:2], 0])) is None:
                return None
            request = dataclasses.replace(request, placement=None)

        def at_reply() -> None:
            nonlocal kept, seen
            kept = not (request.shared and self._due) and self.judge.draws(state)  # the judge keeps one turn's outputs
            seen = self.judge.at_reply(state, request, kept=kept)

        read: wire.Turned | None = self.cell.ask(state, request, at_reply if request.draw else None)
        if read is None or state.outcome.status == "crash":
            return None
        if state.arm.worker == "base":
            self._lead.note(state.arm.id, read.lead)
        worker = self.cell.pool.worker(state.arm.worker)
        waited, _ = worker.waited, self.compiles.setdefault(worker.pid, read.compiles)
        if request.draw and not all(0 < one <= LONGEST_CALL for one in (read.value, read.wall)):
            self.cell.wrong(state, "its timer read an impossible time")  # a round without it could hide what is slow
            return None
        if request.draw and self.cell.device.kind == "cuda" and not secrets.randbelow(_WATCHED):
            self._watch(state, min(waited, _LONGEST_WATCH))
        if kept:
            try:
                copied = self.judge.copied(request)
            except OSError as error:
                self.cell.fail(state, "crash", f"what its calls returned could not be copied: {error}")
                state.opened = None
                return None
            self._due.append(functools.partial(self.judge.check_drawn, state, copied, read, seen))
        start, end = read.start - self.origin, read.end - self.origin
        # A simulated worker reports times that have not passed. With --untrusted each turn counts: code could forge the turns
        # that the parent's clock does not read.
        known = waited if (fresh is None or request.draw) and self.cell.device.kind != "simulated" else 0
        return Turn(index, start, end, read.value, read.wall, read.empty, read.mhz, known)

    def _check_due(self) -> None:
        while self._due:
            self._due.pop()()

    def _watch(self, state: ArmState, ns: int) -> None:
        """Have the judge watch the GPU in the place of the next turn: a kernel that a side left running slows other sides'."""
        try:
            watched: wire.Watched = self.cell.pool.judge().call(wire.Watch(ns), self.task.options.timeout)
            self._watches.append((ns, watched.busy))
        except (WorkerFault, WorkerDied) as error:
            self.cell.fail(state, "crash", f"the worker that watches the GPU failed: {error.reason}")
            state.opened = None

    def watched(self) -> str:
        """Return for how long the GPU was busy while no side had a turn; "" if it was idle."""
        total, found = sum(ns for ns, _ in self._watches), [busy for _, busy in self._watches if busy]
        if len(found) < _TWICE or sum(found) <= _BUSY * total:
            return ""
        return f"kernels ran outside turns: {sum(found) / 1e6:.1f} of {total / 1e6:.1f} ms that the GPU was watched"


def _uncaptured(states: Sequence[ArmState]) -> list[ArmState]:
    return [state for state in states if state.refused]


def _check_loaded(cell: CellSetup, count: int, before: Mapping[int | None, int], rejected: dict[int, str]) -> None:
    """Fail arms whose workers loaded wrong files; reject all rounds if a kernel was compiled while they were timed.
    `before`: process id of a worker -> its compiled kernels before its first turn."""
    pool, proved = cell.pool, cell.pool.prove()
    for state in cell.states:
        if count and state.takes_turns and state.arm.worker not in proved:
            cell.fail(state, "crash", "its worker ended before it could prove what it had loaded")
    for id, after in proved.items():
        for state in cell.states if not after.ok else ():
            if state.arm.side == id and not state.arm.peer:
                cell.fail(state, "crash", f"proof: {after.reason}")
        # Code that may be hostile could claim that it compiled, and drop the epochs in which it was slow. A compile makes
        # one round longer, which the median does not show.
        claims = cell.task.options.untrusted and id != "base" and id not in STANDING_IN
        if count and after.compiles > before.get(pool.pid(id), after.compiles) and not claims:
            rejected.update(dict.fromkeys(range(count), f"{id} compiled a kernel during timing"))
