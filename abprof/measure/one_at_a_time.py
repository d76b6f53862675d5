"""A sitting for arms that do not fit into the device's memory together: each is opened alone, and closed again.

Neighbouring turns of both sides, which share a clock and a power state, are what makes pairs quiet; here an arm has its turns
in two visits, and the order of the second mirrors that of the first (base, target, target, base; who begins changes by
epoch), so that a drift that is even cancels. The intervals tell how much worse that is.
"""

from __future__ import annotations

import dataclasses
import time

from abprof.measure import turns
from abprof.measure.arm_state import Seat
from abprof.measure.cell import Sitting
from abprof.records import Status, Turn

RULE = "one side in memory at a time, because together they do not fit"


class OneAtATime(Sitting):
    """See Sitting."""

    alone = True

    def _lost(self, seat: Seat, status: Status, reason: str) -> None:
        """No other arm was open on the worker that died."""
        self._fail(seat, status, reason)
        seat.opened = None

    def _open_all(self) -> None:
        for seat in self.seats:
            self._open(seat)
            opened = time.monotonic()
            self._examine(seat)
            self.once += time.monotonic() - opened
            self.crew.close()

    def _take_turns(self) -> tuple[turns.Pace | None, list[list[Turn]]]:
        order = turns.ranked([(i, s) for i, s in enumerate(self.seats) if s.takes_turns], self.request.epoch - 1)
        if not order:
            return None, []
        pace = self._pace()
        columns: dict[int, list[Turn]] = {i: [] for i, _ in order}
        for visit in (order, order[::-1]):
            for i, seat in visit:
                columns[i] += self._visit(i, seat, pace)
        count = max(map(len, columns.values()))
        rounds = [turns.levelled([column[n] for column in columns.values() if n < len(column)]) for n in range(count)]
        return dataclasses.replace(pace, rule=f"{RULE}; {pace.rule}"), rounds

    def _pace(self) -> turns.Pace:
        """Two rounds at the least: a visit each."""
        pace = super()._pace()
        return dataclasses.replace(pace, rounds=max(2, pace.rounds), fewest=max(2, pace.fewest))

    def _visit(self, index: int, seat: Seat, pace: turns.Pace) -> list[Turn]:
        """Half of an arm's turns, alone in memory."""
        taken: list[Turn] = []
        self._open(seat)
        while seat.takes_turns and len(taken) < pace.rounds // 2:
            turn = self._turn(index, seat, pace)
            if turn is None:
                break
            taken.append(turn)
        self.crew.close()
        return taken
