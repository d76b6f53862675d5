"""Cells timed by CUDA graphs: all of them where that was asked for (--timer graph), launch-bound ones beside their own turns.

A cell is launch-bound where the host needs longer to enqueue a call than the device to run it, or where a call spans less
than 20 us: there an event pair tells as much of launches as of kernels. Its span stays what is judged. Some rounds more, of
the same calls replayed from graphs, tell what the kernels alone take: the device's part without the host's, caches warm.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import msgspec

from abprof.measure import turns
from abprof.measure.arm_state import Request, Seat
from abprof.measure.cell import Sitting
from abprof.records import Block, Cell, Outcome, Turn
from abprof.records import messages as wire
from abprof.system.processes import WorkerFault

_SHARE = 0.25  # of the rounds, and of the seconds, that the judged turns may have: this is evidence, and no verdict
_REFUSALS = 3  # cells of a workload that cannot be captured, after which its others are not tried: each costs a process
NOT_TRIED = f"{_REFUSALS} other cells of this workload could not be captured"
CROWDED = "a graph keeps its memory, and the arms do not fit together"


class Known:
    """What a run has learnt of its cells: which are launch-bound, and which of those have no graphs."""

    def __init__(self) -> None:
        self._why: dict[str, str] = {}
        self._without: dict[str, set[str]] = {}  # workload -> cells

    def why(self, cell: Cell, opened: Sequence[wire.Opened]) -> str:
        """Why it is launch-bound, by the readings of its first opening; "" where it is not."""
        return self._why.setdefault(cell.id, launch_bound(opened))

    def settled(self, cell: Cell) -> bool:
        """Whether it is known to have none."""
        return cell.id in self._without.get(cell.workload, ())

    def hopeless(self, cell: Cell) -> bool:
        """Whether so many others of its workload have none that it is not tried."""
        return len(self._without.get(cell.workload, ())) >= _REFUSALS

    def has_none(self, cell: Cell) -> None:
        """It cannot be captured."""
        self._without.setdefault(cell.workload, set()).add(cell.id)


def launch_bound(opened: Sequence[wire.Opened]) -> str:
    """The rule: in words where one of a cell's arms meets it, else "". Calls of 50 ms and more are never replayed."""
    known = [one for one in opened if 0 < one.call_ns < wire.LONG_CALL]
    if len(known) < len(opened):
        return ""
    for one in known:
        if one.host_ns > one.call_ns:
            host, span = one.host_ns / 1e3, one.call_ns / 1e3
            return f"launch-bound: the host needs {host:.1f} us to enqueue a call that spans {span:.1f} us"
    shortest = turns.short([one.call_ns for one in known])
    return f"launch-bound: a call spans {shortest / 1e3:.1f} us, less than {turns.SHORT / 1e3:g}" if shortest else ""


