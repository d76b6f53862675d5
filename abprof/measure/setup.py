"""One cell made ready: every arm opened, checked and profiled. What goes wrong is that arm's outcome."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from typing import Any, cast

import msgspec

from abprof.devices import Device
from abprof.measure import turns
from abprof.measure.arm_state import Request, Seat
from abprof.measure.outside_check import Outside, why_not
from abprof.measure.pool import Crew
from abprof.records import Arm, Census, CheckResult, Outcome, Status
from abprof.records import messages as wire
from abprof.system.processes import WorkerDied, WorkerFault, WorkerHung

NEVER_LAUNCHED = "a call launches nothing on the device: what was timed is not the kernel's work"


class Opening:
    """The arms of a cell in one epoch, all in memory. Never raises for what a workload, a kernel or a worker does."""

    def __init__(self, crew: Crew, device: Device, request: Request) -> None:
        self.crew = crew
        self.device = device
        self.request = request
        self.seats = [Seat(arm, Outcome(status="ok")) for arm in request.arms]
        seed = f"{request.options.seed}/{request.cell.id}/{request.epoch}"
        self.seed = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:4], "big")
        self.once = 0.0  # seconds spent on checks and phases
        self.checking = 0.0  # seconds spent on checks
        self.outside = Outside(crew, request.cell, request.timeout) if request.outside else None

    @property
    def crowded(self) -> bool:
        """Whether memory ran out while other arms held theirs: one at a time, it may not."""
        return len(self.seats) > 1 and any(seat.outcome.status == "oom" for seat in self.seats)

    def calls(self) -> dict[str, float]:
        """Each open arm's warm call, ns."""
        return {seat.arm.id: seat.opened.call_ns for seat in self.seats if seat.opened is not None}

    # ------------------------------------------------------------ asking a worker

    def _ask(self, seat: Seat, request: Any) -> Any | None:
        """The worker's reply, or None when it became the seat's outcome."""
        try:
            return self.crew.worker(seat.arm.worker).call(request, self.request.timeout)
        except WorkerFault as fault:
            self._faulted(seat, request, fault)
        except WorkerHung as hung:
            self.request.hung.note(self.request.cell.id, seat.arm, self.request.epoch)
            self._lost(seat, "timeout", hung.reason)
        except WorkerDied as died:
            self._lost(seat, "crash", died.reason)
        return None

    def _faulted(self, seat: Seat, request: Any, fault: WorkerFault) -> None:
        """The worker lives on."""
        del request
        self._fail(seat, cast("Status", fault.status), fault.reason, fault.at)

    def _fail(self, seat: Seat, status: Status, reason: str, at: str = "") -> None:
        log = self.crew.log_name(seat.arm.worker)
        seat.outcome = msgspec.structs.replace(seat.outcome, status=status, reason=reason, at=at, log=log)

    def _lost(self, seat: Seat, status: Status, reason: str) -> None:
        """The worker died of this arm. The others that were open on it are opened again in a new one."""
        self._fail(seat, status, reason)
        seat.opened = None
        for other in self.seats:
            if other.arm.worker == seat.arm.worker and other.takes_turns:
                self._open(other)

    # ------------------------------------------------------------ what is asked of each arm

    def _open_all(self) -> None:
        for seat in turns.ranked(self.seats, self.request.epoch - 1):  # who comes first gets other memory
            self._open(seat)
        opened = time.monotonic()
        for seat in self.seats:  # base first: the others' outputs are also compared with its
            self._examine(seat)
        self.once = time.monotonic() - opened

    def _examine(self, seat: Seat) -> None:
        """What is asked of an arm once: its check, its phases."""
        if self.request.check and seat.takes_turns and self._checkable(seat):
            begin = time.monotonic()
            self._check(seat)
            self.checking += time.monotonic() - begin
        if self.request.profile and seat.own and seat.takes_turns and seat.opened is not None:
            self._profile(seat, seat.opened.call_ns)

    def _checkable(self, seat: Seat) -> bool:
        """Whether there is something to check with. Where that is base's outputs and base failed, another side's must not
        become what is right: the next epoch checks."""
        return not self.request.by_base or seat is self.seats[0] or self.seats[0].outcome.check is not None

    def _profile(self, seat: Seat, call_ns: float) -> None:
        """The profiled pass. A call that launches nothing is no kernel's work, however right its outputs are."""
        asked = turns.profiled(seat.arm.id, call_ns, phases=self.request.phases)
        phased: wire.Phased | None = self._ask(seat, asked)
        if phased is None:
            return
        told = self.request.phases and (phased.phases or phased.total)
        times = {**phased.phases, "total": phased.total} if told else None
        census = msgspec.convert(dataclasses.asdict(phased.census), Census)
        seat.outcome = msgspec.structs.replace(seat.outcome, phases=times, census=census)
        if census.on_device and not census.missing and not census.launches:
            self._fail(seat, "wrong", NEVER_LAUNCHED)
            if not self.request.options.allow_wrong:
                seat.opened = None

    def _open(self, seat: Seat) -> None:
        arm, cell, settings = seat.arm, self.request.cell, self.request.options
        placement = self.seed + self.seats.index(seat) if self.request.epoch else 0
        usual = self.request.usual.get(arm.id, 0.0)
        asked = wire.Open(
            cell.workload, dict(cell.params), arm.id, arm.variant, arm.peer, settings.seed, usual, placement
        )
        seat.opened = None  # while it is asked: if its worker dies, it is not one of the others
        if why := self.request.hung.not_again(cell.id, arm, self.request.epoch):
            self._fail(seat, "timeout", f"no answer for {self.request.timeout:.0f} s, {why}")
            return
        opened = self._ask(seat, asked)
        if opened is not None and opened.status == "ok":
            seat.opened = opened
            told = {"peak_mem_bytes": opened.peak_mem_bytes, "host_ns": opened.host_ns or None}
            seat.outcome = msgspec.structs.replace(seat.outcome, **told)
        elif opened is not None:
            self._fail(seat, cast("Status", opened.status), opened.reason)

    def _check(self, seat: Seat) -> None:
        name = hashlib.sha256(f"{self.crew.token} {self.request.cell.id}".encode()).hexdigest()[:24]
        against = _sample(name, self.seats[0].arm) if seat is not self.seats[0] else ""
        checked = self._ask(seat, wire.Check(seat.arm.id, f"{name}.expected", _sample(name, seat.arm), against))
        if checked is not None:
            self._checked(seat, checked)
        if self.outside is not None and seat.outcome.status == "ok" and not seat.arm.peer:
            self._check_outside(seat, self.outside)

    def _check_outside(self, seat: Seat, outside: Outside) -> None:
        try:
            fault = outside.fault(seat.arm, lambda request: self._ask(seat, request))
        except (WorkerFault, WorkerDied) as error:
            self._fail(seat, "crash", why_not(error), error.at if isinstance(error, WorkerFault) else "")
            seat.outcome = msgspec.structs.replace(seat.outcome, check=None)  # the next epoch checks again
            seat.opened = None
            return
        if fault:
            self._fail(seat, "wrong", fault)
            if not self.request.options.allow_wrong:
                seat.opened = None

    def _checked(self, seat: Seat, checked: wire.Checked) -> None:
        result = CheckResult(
            ok=checked.ok,
            reason=checked.reason,
            max_abs=checked.max_abs,
            max_rel=checked.max_rel,
            digest=checked.digest,
            base_max_abs=checked.base_max_abs,
            compared=checked.compared,
        )
        seat.outcome = msgspec.structs.replace(seat.outcome, check=result, facts=checked.facts)
        if not checked.ok:
            self._fail(seat, "wrong", checked.reason or "the workload's check says no")
            if not self.request.options.allow_wrong:
                seat.opened = None  # a speed is never measured on a wrong answer


def _sample(name: str, arm: Arm) -> str:
    """The file of an arm's sampled outputs, in its side's room."""
    return f"{arm.side}/{name}-{hashlib.sha256(arm.id.encode()).hexdigest()[:8]}.sample"
