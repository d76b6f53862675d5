"""The arms of one cell in one epoch: open them, check their outputs, and turn what fails into the outcome of an arm.

A failure of a workload, a kernel or a worker is not raised.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from abprof.devices import Device
from abprof.measure.lead import Lead
from abprof.measure.pool import WorkerPool
from abprof.records import (
    JUDGED_METRIC,
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
from abprof.system.processes import WorkerDied, WorkerFault, WorkerHung

SAYS_NO = "the workload's check says no"


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


@dataclass
class Handed:
    """What an epoch hands to the next: what checks outside the arms' processes have found, with the same judge, and the lead."""

    judge: int | None = None  # process id of the judge
    right: set[str] = field(default_factory=set)  # arms, of all sides, whose first calls were found right
    # Variants whose timed call was found right on base, each with the choice of its integers (--untrusted).
    timed: set[tuple[str, int]] = field(default_factory=set)
    bytes: int = 0  # of a call's outputs on base, at most
    lead: Lead = field(default_factory=Lead)  # of turns with --untrusted
    keeps: set[str] = field(default_factory=set)  # variants whose outputs do not follow inputs that change in place
    packs: set[str] = field(default_factory=set)  # variants whose outputs do so only after another `prepare`


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
    handed: Handed = field(default_factory=Handed)
    room: float = 0.0  # seconds of turns for which the budget has room


@dataclass
class ArmState:
    """One arm while its cell is measured."""

    arm: Arm
    outcome: Outcome = field(default_factory=lambda: Outcome(status="ok"))
    opened: wire.Opened | None = None
    captured: wire.Captured | None = None  # the arm's CUDA graph (--timer graph)
    turns: int = 0  # turns so far (--untrusted)
    refused: bool = False  # whether the arm's calls could not be captured in a CUDA graph

    @property
    def takes_turns(self) -> bool:
        return self.opened is not None and self.outcome.status in {"ok", "wrong"}


class CellSetup:
    """The arms of one cell. `alone`: whether only one may be in memory at a time."""

    def __init__(self, pool: WorkerPool, device: Device, task: CellTask, *, alone: bool = False) -> None:
        self.pool, self.device, self.task, self.alone = pool, device, task, alone
        self.states = [ArmState(arm) for arm in task.arms]
        seed = f"{task.options.seed}/{task.cell.id}/{task.epoch}"
        self.seed = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:4], "big")
        self._began, self._clock = time.time(), time.monotonic()
        self.checking = 0.0  # seconds spent on output checks, which later epochs do not repeat

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

    def check(self, state: ArmState) -> None:
        """Have the arm's worker check its outputs, if this epoch does."""
        began = time.monotonic()
        # If base's outputs are the reference and base failed, no other side becomes the reference: the next epoch checks.
        checkable = not self.task.by_base or self._after_base(state)
        if not (self.task.check and state.takes_turns and checkable):
            return
        known = state.outcome.check is not None  # by `open`
        checked: wire.Checked | None = None if known else self.ask(state, self._check_request(state))
        if checked is not None:
            self._note(state, checked)
            if not checked.ok:
                self.wrong(state, checked.reason or SAYS_NO)
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
                    self.wrong(state, f"after {calls} timed calls: {checked.reason or SAYS_NO}")
                self.checking += time.monotonic() - began


def _sample(name: str, arm: Arm) -> str:
    """Return the path, in the scratch folder, where the arm's worker stores a sample of its outputs."""
    return f"{arm.side}/{name}-{hashlib.sha256(arm.id.encode()).hexdigest()[:8]}.sample"
