"""Measure one cell in one epoch: `measure_cell` opens and checks the arms, lets them take turns, and returns a block.

A failure of a workload, a kernel or a worker becomes the outcome of its arm and is not raised.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec

from abprof.devices import Device
from abprof.measure import turns
from abprof.measure.outside_turns import OutsideTurns
from abprof.measure.pool import WorkerPool
from abprof.records import (
    JUDGED_METRIC,
    LONGEST_CALL,
    STANDING_IN,
    Arm,
    Block,
    Cell,
    CheckResult,
    Judge,
    MachineState,
    Options,
    Outcome,
    Status,
    Turn,
)
from abprof.records import messages as wire
from abprof.system import doorway
from abprof.system.processes import WorkerDied, WorkerFault, WorkerHung

KEPT = "it returns what an earlier call made, though its inputs changed in place since and it was prepared again"
_MOST_KEPT = 64  # most calls of a turn whose outputs are all kept (--untrusted)
_MOST_BYTES = 128 << 20  # and most bytes of these in a file
_REPEATS = 4  # calls that a GPU's clock may repeat in a turn, whose outputs need room
_PLACES, _PIECE = 16, 64  # places of a turn's outputs that are read at its reply, and bytes of each
_NO = "the workload's check says no"
_WATCHED, _LONGEST_WATCH = 4, 20_000_000  # turns for each watch of an idle GPU, and ns of a watch
_BUSY, _TWICE = 0.02, 2  # share of the watches in which the GPU may be busy, and watches that must have found it so
CROWDED = "a graph keeps its memory, and the arms do not fit together"


@dataclass
class Timeouts:
    """Operations that timed out (--timeout), and their epochs. A time-out of the control is counted as one of base."""

    epochs: dict[tuple[str, str, str, str], set[int]] = field(default_factory=dict)

    def note(self, cell: str, arm: Arm, epoch: int) -> None:
        """Record that the arm's operation hung in this epoch."""
        self.epochs.setdefault(_operation(cell, arm), set()).add(epoch)

    def skip(self, cell: str, arm: Arm, epoch: int) -> str:
        """Return why the arm's operation is not called in this epoch; "" if it is called."""
        found = self.epochs.get(_operation(cell, arm), set())
        if epoch in found:
            return "not asked again in this epoch"
        return "in two epochs, and not asked again" if len(found) > 1 else ""


def _operation(cell: str, arm: Arm) -> tuple[str, str, str, str]:
    return cell, "base" if arm.side == "control" else arm.side, arm.variant, arm.peer


@dataclass(frozen=True)
class CellTask:
    """One cell to measure in one epoch."""

    cell: Cell
    arms: tuple[Arm, ...]
    epoch: int
    options: Options
    judge: Judge  # the clock whose times are judged
    check: bool = False  # whether to check outputs
    by_base: bool = False  # whether base's outputs are the only reference
    usual: Mapping[str, float] = field(default_factory=dict)  # arm -> median ns of a call in the last epoch
    timeouts: Timeouts = field(default_factory=Timeouts)
    room: float = 0.0  # seconds of turns for which the budget has room


@dataclass
class ArmState:
    """One arm while its cell is measured."""

    arm: Arm
    outcome: Outcome = field(default_factory=lambda: Outcome(status="ok"))
    opened: wire.Opened | None = None
    captured: wire.Captured | None = None  # the arm's CUDA graph (--timer graph)
    turns: int = 0  # turns so far whose inputs changed (--untrusted)
    refused: bool = False  # whether the arm's calls could not be captured in a CUDA graph

    @property
    def takes_turns(self) -> bool:
        return self.opened is not None and self.outcome.status in {"ok", "wrong"}


def measure_cell(pool: WorkerPool, device: Device, task: CellTask, *, alone: bool = False) -> tuple[Block, bool]:
    """Measure one cell in one epoch. `alone`: whether only one arm may be in memory at a time. Return also whether the
    arms do not fit into memory together: then the block is not used."""
    cell = CellSetup(pool, device, task, alone=alone)
    cell.open_all()
    crowded = cell.crowded and not alone and task.judge != "graph"
    turn_taking = _Turns(cell)
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


