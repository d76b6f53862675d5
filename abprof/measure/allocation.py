"""How many rounds an epoch of a cell takes, once its earlier epochs say what rounds and epochs cost and how they scatter.

Kalibera and Jones, "Rigorous benchmarking in reasonable time" (ISMM 2013): for a given time the effect is known best with

    r = ceil(sqrt(c_epoch / c_round * T_round^2 / T_epoch^2)),  T_round^2 = S_round^2,  T_epoch^2 = S_epoch^2 - S_round^2 / r

rounds an epoch: c what one more of either costs, S^2 the variances seen. An epoch's value is a median, so S_round^2 is
pi / 2 times the variance of the rounds' log ratios (that of a normal median), taken from their median absolute deviation.
Only scatter and cost are looked at, never a middle, so the number of rounds cannot favour a verdict.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from abprof.measure import turns
from abprof.records import Arm, Block, Record
from abprof.verdict import stats


@dataclass(frozen=True)
class Pilot:
    """What one epoch of a cell taught."""

    values: tuple[float, ...]  # of each judged arm after the first: the median log ratio to it
    variances: tuple[float, ...]  # of one round's, as far as it moves the median
    rounds: int
    round_seconds: float
    epoch_seconds: float  # what the epoch cost beside its rounds, the cell's share of the workers' start included


_MOST = 1e6  # rounds; the usual rules bound them far below


class Scatter(Record, frozen=True, kw_only=True):
    """What a cell's epochs cost and how they scattered; variances are of log ratios."""

    within: float  # of one round, as far as it moves the median; 0: not known
    between: float  # of epochs, without what their rounds explain
    round_seconds: float
    epoch_seconds: float
    epochs: int
    inside_seconds: float = 0.0  # of an epoch's rounds


class Allocation:
    """Learns from the blocks of one invocation."""

    def __init__(self) -> None:
        self._pilots: dict[str, list[Pilot]] = {}

    def learn(self, block: Block, started: float) -> None:
        """Take note of a block; `started`: the cell's share of the seconds in which the workers started."""
        pilot = observed(block, started)
        if pilot is not None:
            self._pilots.setdefault(block.cell, []).append(pilot)

    def rounds(self, cell: str) -> int | None:
        """Rounds for the cell's next epoch; None where too little is known, or epochs scatter no more than their rounds
        explain: then the usual rules hold."""
        pilots = self._pilots.get(cell, [])
        known = scatter(pilots) if len(pilots) >= stats.LOOKS[0] else None
        return best(known) if known else None


def best(known: Scatter) -> int | None:
    """The formula above; None where epochs scatter no more than their rounds explain, as far as so many can tell, or nobody knows
    how rounds scatter: epochs took a single one."""
    if known.within <= 0 or known.between <= 0 or known.round_seconds <= 0 or _by_chance(known):
        return None
    squared = known.epoch_seconds / known.round_seconds * known.within / known.between
    if not squared >= 0:  # what lies in the state folder need not be what a run learnt
        return None
    return max(1, math.ceil(math.sqrt(min(squared, _MOST**2))))


def _by_chance(known: Scatter) -> bool:
    """Whether epochs that differ by nothing but their rounds would scatter so in about one run of ten. A variance of four epochs
    is known to a factor of two: a small rest after a subtraction would ask for many rounds of seconds each."""
    rounds = known.inside_seconds / known.round_seconds
    if rounds <= 0 or known.epochs < 2:  # an older run did not keep it
        return False
    explained = known.within / rounds
    return known.between + explained <= explained * stats.variance_by_chance(known.epochs)


def scatter(pilots: Sequence[Pilot]) -> Scatter | None:
    """Of the comparison that asks for the most rounds, over these epochs, where one asks for any; None where not every epoch has
    the same comparisons."""
    arms = {len(pilot.values) for pilot in pilots}
    if len(arms) != 1:
        return None
    found = [_scatter(pilots, arm) for arm in range(arms.pop())]
    return max(found, key=lambda each: best(each) or 0)


def _scatter(pilots: Sequence[Pilot], arm: int) -> Scatter:
    inside = statistics.fmean(p.variances[arm] / p.rounds for p in pilots)  # S_round^2 / r, rounds may have differed
    usual = statistics.median(p.epoch_seconds for p in pilots)
    return Scatter(
        within=statistics.fmean(p.variances[arm] for p in pilots),
        between=max(0.0, statistics.variance([p.values[arm] for p in pilots]) - inside),
        round_seconds=statistics.fmean(p.round_seconds for p in pilots),
        epoch_seconds=usual,
        epochs=len(pilots),
        inside_seconds=statistics.fmean(p.rounds * p.round_seconds for p in pilots),
    )


def observed(block: Block, started: float) -> Pilot | None:
    """What this block teaches; None without two rounds of two judged arms, or the single one that it took: then how rounds
    scatter is not known."""
    judged = [i for i, arm in enumerate(block.arms) if not Arm.of(arm).peer]
    rejected = set(block.rejected)
    kept = [row for i, row in enumerate(block.rounds) if i not in rejected]
    times = _logs([{t.arm: t.value for t in row} for row in kept], judged)
    cycles = _logs([{t.arm: t.value * t.mhz for t in row} for row in kept], judged)
    if not times or len(times[0]) < (1 if len(block.rounds) == 1 else 2):
        return None
    logs = cycles if cycles and len(cycles[0]) == len(times[0]) and _quieter(cycles, times) else times
    inside = sum(max(t.end for t in row) - min(t.start for t in row) for row in block.rounds if row) / 1e9
    return Pilot(
        values=tuple(statistics.median(each) for each in logs),
        variances=tuple(math.pi / 2 * turns.spread(each) ** 2 for each in logs),
        rounds=len(logs[0]),
        round_seconds=inside / len(block.rounds),
        epoch_seconds=max(0.0, block.seconds - inside) + started,
    )


def _logs(rows: Sequence[Mapping[int, float]], judged: Sequence[int]) -> list[list[float]]:
    """The log ratios of each judged arm but the first to it, of the rows that have them all."""
    whole = [row for row in rows if all(0 < row.get(arm, 0.0) < math.inf for arm in judged)]
    return [[math.log(row[arm]) - math.log(row[judged[0]]) for row in whole] for arm in judged[1:]]


def _quieter(one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> bool:
    """Whether `one` scatters less: then it will be judged (abprof/verdict/rounds.py)."""
    return sum(map(turns.spread, one)) < sum(map(turns.spread, other))
