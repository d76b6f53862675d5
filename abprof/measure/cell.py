"""One cell in one epoch: `measure_cell` makes every arm ready, lets all arms take turns, and returns the block."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from abprof.devices import Device
from abprof.measure import turns
from abprof.measure.pool import WorkerPool
from abprof.measure.setup import ArmState, CellSetup, CellTask
from abprof.measure.timers import unrecorded
from abprof.records import JUDGED_METRIC, Arm, Block, MachineState, Turn
from abprof.records import messages as wire

ONE_AT_A_TIME = "one side in memory at a time, because together they do not fit"
CROWDED = "a graph keeps its memory, and the arms do not fit together"
PROFILED_LATE = "the profiled pass, after all turns that CUPTI reads"
_Proofs = dict[str, tuple[int | None, wire.Proved]]  # worker id -> its process, and what it has loaded


@dataclass(frozen=True)
class CellResult:
    """A measured cell."""

    block: Block
    calls: dict[str, float]  # arm -> ns of its warm call
    timed: tuple[Arm, ...]  # the sides' arms that took turns
    crowded: bool  # the arms do not fit into memory together: nothing stands of this block
    once: float  # seconds of checks and profiled passes
    more: float  # seconds of rounds beyond the fewest


def measure_cell(pool: WorkerPool, device: Device, task: CellTask, *, alone: bool = False) -> CellResult:
    """Measure one cell in one epoch. `alone`: one arm is in memory at a time.

    Never raises for what a workload, a kernel or a worker does: that is the outcome of an arm in the block.
    """
    began, clock = time.time(), time.monotonic()
    cell = CellSetup(pool, device, task, alone=alone)
    cell.open_all()
    crowded = cell.crowded and not alone and task.judge != "graph"
    turn_taking = _Turns(cell)
    device.watch(pool.own)
    device.bad_times()  # forget earlier ones
    proofs: _Proofs = {id: (pool.pid(id), proved) for id, proved in pool.prove().items()}
    begin = time.monotonic()
    pace, rounds = (
        turn_taking.alone() if alone else turn_taking.graphs() if task.judge == "graph" else turn_taking.all()
    )
    beyond = max(0, len(rounds) - (pace.fewest if pace else 0))
    more = (time.monotonic() - begin) * beyond / max(1, len(rounds))
    rejected = turns.rejected(rounds, turn_taking.origin, device.bad_times())
    _reject_by_proof(cell, len(rounds), proofs, rejected)
    pool.close()
    block = Block(
        epoch=task.epoch,
        cell=task.cell.id,
        metric=JUDGED_METRIC[task.judge],
        timer=pace.timer if pace else "",
        calls=pace.calls if pace else 0,
        rule=pace.rule if pace else "",
        arms=tuple(state.arm.id for state in cell.states),
        began=began,
        seconds=time.monotonic() - clock,
        rounds=tuple(map(tuple, rounds)),
        rejected=tuple(sorted(rejected)),
        rejected_why="; ".join(dict.fromkeys(rejected[number] for number in rejected)),
        outcomes={state.arm.id: state.outcome for state in cell.states},
        state=device.state() if rounds else MachineState(),
        start_order=pool.start_order,
        quick=task.options.quick,
        alone=alone,
        check_seconds=cell.checking,
        unrecorded=turn_taking.unrecorded,
    )
    calls = {state.arm.id: state.opened.call_ns for state in cell.states if state.opened is not None}
    timed = tuple(state.arm for state in cell.states if state.takes_turns and state.own)
    return CellResult(block, calls, timed, crowded, cell.once, more)


def profile_cell(pool: WorkerPool, device: Device, task: CellTask, timer: str) -> Block:
    """The profiled pass of the task's arms by itself: a block without rounds.

    After torch's profiler has run, CUPTI reports ticks as nanoseconds. So cells that CUPTI times have their turns first,
    and are opened once more for this pass at the end of their package's part of the epoch. `timer`: what read the turns.
    """
    began, clock = time.time(), time.monotonic()
    task = dataclasses.replace(task, check=False, outside=False, profile=True)
    cell = CellSetup(pool, device, task, alone=True)
    cell.open_all()
    return Block(
        epoch=task.epoch,
        cell=task.cell.id,
        metric=JUDGED_METRIC[task.judge],
        timer=timer,
        calls=0,
        rule=PROFILED_LATE,
        arms=tuple(state.arm.id for state in cell.states),
        began=began,
        seconds=time.monotonic() - clock,
        rounds=(),
        outcomes={
            state.arm.id: msgspec.structs.replace(state.outcome, host_ns=None, peak_mem_bytes=None)
            for state in cell.states
        },
        start_order=pool.start_order,
        quick=task.options.quick,
    )


class _Turns:
    """How the arms of a cell that is set up take their turns."""

    def __init__(self, cell: CellSetup) -> None:
        self.cell, self.task = cell, cell.task
        self.origin = time.monotonic_ns()  # also the workers' clock: they run on the same host
        self.unrecorded = ""  # why events read calls that CUPTI should read

    def all(self) -> tuple[turns.Pace | None, list[list[Turn]]]:
        """All arms are in memory: rounds of one turn each, until the epoch's median is known well enough."""
        ready = self.cell.ready
        if not ready:
            return None, []
        pace, begin = self._pace(), time.monotonic()
        rounds: list[list[Turn]] = []
        judged = {i for i, state in ready if not state.arm.peer}
        times: list[list[float]] = []
        cycles: list[list[float]] = []  # the verdict rests on times or cycles: whichever settles first ends the epoch
        seed = f"{self.task.options.seed}/{self.task.cell.id}"
        for number, order in enumerate(turns.orders(len(ready), pace.rounds, seed, self.task.epoch)):
            fresh = self.cell.seed + 1000 + number if pace.moves(number) else None
            takers = [ready[i] for i in order if ready[i][1].takes_turns]
            taken = [turn for i, state in takers if (turn := self._turn(i, state, pace, fresh)) is not None]
            rounds.append(turns.levelled(taken))
            row = sorted((turn.arm, turn.value, turn.mhz) for turn in rounds[-1] if turn.arm in judged)
            if len(row) == len(judged) and all(value > 0 for _, value, _ in row):
                times.append([value for _, value, _ in row])
                cycles += [[value * mhz for _, value, mhz in row]] if all(mhz > 0 for *_, mhz in row) else []
            done = any(turns.settled(each, pace.wanted, pace.fewest) for each in (times, cycles))
            done = done or pace.over(len(rounds), time.monotonic() - begin)
            if done or not any(state.takes_turns for _, state in ready):
                break
        return pace, rounds

    def alone(self) -> tuple[turns.Pace | None, list[list[Turn]]]:
        """One arm is in memory at a time: each has its turns in two visits.

        The order of the second visits mirrors that of the first (base, target, target, base; who begins changes by epoch),
        so that an even drift cancels.
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
                if turn is None:
                    break
                columns[i].append(turn)
            self.cell.pool.close()
        count = max(map(len, columns.values()))
        rounds = [turns.levelled([column[n] for column in columns.values() if n < len(column)]) for n in range(count)]
        return dataclasses.replace(pace, rule=f"{ONE_AT_A_TIME}; {pace.rule}"), rounds

    def graphs(self) -> tuple[turns.Pace | None, list[list[Turn]]]:
        """Turns are replays of CUDA graphs (--timer graph). If a side's arm cannot be captured, no side is timed."""
        cell, own = self.cell, [state for state in self.cell.states if not state.arm.peer]
        if cell.crowded:
            self._leave_out(own, CROWDED)
        for state in turns.ranked(cell.states, self.task.epoch - 1):  # the order decides the memory: a graph keeps it
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
        task, kind = self.task, self.cell.device.kind
        timer = self._timer()
        known = [(s.opened, s.captured) for _, s in self.cell.ready if s.opened is not None]
        calls = [captured.replay_ns if captured else opened.call_ns for opened, captured in known]
        opens = [opened.open_ns + (captured.capture_ns if captured else 0.0) for opened, captured in known]
        pace = turns.pace(kind, calls, opens, task.options, task.share, timer)
        return pace if task.rounds is None else turns.allotted(pace, task.rounds, task.share)

    def _timer(self) -> str:
        """What reads the turns. If a rule chooses it, peers do not count."""
        cell, task = self.cell, self.task
        usual = turns.timer_of(cell.device.kind, task.judge)
        if task.timers is None:
            return usual
        own = [state.opened.call_ns for _, state in cell.ready if state.opened is not None and not state.arm.peer]
        workers = [state.arm.worker for state in cell.states]
        timer, self.unrecorded = task.timers.choose(
            task.cell, own, lambda: unrecorded(cell.pool, workers, task.timeout), usual
        )
        for _, state in cell.ready if not cell.alone else ():
            if cell.pool.pid(state.arm.worker) is None:  # its worker died of the question
                cell.open(state)
        return timer

    def _turn(self, index: int, state: ArmState, pace: turns.Pace, fresh: int | None = None) -> Turn | None:
        """One turn of one arm; None when it became the arm's outcome. `fresh`: re-allocate the inputs at this placement."""
        added = self.task.judge == "kernels"
        request = wire.Turn(state.arm.id, pace.calls, pace.timer, placement=fresh, empties=pace.empties, added=added)
        began = time.perf_counter_ns()
        read: wire.Turned | None = self.cell.ask(state, request)
        waited = time.perf_counter_ns() - began
        if read is None:
            return None
        start, end = read.start - self.origin, read.end - self.origin
        # A simulated worker reports times without taking any.
        known = waited if fresh is None and self.cell.device.kind != "simulated" else 0
        return Turn(index, start, end, read.value, read.wall, read.empty, read.mhz, known)


def _uncaptured(states: Sequence[ArmState]) -> list[ArmState]:
    """The sides' arms whose capture was refused."""
    return [state for state in states if state.refused]


def _reject_by_proof(cell: CellSetup, count: int, before: _Proofs, rejected: dict[int, str]) -> None:
    """Compare what each worker has loaded after timing with before: nothing may be wrong, and nothing compiled between."""
    pool, proved = cell.pool, cell.pool.prove()
    for state in cell.states:
        if count and state.takes_turns and state.arm.worker not in proved:
            cell.fail(state, "crash", "its worker ended before it could prove what it had loaded")
    for id, after in proved.items():
        pid, first = before.get(id, (None, None))
        bad = next((p.reason for p in (first, after) if p is not None and not p.ok), "")
        for state in cell.states if bad else ():
            if state.arm.side == id and not state.arm.peer:
                cell.fail(state, "crash", f"proof: {bad}")
        # A worker that was started during the turns has compiled nothing before them.
        earlier = first.compiles if first is not None and pid == pool.pid(id) else 0
        if count and after.compiles > earlier:
            rejected.update(dict.fromkeys(range(count), f"{id} compiled a kernel during timing"))
