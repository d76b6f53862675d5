"""Cells timed by replays of CUDA graphs (`--timer graph`)."""

from __future__ import annotations

from typing import Any

from abprof.measure import turns
from abprof.measure.arm_state import Seat
from abprof.measure.cell import Sitting
from abprof.records import Turn
from abprof.records import messages as wire
from abprof.system.processes import WorkerFault

CROWDED = "a graph keeps its memory, and the arms do not fit together"


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
