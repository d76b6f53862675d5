"""What earlier epochs decide about the next one: whether it begins, how many rounds it takes, what is not tried again.

Only cost and scatter are looked at, never a middle, so nothing here can favour a verdict.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from abprof.measure import turns
from abprof.records import Arm, Block
from abprof.verdict import stats

_RESERVE = 0.9  # epochs are planned for this part of the time left: the next may take longer than the last
_MOST_ROUNDS = 1e6  # the usual rules bound them far below
_HANGS = 2  # epochs after which an operation that hung in them is not tried again


@dataclass
class Budget:
    """Seconds of measuring, and the cost of an epoch: `fixed` at least, and `more` with all of its rounds.

    No verdict comes before the first planned look. Until then epochs are shortened to fit: the epoch is the statistical
    unit, and fewer rounds only make its value noisier. Student's statistic of values with unequal variances exceeds its
    critical values less often, not more, below a level of 0.083 (Bakirov & Szekely 2005).
    """

    left: float
    done: int  # epochs that count towards the first look
    fixed: float  # a guess at first, then what the last epoch took
    more: float

    def share(self) -> float:
        """Of the rounds beyond the fewest, the part (0 to 1) that the next epoch takes so that the first look fits."""
        needed = stats.LOOKS[0] - self.done
        if needed <= 0 or not self.more:
            return 1.0
        return min(1.0, max(0.0, (_RESERVE * self.left / needed - self.fixed) / self.more))

    def affords(self, share: float) -> bool:
        """Whether another epoch fits."""
        return self.fixed + share * self.more <= self.left

    def charge(self, seconds: float, once: float, more: float, share: float) -> None:
        """Book an epoch: `once` of its seconds no other epoch repeats, `more` went into rounds beyond the fewest."""
        self.left -= seconds
        self.done += 1
        self.fixed = max(0.0, seconds - once - more)
        if share and more:
            self.more = more / share


@dataclass(frozen=True)
class Pilot:
    """What one epoch of a cell teaches."""

    values: tuple[float, ...]  # median log ratio of each judged arm to the first
    variances: tuple[float, ...]  # of one round, as far as it moves that median
    rounds: int
    round_seconds: float
    epoch_seconds: float  # beside its rounds, with the cell's share of the workers' start


class Allocation:
    """Rounds of a cell's next epoch, once its earlier epochs of this invocation tell cost and scatter.

    Kalibera and Jones, "Rigorous benchmarking in reasonable time" (ISMM 2013): in a given time the effect is known best
    with `r = ceil(sqrt(c_epoch / c_round * T_round^2 / T_epoch^2))` rounds an epoch, where `T_round^2 = S_round^2`,
    `T_epoch^2 = S_epoch^2 - S_round^2 / r`, c are costs and S^2 the variances seen. An epoch's value is a median, so
    S_round^2 is pi / 2 times the variance of the rounds' log ratios.
    """

    def __init__(self) -> None:
        self._pilots: dict[str, list[Pilot]] = {}

    def learn(self, block: Block, started: float) -> None:
        """Take a block into account. `started`: the cell's share of the seconds in which the workers started."""
        pilot = pilot_of(block, started)
        if pilot is not None:
            self._pilots.setdefault(block.cell, []).append(pilot)

    def rounds(self, cell: str) -> int | None:
        """Rounds for the next epoch; None before the first look, or if epochs scatter as their rounds explain."""
        pilots = self._pilots.get(cell, [])
        if len(pilots) < stats.LOOKS[0] or len({len(pilot.values) for pilot in pilots}) != 1:
            return None
        return max((best(pilots, arm) or 0 for arm in range(len(pilots[0].values))), default=0) or None


def best(pilots: Sequence[Pilot], arm: int = 0) -> int | None:
    """The formula for one comparison; None if epochs that differ by their rounds alone would scatter so in one run of ten."""
    within = statistics.fmean(pilot.variances[arm] for pilot in pilots)
    round_seconds = statistics.fmean(pilot.round_seconds for pilot in pilots)
    explained = statistics.fmean(pilot.variances[arm] / pilot.rounds for pilot in pilots)
    between = max(0.0, statistics.variance([pilot.values[arm] for pilot in pilots]) - explained)
    if within <= 0 or between <= 0 or round_seconds <= 0:
        return None
    chance = within / statistics.fmean(pilot.rounds * pilot.round_seconds for pilot in pilots) * round_seconds
    if between + chance <= chance * stats.variance_by_chance(len(pilots)):
        return None
    epoch_seconds = statistics.median(pilot.epoch_seconds for pilot in pilots)
    squared = epoch_seconds / round_seconds * within / between
    return max(1, math.ceil(math.sqrt(min(squared, _MOST_ROUNDS**2))))


def pilot_of(block: Block, started: float) -> Pilot | None:
    """What this block teaches; None without two kept rounds of two judged arms (one, where a single one was taken)."""
    judged = [i for i, arm in enumerate(block.arms) if not arm.startswith("peer:")]
    kept = [row for i, row in enumerate(block.rounds) if i not in set(block.rejected)]
    times = _logs([{turn.arm: turn.value for turn in row} for row in kept], judged)
    cycles = _logs([{turn.arm: turn.value * turn.mhz for turn in row} for row in kept], judged)
    if not times or len(times[0]) < (1 if len(block.rounds) == 1 else 2):
        return None
    same = cycles and len(cycles[0]) == len(times[0])
    logs = cycles if same and sum(map(turns.spread, cycles)) < sum(map(turns.spread, times)) else times
    inside = sum(max(turn.end for turn in row) - min(turn.start for turn in row) for row in block.rounds if row) / 1e9
    return Pilot(
        values=tuple(statistics.median(each) for each in logs),
        variances=tuple(math.pi / 2 * turns.spread(each) ** 2 for each in logs),
        rounds=len(logs[0]),
        round_seconds=inside / len(block.rounds),
        epoch_seconds=max(0.0, block.seconds - inside) + started,
    )


def _logs(rows: Sequence[Mapping[int, float]], judged: Sequence[int]) -> list[list[float]]:
    """Log ratios of each judged arm but the first to it, over the rows that have them all."""
    whole = [row for row in rows if all(0 < row.get(arm, 0.0) < math.inf for arm in judged)]
    return [[math.log(row[arm]) - math.log(row[judged[0]]) for row in whole] for arm in judged[1:]]


@dataclass
class Timeouts:
    """Operations that gave no answer within --timeout, by epoch. A control's operation is base's."""

    epochs: dict[tuple[str, str, str, str], set[int]] = field(default_factory=dict)

    def note(self, cell: str, arm: Arm, epoch: int) -> None:
        """It hung in this epoch."""
        self.epochs.setdefault(_operation(cell, arm), set()).add(epoch)

    def any(self, cell: str, arm: Arm) -> bool:
        """Whether it hung in any epoch of this invocation."""
        return _operation(cell, arm) in self.epochs

    def skip(self, cell: str, arm: Arm, epoch: int) -> str:
        """Why it is not tried in this epoch; "" if it is."""
        found = self.epochs.get(_operation(cell, arm), set())
        if epoch in found:
            return "not asked again in this epoch"
        return "in two epochs, and not asked again" if len(found) >= _HANGS else ""


def _operation(cell: str, arm: Arm) -> tuple[str, str, str, str]:
    return cell, "base" if arm.side == "control" else arm.side, arm.variant, arm.peer