class CellSetup:
    """Opens and checks the arms of one cell. `alone`: whether only one arm may be in memory at a time."""

    def __init__(self, pool: WorkerPool, device: Device, task: CellTask, *, alone: bool = False) -> None:
        self.pool, self.device, self.task, self.alone = pool, device, task, alone
        self.states = [ArmState(arm) for arm in task.arms]
        seed = f"{task.options.seed}/{task.cell.id}/{task.epoch}"
        self.seed = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:4], "big")
        self._began, self._clock = time.time(), time.monotonic()
        self.checking = 0.0  # seconds spent on output checks, which later epochs do not repeat
        self.handed = 0  # bytes of a call's outputs on base
        self._seeds = (secrets.randbits(31), secrets.randbits(31))  # of inputs of checks outside the arm's process
        self._sample_seed = secrets.randbits(31)  # of what these checks look at; no side learns it
        self._keeps = set[str]()  # variants whose outputs on base do not follow inputs that change in place
        self._packs = set[str]()  # variants whose outputs on base follow changed inputs only after another `prepare`

    def block(self, *, rounds: Sequence[Sequence[Turn]] = (), metric: str = "", **fields: Any) -> Block:
        """Return a block of what was measured since this object was made. `metric`: "" for the judged one."""
        task = self.task
        return Block(
            epoch=task.epoch,
            cell=task.cell.id,
            metric=metric or JUDGED_METRIC[task.judge],
            arms=tuple(state.arm.id for state in self.states),
            began=self._began,
            seconds=time.monotonic() - self._clock,
            rounds=tuple(map(tuple, rounds)),
            outcomes={state.arm.id: state.outcome for state in self.states},
            state=self.device.state() if rounds else MachineState(),
            start_order=self.pool.start_order,
            quick=task.options.quick,
            check_seconds=self.checking,
            **fields,
        )

    @property
    def crowded(self) -> bool:
        """Whether memory ran out while several arms were in memory."""
        return len(self.states) > 1 and any(state.outcome.status == "oom" for state in self.states)

    @property
    def ready(self) -> list[tuple[int, ArmState]]:
        """Return (index, arm) for each arm that takes turns."""
        return [(i, state) for i, state in enumerate(self.states) if state.takes_turns]

    def ask(self, state: ArmState, request: Any, at_reply: Callable[[], None] | None = None) -> Any | None:
        """Send the request to the arm's worker and return the reply; None: the arm failed, and its outcome says why.
        `at_reply` is called before anything else happens."""
        task = self.task
        try:
            worker = self.pool.worker(state.arm.worker)
            if at_reply:
                worker.at_reply = at_reply
            return worker.call(request, task.options.timeout)
        except WorkerFault as fault:
            self.fail(state, cast("Status", fault.status), fault.reason, fault.at)
            if task.judge == "graph" and isinstance(request, wire.Capture | wire.Turn):
                if state.outcome.status == "unsupported":
                    self.refuse_graph(state, state.outcome.reason, spoiled=True)
                else:  # after a failed capture the process is in no state to measure in
                    self.renew(state)
        except WorkerHung as hung:
            task.timeouts.note(task.cell.id, state.arm, task.epoch)
            self.lost(state, "timeout", hung.reason)
        except WorkerDied as died:
            self.lost(state, "crash", died.reason)
        return None

    def fail(self, state: ArmState, status: Status, reason: str, at: str = "") -> None:
        """Set the arm's outcome to a failure with this status and reason."""
        log = self.pool.log_name(state.arm.worker)
        state.outcome = msgspec.structs.replace(state.outcome, status=status, reason=reason, at=at, log=log)

    def wrong(self, state: ArmState, reason: str) -> None:
        """Set the arm's outcome to `wrong`. The arm is then timed only with --allow-wrong."""
        self.fail(state, "wrong", reason)
        if not self.task.options.allow_wrong:
            state.opened = None

    def lost(self, state: ArmState, status: Status, reason: str) -> None:
        """Set the outcome of an arm whose worker ended, and open the worker's other arms in a new worker."""
        self.fail(state, status, reason)
        state.opened = None
        for other in self.states if not self.alone else ():
            if other.arm.worker == state.arm.worker and other.takes_turns:
                self.open(other)

    def renew(self, state: ArmState) -> None:
        """End the arm's worker, because its state may be damaged, and open the worker's other arms in a new worker."""
        self.pool.retire(state.arm.worker)
        self.lost(state, state.outcome.status, state.outcome.reason)

    def refuse_graph(self, state: ArmState, reason: str, *, spoiled: bool) -> None:
        """Record that the arm's calls cannot be captured in a CUDA graph. If `spoiled`, also end the arm's worker."""
        self.fail(state, "unsupported", reason)
        state.opened, state.refused = None, True
        if spoiled and state.arm.peer:
            self.renew(state)
        elif spoiled:
            self.pool.retire(state.arm.worker)

    def open_all(self) -> None:
        """Open and check every arm. The order changes with the epoch, because it decides where inputs lie in memory."""
        if self.alone:
            for state in self.states:
                self.open(state)
                self._check(state)
                self.pool.close()
            return
        for state in turns.ranked(self.states, self.task.epoch - 1):
            self.open(state)
        for state in self.states:  # base first, since other arms' outputs are also compared with base's
            self._check(state)

    def open(self, state: ArmState) -> None:
        """Have the arm's worker make the cell's inputs and a first call."""
        arm, task = state.arm, self.task
        placement = self.seed + self.states.index(state) if task.epoch else 0
        state.opened = None  # if this request ends the worker, `lost` does not open the arm again
        if why := task.timeouts.skip(task.cell.id, arm, task.epoch):
            self.fail(state, "timeout", f"no answer for {task.options.timeout:.0f} s, {why}")
            return
        usual, seed, params = task.usual.get(arm.id, 0.0), task.options.seed, dict(task.cell.params)
        due = task.check and not task.options.untrusted and state.outcome.check is None and self._after_base(state)
        check = self._check_request(state) if due else None
        request = wire.Open(task.cell.workload, params, arm.id, arm.variant, arm.peer, seed, usual, placement, check)
        opened: wire.Opened | None = self.ask(state, request)
        if opened is not None:
            state.opened = opened
            known = {"peak_mem_bytes": opened.peak_mem_bytes, "host_ns": opened.host_ns or None}
            state.outcome = msgspec.structs.replace(state.outcome, **known)
            self.checking += opened.check_ns / 1e9
            if opened.checked is not None:
                self._note(state, opened.checked)

    def _after_base(self, state: ArmState) -> bool:
        """Whether base's outputs, with which others are compared, were checked before the arm's."""
        return state is self.states[0] or self.states[0].outcome.check is not None

    def _note(self, state: ArmState, checked: wire.Checked) -> None:
        result = CheckResult(**{f.name: getattr(checked, f.name) for f in dataclasses.fields(CheckResult)})
        state.outcome = msgspec.structs.replace(state.outcome, check=result, facts=checked.facts)

    def _check(self, state: ArmState) -> None:
        began = time.monotonic()
        # If base's outputs are the reference and base failed, no other side becomes the reference: the next epoch checks.
        checkable = not self.task.by_base or self._after_base(state)
        again = self.task.options.untrusted  # code may behave otherwise in later epochs
        if not ((self.task.check or again) and state.takes_turns and checkable):
            return
        # With --untrusted, later epochs check outside the arm's process alone: its own could lie in each.
        if self.task.check or self.task.by_base:
            known = state.outcome.check is not None  # by `open`
            checked: wire.Checked | None = None if known else self.ask(state, self._check_request(state))
            if checked is not None:
                self._note(state, checked)
                if not checked.ok:
                    self.wrong(state, checked.reason or _NO)
        if self.task.options.check == "outside" and state.outcome.status == "ok" and not state.arm.peer:
            self._check_outside(state)
        self.checking += time.monotonic() - began

    def _check_request(self, state: ArmState) -> wire.Check:
        name = hashlib.sha256(f"{self.pool.factory.token} {self.task.cell.id}".encode()).hexdigest()[:24]
        against = _sample(name, self.states[0].arm) if state is not self.states[0] else ""
        return wire.Check(state.arm.id, f"{name}.expected", _sample(name, state.arm), against)

    def check_again(self, calls: int) -> None:
        """Check the arms' outputs again after `calls` timed calls, but only of arms that passed their first check."""
        for state in self.states:
            began = time.monotonic()
            if calls and state.takes_turns and state.outcome.check is not None and state.outcome.status == "ok":
                request = dataclasses.replace(self._check_request(state), again=True)
                checked: wire.Checked | None = self.ask(state, request)
                if checked is not None and not checked.ok:
                    self.wrong(state, f"after {calls} timed calls: {checked.reason or _NO}")
                self.checking += time.monotonic() - began

    # ------------------------------------------------------------ --check outside
    #
    # A side's worker holds the reference, the check and the inputs' seed in the process of the package under test, which
    # could patch the check, and remember the answers for a seed. So a judge, a worker without any package, makes inputs
    # from random seeds and checks the outputs that the side's worker hands over. Between two calls the inputs get the values
    # of a second seed in place: outputs that were kept from an earlier call are then wrong.

    def _check_outside(self, state: ArmState) -> None:
        try:
            fault = self._fault_outside(state)
        except (WorkerFault, WorkerDied) as error:
            at = error.at if isinstance(error, WorkerFault) else ""
            self.fail(state, "crash", f"its outputs could not be checked outside its process: {error.reason}", at)
            state.outcome = msgspec.structs.replace(state.outcome, check=None)  # the next epoch checks again
            state.opened = None
            return
        if fault:
            self.wrong(state, fault)

    def _fault_outside(self, state: ArmState) -> str:
        """Check the arm's outputs in another process and return what is wrong; "": nothing, or the arm failed.

        Calls the operation twice, and changes its inputs in place in between. If only the second outputs are wrong,
        `prepare` is called again, since it may have transformed the inputs. If they are then still wrong, but not on
        base, the package returns old outputs. Raises WorkerFault and WorkerDied if the other process fails.
        """
        first, second = self._seeds
        found = self._examined_outside(state, second)
        plain = self._examined_outside(state, None) if found else None
        if not found or plain is None:
            return ""
        if plain:
            return f"checked outside its process (seed {first}): {plain}"
        kept = self._examined_outside(state, second, anew=True)
        if state.arm.side == "base":
            (self._keeps if kept else self._packs).add(state.arm.variant)
        blamed = kept and state.arm.side != "base" and state.arm.variant not in self._keeps
        return f"{KEPT} (seeds {first}, {second})" if blamed else ""

    def drawn(self, state: ArmState, turn: wire.Turn) -> wire.Turn:
        """Return the turn with inputs that change and outputs that are kept, for --untrusted."""
        if not self.task.options.untrusted:
            return turn
        name = hashlib.sha256(state.arm.id.encode()).hexdigest()[:24]
        anew, draw = state.arm.variant in self._packs, [*self._seeds, secrets.randbits(31)]
        outputs = f"{state.arm.side}/{name}.calls"
        return dataclasses.replace(turn, draw=draw, outputs=outputs, anew=anew, shared=self.fitting > 0)

    @property
    def fitting(self) -> int:
        """Return how many calls' outputs fit into the judge's GPU memory in a turn; 0: use a file."""
        return max(0, self.pool.factory.room // max(1, self.handed) - _REPEATS)

    def at_reply(self, state: ArmState, turn: wire.Turn) -> list[list[Any]]:
        """Have another process read the outputs of a turn that has just ended: all by the judge, or some in their file."""
        if not turn.shared:
            return _glimpsed(self.pool.factory.scratch / turn.outputs, self.pool.factory.scratch, turn.calls)
        size = min(self.pool.factory.room, self.handed * (turn.calls + _REPEATS))
        try:
            self.pool.judge().call(wire.Snap(state.arm.worker, size), self.task.options.timeout)
        except (WorkerFault, WorkerDied) as error:
            self.fail(state, "crash", f"the worker that reads outputs failed: {error.reason}")
        return []

    def check_drawn(self, state: ArmState, turn: wire.Turn, read: wire.Turned, seen: list[list[Any]]) -> None:
        """Have the judge check what one timed call of the turn returned, and that it is what was `seen` at the reply.

        Whether the turn is checked, and which of its calls, is drawn after the turn, so code cannot foresee it. The share
        of turns falls with their number: of 8 turns 3 are checked, of 100 turns 8. Half of the times it is the last call,
        whose work could go on after the reply.
        """
        if not turn.draw:
            return
        began, state.turns, cell = time.monotonic(), state.turns + 1, self.task.cell
        try:
            if state.takes_turns and state.arm.under_test and not secrets.randbelow(1 + (state.turns + 1) // 2):
                request = wire.Examine(
                    cell.workload, dict(cell.params), self.task.options.seed, turn.outputs, draw=turn.draw,
                    calls=turn.calls, layouts=read.layouts, pick=secrets.choice([turn.calls - 1, secrets.randbits(31)]), seen=seen,
                    shared=turn.shared, sample_seed=self._sample_seed,
                )  # fmt: skip
                checked: wire.CheckResult = self.pool.judge().call(request, self.task.options.timeout)
                if not checked.ok:
                    self.wrong(state, f"a timed call's outputs, on inputs drawn for it: {checked.reason or _NO}")
        except WorkerFault as error:
            if error.status != "unsupported":  # outputs that the check does not take
                self.wrong(state, f"a timed call's outputs: {error.reason}")
            for other in self.states if error.status == "unsupported" else ():
                self.fail(other, "unsupported", error.reason)
                other.opened = None
        except WorkerDied as error:
            self.fail(state, "crash", f"the worker that checks timed calls died: {error.reason}")
            state.opened = None
        self.checking += time.monotonic() - began

    def _examined_outside(self, state: ArmState, again: int | None, *, anew: bool = False) -> str | None:
        cell, seed = self.task.cell, self._seeds[0]
        name = f"{state.arm.side}/{hashlib.sha256(f'{cell.id} {state.arm.id}'.encode()).hexdigest()[:24]}.outputs"
        if self.ask(state, wire.Hand(state.arm.id, seed, name, again, anew)) is None:
            return None
        if state.arm.side == "base":
            with contextlib.suppress(OSError):
                self.handed = (self.pool.factory.scratch / name).lstat().st_size
        request = wire.Examine(cell.workload, dict(cell.params), seed, name, again, sample_seed=self._sample_seed)
        checked: wire.CheckResult = self.pool.judge().call(request, self.task.options.timeout)
        return "" if checked.ok else checked.reason or _NO


def _sample(name: str, arm: Arm) -> str:
    """Return the path, in the scratch folder, where the arm's worker stores a sample of its outputs."""
    return f"{arm.side}/{name}-{hashlib.sha256(arm.id.encode()).hexdigest()[:8]}.sample"


def _glimpsed(path: Path, root: Path, calls: int) -> list[list[Any]]:
    """Return the size of the file in which a turn's outputs are, and its bytes at places drawn now, half of them in the last
    call's outputs: what a thread or the GPU writes there later is not what was returned (wire.Examine.seen)."""
    with contextlib.suppress(OSError), doorway.opened(path, root) as file:
        size = os.fstat(file.fileno()).st_size
        spans = [size // (calls if number % 2 else 1) or 1 for number in range(_PLACES if size else 0)]
        places = [size - 1 - secrets.randbelow(span) for span in spans]
        return [[size, ""], *([place, os.pread(file.fileno(), _PIECE, place).hex()] for place in places)]
    return [[-1, ""]]


class _Turns:
    def __init__(self, cell: CellSetup) -> None:
        self.cell, self.task = cell, cell.task
        self.origin = time.monotonic_ns()  # also the workers' clock: they run on the same host
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
            rounds.append(turns.levelled(taken))
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
        task, kind = self.task, self.cell.device.kind
        timer = turns.timer_of(kind, task.judge)
        ready = [state for _, state in self.cell.ready]
        if task.options.untrusted:  # another side could report what makes turns short
            ready = [state for state in ready if state.arm.side == "base"] or ready
        known = [(s.opened, s.captured) for s in ready if s.opened is not None]
        calls = [captured.replay_ns if captured else opened.call_ns for opened, captured in known]
        opens = [opened.open_ns + (captured.capture_ns if captured else 0.0) for opened, captured in known]
        pace = turns.pace(kind, calls, opens, task.options, timer, task.room)
        most = max(1, min(_MOST_KEPT, self.cell.fitting or _MOST_BYTES // max(1, self.cell.handed)))
        return dataclasses.replace(pace, calls=min(pace.calls, most)) if task.options.untrusted else pace

    def _turn(self, index: int, state: ArmState, pace: turns.Pace, fresh: int | None = None) -> Turn | None:
        """Measure one turn of an arm; None if that failed. `fresh`: where to allocate new inputs; None: keep the
        inputs."""
        request = wire.Turn(state.arm.id, pace.calls, pace.timer, placement=fresh, empties=pace.empties)
        request, seen = self.cell.drawn(state, request), list[list[Any]]()
        at_reply = (lambda: seen.extend(self.cell.at_reply(state, request))) if request.draw else None
        read: wire.Turned | None = self.cell.ask(state, request, at_reply)
        if read is None or state.outcome.status == "crash":
            return None
        worker = self.cell.pool.worker(state.arm.worker)
        waited, _ = worker.waited, self.compiles.setdefault(worker.pid, read.compiles)
        if request.draw and not all(0 < one <= LONGEST_CALL for one in (read.value, read.wall)):
            self.cell.wrong(state, "its timer read an impossible time")  # a round without it could hide what is slow
            return None
        if request.draw and self.cell.device.kind == "cuda" and not secrets.randbelow(_WATCHED):
            self._watch(state, min(waited, _LONGEST_WATCH))
        self.cell.check_drawn(state, request, read, seen)
        start, end = read.start - self.origin, read.end - self.origin
        # A simulated worker reports times that have not passed. With --untrusted each turn counts, also one that first
        # makes inputs anew: code could forge the turns that the parent's clock does not read.
        known = waited if (fresh is None or request.draw) and self.cell.device.kind != "simulated" else 0
        return Turn(index, start, end, read.value, read.wall, read.empty, read.mhz, known)

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