class Graphed(Sitting):
    """Turns are replays of graphs. Where one side's arm has none, none of the sides' is timed: see Sitting."""

    def __init__(self, *of: Any) -> None:
        super().__init__(*of)
        self.captures: dict[str, wire.Captured] = {}
        self.refused: list[Seat] = []  # of the sides, not of peers

    @property
    def crowded(self) -> bool:
        """One at a time they could not be replayed in turns."""
        return False

    def _take_turns(self) -> tuple[turns.Pace | None, list[list[Turn]]]:
        if super().crowded:
            self._leave_out(CROWDED)
        for seat in turns.ranked(self.seats, self.request.epoch - 1):  # a graph keeps its memory
            if seat.takes_turns and not self.refused:
                self._capture(seat)
        if not self.refused:
            taken = super()._take_turns()
            if not self.refused:
                return taken
        lost = self.refused[0]
        self._leave_out(f"{lost.arm.id} cannot be captured: {lost.outcome.reason}")
        return None, []

    def _capture(self, seat: Seat) -> None:
        captured: wire.Captured | None = self._ask(seat, wire.Capture(seat.arm.id))
        if captured is None:
            return
        self.captures[seat.arm.id] = captured
        if captured.why:
            self._refuse(seat, f"{captured.why}: {captured.reason}", spoiled=captured.spoiled)

    def _faulted(self, seat: Seat, request: Any, fault: WorkerFault) -> None:
        """What fails at a capture, or at a turn that captures anew, leaves the process in no state to measure in."""
        super()._faulted(seat, request, fault)
        if isinstance(request, wire.Capture | wire.Turn):
            status, reason = seat.outcome.status, seat.outcome.reason
            if status == "unsupported":
                self._refuse(seat, reason, spoiled=True)
            else:
                self._renew(seat)

    def _refuse(self, seat: Seat, reason: str, *, spoiled: bool) -> None:
        self._fail(seat, "unsupported", reason)
        seat.opened = None
        if not seat.arm.peer:  # the end of this cell: nothing needs its worker any more
            self.refused.append(seat)
        if spoiled and seat.arm.peer:
            self._renew(seat)
        elif spoiled:
            self.crew.retire(seat.arm.worker)

    def _renew(self, seat: Seat) -> None:
        """A new worker in the place of this arm's, with its other arms open on it."""
        self.crew.retire(seat.arm.worker)
        self._lost(seat, seat.outcome.status, seat.outcome.reason)

    def _leave_out(self, reason: str) -> None:
        for seat in self.seats:
            if not seat.arm.peer and seat.takes_turns:
                if seat.outcome.status == "ok":
                    self._fail(seat, "unsupported", f"not timed in a CUDA graph: {reason}")
                seat.opened = None

    def _costs(self) -> tuple[list[float], list[float]]:
        """Of a replay, and of inputs that are made again with their graph."""
        seats = [seat for seat in self.seats if seat.takes_turns and seat.opened is not None]
        known = [(seat.opened, self.captures[seat.arm.id]) for seat in seats if seat.arm.id in self.captures]
        opens = [one.open_ns + captured.capture_ns for one, captured in known if one is not None]
        return [captured.replay_ns for _, captured in known], opens


class Beside(Graphed):
    """A launch-bound cell's replays, after its own turns and while it is open."""

    def __init__(self, of: Sitting, why: str) -> None:
        share = _SHARE * of.request.share
        asked = dataclasses.replace(of.request, judge="graph", check=False, profile=False, share=share, rounds=None)
        super().__init__(of.crew, of.device, dataclasses.replace(asked, outside=False, timers=None))
        self.why = why
        self.seats = [Seat(s.arm, Outcome(status="ok"), s.opened) for s in of.seats if s.takes_turns and not s.arm.peer]

    def run(self) -> Block:
        """Capture, take turns, prove."""
        block = self._timed()
        rule = f"{self.why}; {block.rule}" if block.rule else self.why
        nodes = {id: captured.nodes for id, captured in self.captures.items() if not captured.why}
        return msgspec.structs.replace(block, beside=True, rule=rule, nodes=nodes)

    def _pace(self) -> turns.Pace:
        pace = super()._pace()
        return dataclasses.replace(pace, seconds=_SHARE * pace.seconds)

    def not_tried(self) -> Block:
        """Without a turn: it would not succeed."""
        for seat in self.seats:
            self._fail(seat, "unsupported", f"not tried: {NOT_TRIED}")
            seat.opened = None
        return self.run()


class LaunchBound(Sitting):
    """Ordinary turns; of a launch-bound cell then some by graphs."""

    def _look_beside(self, block: Block) -> None:
        request, known = self.request, self.request.graphs
        seats = [seat for seat in self.seats if seat.takes_turns and not seat.arm.peer]
        if known is None or not block.rounds or not seats or known.settled(request.cell):
            return
        why = known.why(request.cell, [seat.opened for seat in seats if seat.opened is not None])
        if not why:
            return
        beside = Beside(self, why)
        self.beside = beside.not_tried() if known.hopeless(request.cell) else beside.run()
        if not self.beside.rounds:
            known.has_none(request.cell)


def sitting_for(request: Request) -> type[Sitting]:
    """How this cell is measured, all arms in memory."""
    if request.judge == "graph":
        return Graphed
    beside = request.judge == "gpu" and request.settings.timer == "auto" and not request.settings.quick
    return LaunchBound if beside else Sitting
