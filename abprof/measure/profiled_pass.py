"""A cell's profiled pass by itself, when nothing more is to be read by CUPTI in its processes.

What a call launches and its phases come of torch's profiler, after which CUPTI tells ticks for nanoseconds. So cells that
CUPTI reads have their turns first, and at the end of their package's part of the epoch are opened once more for the pass.
"""

from __future__ import annotations

import dataclasses
import time

import msgspec

from abprof.measure.cell import Sitting
from abprof.measure.one_at_a_time import OneAtATime
from abprof.records import JUDGED_METRIC, Block, Outcome

RULE = "the profiled pass, after all turns that CUPTI reads"


class ProfiledPass(OneAtATime):
    """Of the sides' arms that took turns in a sitting, which `timer` read."""

    def __init__(self, of: Sitting, timer: str) -> None:
        arms = tuple(seat.arm for seat in of.seats if seat.takes_turns and seat.own)
        request = dataclasses.replace(of.request, arms=arms, check=False, outside=False, profile=True)
        super().__init__(of.crew, of.device, request)
        self.timer = timer

    def run(self) -> Block:
        """A block without rounds: what the pass told of each arm, or why it could not."""
        began, clock = time.time(), time.monotonic()
        self._open_all()
        return Block(
            epoch=self.request.epoch,
            cell=self.request.cell.id,
            metric=JUDGED_METRIC[self.request.judge],
            timer=self.timer,
            calls=0,
            rule=RULE,
            arms=tuple(seat.arm.id for seat in self.seats),
            began=began,
            seconds=time.monotonic() - clock,
            rounds=(),
            outcomes={seat.arm.id: _of_the_pass(seat.outcome) for seat in self.seats},
            start_order=self.crew.start_order,
            quick=self.request.options.quick,
        )


def _of_the_pass(outcome: Outcome) -> Outcome:
    """Without what the opening told, which was told with the turns."""
    return msgspec.structs.replace(outcome, host_ns=None, peak_mem_bytes=None)
