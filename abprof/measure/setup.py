"""Set-up of one cell in one epoch: open every arm, check its outputs, run its profiled pass.

Whatever a workload, a kernel or a worker does wrong becomes the outcome of that arm; nothing here raises for it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from abprof.devices import Device
from abprof.measure import turns
from abprof.measure.pacing import Timeouts
from abprof.measure.pool import WorkerPool
from abprof.measure.timers import Timers
from abprof.records import Arm, Cell, Census, CheckResult, Judge, Options, Outcome, Status
from abprof.records import messages as wire
from abprof.system.processes import WorkerDied, WorkerFault, WorkerHung

NEVER_LAUNCHED = "a call launches nothing on the device: what was timed is not the kernel's work"
KEPT = "it returns what an earlier call made, though its inputs changed in place since and it was prepared again"


@dataclass(frozen=True)
class CellTask:
    """What to do with one cell in one epoch."""

    cell: Cell
    arms: tuple[Arm, ...]
    epoch: int
    options: Options
    judge: Judge  # whose clock is judged
    timeout: float  # seconds of one request to a worker
    check: bool = False  # check outputs
    outside: bool = False  # check them also in a process without code under test (--check outside)
    by_base: bool = False  # base's outputs are the only reference
    profile: bool = False  # run the profiled pass before the turns
    phases: bool = False  # read the workload's phases in it
    late: bool = False  # run the profiled pass after all turns of the package (see `profile_cell`)
    share: float = 1.0  # of the rounds beyond the fewest that the budget affords
    rounds: int | None = None  # rounds by allocation; None: by the usual rules
    usual: Mapping[str, float] = field(default_factory=dict)  # arm -> ns of its warm call in an earlier epoch
    timeouts: Timeouts = field(default_factory=Timeouts)
    timers: Timers | None = None  # chooses the timer by a rule; None: `judge` fixes it


@dataclass
class ArmState:
    """One arm while its cell is measured."""

    arm: Arm
    outcome: Outcome = field(default_factory=lambda: Outcome(status="ok"))
    opened: wire.Opened | None = None
    captured: wire.Captured | None = None  # its CUDA graph (--timer graph)
    refused: bool = False  # no CUDA graph could be captured of it

    @property
    def own(self) -> bool:
        """True for an arm of a side; False for peers and the control."""
        return not self.arm.peer and self.arm.side != "control"

    @property
    def takes_turns(self) -> bool:
        return self.opened is not None and self.outcome.status in {"ok", "wrong"}


class CellSetup:
    """The arms of one cell, and the requests that make them ready. `alone`: only one arm is in memory at a time."""

    def __init__(self, pool: WorkerPool, device: Device, task: CellTask, *, alone: bool = False) -> None:
        self.pool, self.device, self.task, self.alone = pool, device, task, alone
        self.states = [ArmState(arm) for arm in task.arms]
        seed = f"{task.options.seed}/{task.cell.id}/{task.epoch}"
        self.seed = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:4], "big")
        self.once = 0.0  # seconds of checks and profiled passes, which other epochs do not repeat
        self.checking = 0.0  # seconds of checks
        self._seeds = (secrets.randbits(31), secrets.randbits(31))  # of inputs for checks outside the arm's process
        self._keeps = set[str]()  # variants whose outputs on base do not follow inputs that change in place

    @property
    def crowded(self) -> bool:
        """Whether memory ran out while several arms were in memory."""
        return len(self.states) > 1 and any(state.outcome.status == "oom" for state in self.states)

    @property
    def ready(self) -> list[tuple[int, ArmState]]:
        """The arms that take turns, with their indexes."""
        return [(i, state) for i, state in enumerate(self.states) if state.takes_turns]

    def ask(self, state: ArmState, request: Any) -> Any | None:
        """The reply of the arm's worker, or None when the fault became the arm's outcome."""
        task = self.task
        try:
            return self.pool.worker(state.arm.worker).call(request, task.timeout)
        except WorkerFault as fault:
            self.fail(state, cast("Status", fault.status), fault.reason, fault.at)
            if task.judge == "graph" and isinstance(request, wire.Capture | wire.Turn):
                self._capture_failed(state)
        except WorkerHung as hung:
            task.timeouts.note(task.cell.id, state.arm, task.epoch)
            self.lost(state, "timeout", hung.reason)
        except WorkerDied as died:
            self.lost(state, "crash", died.reason)
        return None

    def fail(self, state: ArmState, status: Status, reason: str, at: str = "") -> None:
        """Set the arm's outcome."""
        log = self.pool.log_name(state.arm.worker)
        state.outcome = msgspec.structs.replace(state.outcome, status=status, reason=reason, at=at, log=log)

    def wrong(self, state: ArmState, reason: str) -> None:
        """Set the outcome `wrong`: without --allow-wrong the arm is not timed."""
        self.fail(state, "wrong", reason)
        if not self.task.options.allow_wrong:
            state.opened = None

    def lost(self, state: ArmState, status: Status, reason: str) -> None:
        """The arm's worker ended. Other arms that were open on it are opened again on a new one."""
        self.fail(state, status, reason)
        state.opened = None
        for other in self.states if not self.alone else ():
            if other.arm.worker == state.arm.worker and other.takes_turns:
                self.open(other)

    def renew(self, state: ArmState) -> None:
        """End the arm's worker, whose state cannot be trusted any more; its other arms move to a new one."""
        self.pool.retire(state.arm.worker)
        self.lost(state, state.outcome.status, state.outcome.reason)

    def _capture_failed(self, state: ArmState) -> None:
        """After a failed capture the process is in no state to measure in."""
        if state.outcome.status == "unsupported":
            self.refuse_graph(state, state.outcome.reason, spoiled=True)
        else:
            self.renew(state)

    def refuse_graph(self, state: ArmState, reason: str, *, spoiled: bool) -> None:
        """The arm's calls cannot be captured in a CUDA graph. `spoiled`: its process must end."""
        self.fail(state, "unsupported", reason)
        state.opened, state.refused = None, True
        if spoiled and state.arm.peer:
            self.renew(state)
        elif spoiled:
            self.pool.retire(state.arm.worker)

    def open_all(self) -> None:
        """Open, check and profile every arm; the order of opening changes with the epoch, since it decides the memory."""
        if self.alone:
            for state in self.states:
                self.open(state)
                self._examine(state)
                self.pool.close()
            return
        for state in turns.ranked(self.states, self.task.epoch - 1):
            self.open(state)
        for state in self.states:  # base first: other outputs are also compared with its outputs
            self._examine(state)

    def open(self, state: ArmState) -> None:
        """Open the cell for one arm: make its inputs and a first call."""
        arm, task = state.arm, self.task
        placement = self.seed + self.states.index(state) if task.epoch else 0
        state.opened = None  # if its worker dies of this request, the arm is not opened again
        if why := task.timeouts.skip(task.cell.id, arm, task.epoch):
            self.fail(state, "timeout", f"no answer for {task.timeout:.0f} s, {why}")
            return
        usual, seed, params = task.usual.get(arm.id, 0.0), task.options.seed, dict(task.cell.params)
        request = wire.Open(task.cell.workload, params, arm.id, arm.variant, arm.peer, seed, usual, placement)
        opened: wire.Opened | None = self.ask(state, request)
        if opened is not None and opened.status == "ok":
            state.opened = opened
            known = {"peak_mem_bytes": opened.peak_mem_bytes, "host_ns": opened.host_ns or None}
            state.outcome = msgspec.structs.replace(state.outcome, **known)
        elif opened is not None:
            self.fail(state, cast("Status", opened.status), opened.reason)

    def _examine(self, state: ArmState) -> None:
        began = time.monotonic()
        # If base's outputs are the reference and base failed, no other side becomes the reference: the next epoch checks.
        checkable = not self.task.by_base or state is self.states[0] or self.states[0].outcome.check is not None
        if self.task.check and state.takes_turns and checkable:
            self._check(state)
            self.checking += time.monotonic() - began
        if self.task.profile and state.own and state.takes_turns and state.opened is not None:
            self._profile(state, state.opened.call_ns)
        self.once += time.monotonic() - began

    def _profile(self, state: ArmState, call_ns: float) -> None:
        phased: wire.Phased | None = self.ask(state, turns.profiled(state.arm.id, call_ns, phases=self.task.phases))
        if phased is None:
            return
        recorded = self.task.phases and (phased.phases or phased.total)
        times = {**phased.phases, "total": phased.total} if recorded else None
        census = msgspec.convert(dataclasses.asdict(phased.census), Census)
        state.outcome = msgspec.structs.replace(state.outcome, phases=times, census=census)
        if census.on_device and not census.missing and not census.launches:
            self.wrong(state, NEVER_LAUNCHED)

    def _check(self, state: ArmState) -> None:
        name = hashlib.sha256(f"{self.pool.token} {self.task.cell.id}".encode()).hexdigest()[:24]
        against = _sample(name, self.states[0].arm) if state is not self.states[0] else ""
        request = wire.Check(state.arm.id, f"{name}.expected", _sample(name, state.arm), against)
        checked: wire.Checked | None = self.ask(state, request)
        if checked is not None:
            result = msgspec.convert({f: getattr(checked, f) for f in CheckResult.__struct_fields__}, CheckResult)
            state.outcome = msgspec.structs.replace(state.outcome, check=result, facts=checked.facts)
            if not checked.ok:
                self.wrong(state, checked.reason or "the workload's check says no")
        if self.task.outside and state.outcome.status == "ok" and not state.arm.peer:
            self._check_outside(state)

    # ------------------------------------------------------------ --check outside
    #
    # A side's worker holds the reference, the check and the inputs' seed in the process of the package that it checks,
    # which could patch the one and remember answers for the other. So a judge, a worker without any package, makes inputs
    # from random seeds and checks what the side's worker hands over. A second seed's values are put into the inputs in
    # place, between two calls: outputs that were kept from an earlier call are then wrong.

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

    def _fault_outside(self, state: ArmState) -> str | None:
        """What the judge found wrong; "" for nothing, None if the arm's worker had no answer.

        Outputs that are right on fresh inputs and wrong on inputs changed in place may come from the workload's `prepare`,
        which may work inputs up. They are wrong after another `prepare` only if the package keeps them, unless base's are
        wrong too. Raises WorkerFault and WorkerDied when the judge cannot answer.
        """
        first, second = self._seeds
        found = self._examined_outside(state, second)
        if not found:
            return found
        plain = self._examined_outside(state, None)
        if plain is None or plain:
            return plain and f"checked outside its process (seed {first}): {plain}"
        kept = self._examined_outside(state, second, anew=True)
        if kept and state.arm.side == "base":
            self._keeps.add(state.arm.variant)
        blamed = kept and state.arm.side != "base" and state.arm.variant not in self._keeps
        return f"{KEPT} (seeds {first}, {second})" if blamed else kept and ""

    def _examined_outside(self, state: ArmState, again: int | None, *, anew: bool = False) -> str | None:
        cell, seed = self.task.cell, self._seeds[0]
        name = f"{state.arm.side}/{hashlib.sha256(f'{cell.id} {state.arm.id}'.encode()).hexdigest()[:24]}.outputs"
        if self.ask(state, wire.Hand(state.arm.id, seed, name, again, anew)) is None:
            return None
        request = wire.Examine(cell.workload, dict(cell.params), seed, name, again)
        checked: wire.Checked = self.pool.judge().call(request, self.task.timeout)
        return "" if checked.ok else checked.reason or "the workload's check says no"


def _sample(name: str, arm: Arm) -> str:
    """The file of an arm's sampled outputs, in the folder of its side."""
    return f"{arm.side}/{name}-{hashlib.sha256(arm.id.encode()).hexdigest()[:8]}.sample"
