"""Plan an epoch (calls per turn, number of rounds, order of the arms), and find the rounds to reject."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from abprof.records import LONGEST_CALL, Judge, Options, Turn
from abprof.records import messages as wire

T = TypeVar("T")
FEWEST, MOST = 8, 400  # fewest and most rounds of an epoch
# On a GPU at one clock, ratios of calls of 10 ms and more scatter by 0.05 to 0.3 %: two mirrored pairs of rounds show whether
# more are needed. Ratios of long calls scatter by 0.1 %: one pair. Calls of 0.13 s differ between fresh processes as much as
# between rounds: one round (docs/MEASUREMENT.md).
_FEWEST_MIDDLE, _FEWEST_LONG, _FEWEST_SINGLE = 4, 2, 1
_SINGLE = 1.3e8  # ns of a call from which one round is enough
_TELL = 0.5  # %: a margin at which four epochs of the fewest rounds are enough; a smaller margin takes twice the rounds
# Least ns of a turn: a longer call has a turn of its own, shorter calls share a turn. A GPU's event pair resolves about
# 0.5 us, and on a CPU a wake-up of the OpenMP pool costs some 50 us.
_SHORTEST_TURN = {"cuda": 300_000.0, "cpu": 1_000_000.0, "simulated": 0.0}
# With --untrusted, so that the scatter of abprof's own work between calls, which the parent's clock reads with them, averages
# out.
_UNTRUSTED_TURN = {"cuda": 20e6, "cpu": 10e6, "simulated": 0.0}
TIMER = {"cuda": "cuda_event", "cpu": "cpu_clock", "simulated": "simulated"}
CUDA_GRAPH, CUPTI, WALL_CLOCK = "cuda_graph", "cupti", "wall_clock"
_CLOCKED = {TIMER["cuda"], CUDA_GRAPH}  # timers whose turns read the device's clock
# Seconds of turns per arm, cell and epoch. Fresh processes differ, so many short epochs say more than few long ones, in the
# same time (docs/MEASUREMENT.md). On a GPU these seconds include flushes of the L2, and empty launches beside short calls.
_SECONDS = 0.05
_QUICK = 3  # times as many seconds with --quick: a single epoch shows its own scatter
# Times as many seconds, at least and at most, on a CPU that others load: there rounds scatter more than fresh processes.
_NOISY = 2, 16
_EARLY = 2  # rounds between re-allocations in the first `FEWEST` rounds, which then see four placements
_EMPTIES = 8  # most empty launches of a turn: their median is known to some 30 ns, single readings scatter by 100 ns
_MOST_CALLS = 1000  # most calls of a turn
_MOST_RECORDED = 8  # most calls of a turn timed by CUPTI: each has its own reading, and takes the host some 0.3 ms
_MARGIN_OVER_ERROR = 8.0  # the margin over the standard error at which an epoch's median is known well enough
_LOOSE = 4.0  # times this error may remain after the usual rounds: more epochs then say more than more rounds


@dataclass(frozen=True)
class Pace:
    """How a cell is measured in one epoch: timer, calls per turn, and rounds."""

    timer: str
    calls: int  # per turn
    rounds: int  # usual rounds
    most: int  # most rounds, if the median is not known well after the usual ones
    fresh_every: int  # rounds between re-allocations of the inputs
    wanted: float  # standard error of a median log ratio at which the epoch has enough rounds
    fewest: int = FEWEST  # fewest rounds, however long they take
    early: bool = False  # whether to re-allocate in the first `FEWEST` rounds too
    empties: int = 0  # empty launches timed in each turn (see `levelled`)
    seconds: float = math.inf  # elapsed seconds after which the epoch has enough rounds

    def over(self, rounds: int, seconds: float) -> bool:
        """Whether the epoch may end after `rounds` rounds and `seconds` seconds."""
        return rounds >= self.fewest and rounds % 2 == 0 and seconds >= self.seconds

    def enough(self, rounds: Sequence[Sequence[float]]) -> bool:
        """Whether the epoch may end after `rounds`, each with the times of all arms in ns."""
        error = self.wanted if len(rounds) < self.rounds else _LOOSE * self.wanted
        return settled(rounds, error, self.fewest)

    def moves(self, number: int) -> bool:
        """Whether to re-allocate all arms' inputs before round `number` (0 is the first)."""
        early = self.early and number < FEWEST and number % _EARLY == 0
        return number > 0 and (early or number % self.fresh_every == 0)


