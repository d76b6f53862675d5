"""What is asked of a sitting, and one arm while its cell is open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from abprof.measure.timeouts import Hung
from abprof.records import Arm, Cell, Judge, Options, Outcome
from abprof.records import messages as wire

if TYPE_CHECKING:
    from abprof.measure.timers import Timers


@dataclass(frozen=True)
class Request:
    """What is asked of one sitting."""

    cell: Cell
    arms: tuple[Arm, ...]
    epoch: int
    options: Options
    check: bool  # correctness too: the first sitting of a cell in this invocation
    profile: bool  # a profiled pass before the turns: what a call launches,
    phases: bool  # and the phases that the workload declares
    judge: Judge
    timeout: float
    share: float = 1.0  # of the rounds that the rules give (abprof/measure/budget.py)
    rounds: int | None = None  # instead of those, where earlier epochs tell (abprof/measure/allocation.py)
    outside: bool = False  # check outputs in a process without code under test, too
    usual: Mapping[str, float] = field(default_factory=dict)  # arm -> ns of its warm call in an earlier epoch
    by_base: bool = False  # nothing but base's outputs says what is right
    hung: Hung = field(default_factory=Hung)
    timers: Timers | None = None  # where a rule chooses the timer; None: it is that of `judge`
    late: bool = (
        False  # the profiled pass comes when nothing more is to be read by CUPTI (abprof/measure/profiled_pass.py)
    )


@dataclass
class Seat:
    """One arm while its cell is open."""

    arm: Arm
    outcome: Outcome
    opened: wire.Opened | None = None

    @property
    def own(self) -> bool:
        """Whether it is of a side, as peers and the control, which is base again, are not."""
        return not self.arm.peer and self.arm.side != "control"

    @property
    def takes_turns(self) -> bool:
        return self.opened is not None and self.outcome.status in {"ok", "wrong"}