def timer_of(kind: str, judge: Judge) -> str:
    """Return the name of the timer to judge by (`judge`: gpu, graph, kernels or wall) on a device of `kind`."""
    if judge == "wall" and kind == "cuda":
        return WALL_CLOCK
    return {"graph": CUDA_GRAPH, "kernels": CUPTI}.get(judge, TIMER[kind])


def pace(
    kind: str, call_ns: Sequence[float], open_ns: Sequence[float], options: Options, timer: str = "", room: float = 0.0
) -> Pace:
    """Return the pace for arms whose warm calls take `call_ns` (0: unknown) and whose inputs take `open_ns` to make.

    `timer`: "" for the default of `kind`. `room`: seconds of turns for which the budget has room, if rounds scatter on a
    CPU. On a GPU fresh processes differ more than the rounds of one process.
    """
    narrowest = min(options.margin, options.precision or options.margin)
    wanted = narrowest / 100 / _MARGIN_OVER_ERROR
    timer = timer or TIMER[kind]
    known = [ns for ns in call_ns if ns > 0]
    if not known:
        return Pace(timer, 1, FEWEST, FEWEST, FEWEST, wanted)
    together, long = sum(known) * len(call_ns) / len(known), min(known) >= wire.LONG_CALL
    most = _MOST_RECORDED if timer == CUPTI else _MOST_CALLS
    shared, calls = (
        max(1, min(most, math.ceil(shortest[kind] / max(min(known), 1.0))))
        for shortest in (_SHORTEST_TURN, _UNTRUSTED_TURN if options.untrusted else _SHORTEST_TURN)
    )
    budget = _SECONDS * 1e9 * len(call_ns) * (_QUICK if options.quick else 1)
    fewest = fewest_rounds(kind, min(known), timer)
    fewest = max(fewest, _FEWEST_MIDDLE) if options.quick else fewest  # a single epoch shows its own scatter
    rounds = max(fewest, min(MOST, round(budget / (together * calls))))
    if long and timer in _CLOCKED and not options.quick:
        rounds = 2 * fewest if narrowest < _TELL else fewest
    rounds += rounds % 2 if rounds > 1 else 0  # whole mirrored pairs; the next epoch mirrors a single round
    noisy = min(max(room * 1e9, _NOISY[0] * budget), _NOISY[1] * budget) if kind == "cpu" else 0.0
    # Re-allocating, with an untimed call after it, may cost a fifth of the turns' time, and early as much as the turns.
    again, spent = sum(open_ns) + together, rounds * together * calls
    affordable = 0.2 * spent / max(again, 1.0)
    return Pace(
        timer=timer,
        calls=calls,
        rounds=rounds,
        most=max(rounds, 2 * min(MOST // 2, int(noisy / (together * calls) / 2))),
        fresh_every=max(2, math.ceil(rounds / max(affordable, 1.0))),
        wanted=wanted,
        fewest=fewest,
        early=(FEWEST // _EARLY - 1) * again <= spent,
        empties=min(shared, _EMPTIES) if timer == TIMER["cuda"] and shared > 1 else 0,
        seconds=budget / 1e9 if kind == "cuda" else math.inf,
    )


def fewest_rounds(kind: str, call_ns: float, timer: str = "") -> int:
    """Return the least number of rounds in an epoch, given the time of a call of its fastest arm.

    A single round needs a timer that reads the device's clock; else the order of the calls could bias their times.
    """
    if kind != "cuda" or call_ns < wire.MIDDLE_CALL:
        return FEWEST
    if call_ns < wire.LONG_CALL:
        return _FEWEST_MIDDLE
    return _FEWEST_SINGLE if call_ns >= _SINGLE and (timer or TIMER[kind]) in _CLOCKED else _FEWEST_LONG


def levelled(row: Sequence[Turn]) -> list[Turn]:
    """Correct the turns of a round for different launch costs. Change nothing if a reading is not positive.

    The cost of a launch differs between processes by some 0.1 us, 1 % of a 10 us kernel. Each turn therefore also times
    empty launches. Their time is subtracted from the turn's value, and their mean time over the round is added.
    """
    if not all(turn.empty > 0 and turn.value > 0 for turn in row):
        return list(row)
    usual = statistics.fmean(turn.empty for turn in row) if row else 0.0
    return [msgspec.structs.replace(turn, value=turn.value - turn.empty + usual) for turn in row]


def settled(rounds: Sequence[Sequence[float]], wanted: float, fewest: int = FEWEST) -> bool:
    """Whether an epoch has enough rounds to know each arm's median log ratio to the first arm.

    `rounds`: per round, the times of all arms in ns. `wanted`: the largest standard error of a median, which for n
    normal values is sqrt(pi / 2) sd / sqrt(n). The ratios' size plays no part, so an early stop favours no verdict.
    """
    if len(rounds) < max(fewest, _FEWEST_MIDDLE) or len(rounds) % 2:
        return False
    for arm in range(1, len(rounds[0])):
        logs = [math.log(times[arm]) - math.log(times[0]) for times in rounds]
        deviation = spread(logs) if len(logs) >= FEWEST else statistics.stdev(logs)
        if math.sqrt(math.pi / 2) * deviation / math.sqrt(len(logs)) > wanted:
            return False
    return True


def spread(values: Sequence[float]) -> float:
    """Return 1.4826 times the median absolute deviation, an estimate of the standard deviation of normal values."""
    middle = statistics.median(values)
    return 1.4826 * statistics.median(abs(value - middle) for value in values)


def rejected(rounds: Sequence[Sequence[Turn]], origin: int, bad: Sequence[tuple[int, int, str]]) -> dict[int, str]:
    """Return round number -> why to reject the round: an impossible reading, or a bad period of the device.

    `bad`: (from, to, reason) of each such period, in ns. `origin`: the time in ns from which turns count start and end.
    """
    found: dict[int, str] = {}
    for number, row in enumerate(rounds):
        start = origin + min((turn.start for turn in row), default=0)
        end = origin + max((turn.end for turn in row), default=0)
        why = [why for bad_from, bad_to, why in bad if start <= bad_to and end >= bad_from]
        readings = [reading for turn in row for reading in (turn.value, turn.wall)]
        if max(readings, default=0.0) > LONGEST_CALL:
            why = ["the timer read more than thirty years"]
        if min(readings, default=1.0) <= 0:
            why = ["the timer read zero or less"]
        if why:
            found[number] = why[0]
    return found


def ranked(items: Sequence[T], number: int) -> list[T]:
    """Return the items in the order for epoch `number` (0 is the first).

    Odd epochs exchange the first two items (base, target). In 2 n epochs, each of n items is twice at every place.
    """
    return [items[place] for place in _rotated(range(len(items)), number)]


def orders(arms: int, rounds: int, seed: int | str, epoch: int = 1) -> list[list[int]]:
    """Return the order of the arms in each round of an epoch: random, and balanced over the epochs.

    Every second round reverses the round before, so that a drift cancels. With one round per epoch, every second epoch
    reverses the epoch before.
    """
    if rounds == 1:
        return [_pair(arms, seed, (epoch - 1) // 2)[(epoch - 1) % 2]]
    pairs = (_pair(arms, seed, number) for number in itertools.count(max(0, epoch - 1)))
    return list(itertools.islice(itertools.chain.from_iterable(pairs), rounds))


def _pair(arms: int, seed: int | str, number: int) -> tuple[list[int], list[int]]:
    first = _rotated(random.Random(f"{seed}/{number // (2 * max(1, arms))}").sample(range(arms), arms), number)
    return first, first[::-1]


def _rotated(order: Sequence[int], number: int) -> list[int]:
    at = number // 2 % max(1, len(order))
    exchanged = {0: 1, 1: 0} if number % 2 and len(order) > 1 else {}
    return [exchanged.get(one, one) for one in (*order[at:], *order[:at])]


def epoch_cost(kind: str, arms: int) -> float:
    """Return rough seconds of an epoch to start the workers and prepare the arms."""
    return {"cuda": 0.4, "cpu": 1.0, "simulated": 0.2}[kind] + 0.03 * arms
