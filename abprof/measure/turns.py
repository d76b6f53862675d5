"""Rules fixed beforehand: turn length, number of rounds, order inside a round, which are dropped. The same
for every arm of a cell."""

from __future__ import annotations

import dataclasses
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
FEWEST, MOST = 8, 400  # rounds of an epoch
# On a GPU ratios at one clock scatter by 0.05 to 0.3 % from 10 ms up: two mirrored pairs tell whether that will do. Of long
# calls, 0.1 %, one pair; of those that take 0.13 s fresh processes differ by as much as rounds: one (docs/MEASUREMENT.md).
_FEWEST_MIDDLE, _FEWEST_LONG, _FEWEST_SINGLE = 4, 2, 1
_SINGLE = 1.3e8  # ns
_TELL = 0.5  # %: the margin for which four epochs of so few rounds are enough; of a closer one they take twice as many


@dataclass(frozen=True)
class Pace:
    """How a cell is measured in one epoch."""

    timer: str
    calls: int  # per turn
    rounds: int
    fresh_every: int  # rounds between re-allocations of the inputs
    wanted: float  # standard error of a pair's median log ratio at which the epoch has enough rounds
    rule: str
    fewest: int = FEWEST  # rounds, however short the budget
    early: bool = False  # re-allocate in the fewest rounds too, whatever it costs
    empties: int = 0  # empty launches timed in each turn (see `levelled`)
    seconds: float = math.inf  # on the wall: an epoch whose rounds have taken so long has enough of them

    def over(self, rounds: int, seconds: float) -> bool:
        """Whether so many rounds have taken the epoch's time: whole mirrored pairs, no fewer than the fewest."""
        return rounds >= self.fewest and rounds % 2 == 0 and seconds >= self.seconds

    def moves(self, number: int) -> bool:
        """Whether all arms' inputs are re-allocated before this round (0 is the first: they were just made)."""
        early = self.early and number < FEWEST and number % _EARLY == 0
        return number > 0 and (early or number % self.fresh_every == 0)


# ns: a turn is a single call from here up; shorter calls share one. A GPU's event pair resolves about 0.5 us, and on a
# CPU a wake-up of the OpenMP pool costs some 50 us.
_SHORTEST_TURN = {"cuda": 300_000.0, "cpu": 1_000_000.0, "simulated": 0.0}
TIMER = {"cuda": "cuda_event", "cpu": "cpu_clock", "simulated": "simulated"}
SHORT = 20_000.0  # ns: of a call that spans less, an event pair tells as much of launches as of kernels
CUDA_GRAPH, CUPTI, WALL_CLOCK = "cuda_graph", "cupti", "wall_clock"
_CLOCKED = {TIMER["cuda"], CUDA_GRAPH}  # their turns read the device's clock
# Seconds of turns per arm, cell and epoch. Enough for the median of a round's ratios to be quieter than the epoch. A GPU's
# short calls take several times as long as their times say (the L2 is flushed before each, launches are timed beside
# them): there these are seconds on the wall, for what epochs differ by only more epochs can tell (docs/MEASUREMENT.md).
_SECONDS = {"cuda": 0.35, "cpu": 0.30, "simulated": 0.35}
_EARLY = 2  # rounds between re-allocations in the fewest: an epoch that is settled by then has seen four placements
_PHASED = 1e8  # ns of calls under a profiler: the rows wait for them, and long calls do not need many
_LONG_OPEN = 1e9  # ns: inputs that take so long to make are not made again for that
_EMPTIES = 8  # at most; their median is known to some 30 ns where single ones scatter by 100
_MOST_RECORDED = 8  # calls of a turn by CUPTI: each has a reading of its own, and takes the host some 0.3 ms
# An epoch needs to know its median this much better than the margin; what is left between epochs, only epochs can tell.
_MARGIN_OVER_ERROR = 8.0


def short(call_ns: Sequence[float]) -> float:
    """The shortest of a cell's calls where it spans less than SHORT; 0 where none does, one is not known, or one is so long
    that it is made no oftener than it must."""
    if not all(0 < ns < wire.LONG_CALL for ns in call_ns):
        return 0.0
    shortest = min(call_ns, default=SHORT)
    return shortest if shortest < SHORT else 0.0


def timer_of(kind: str, judge: Judge) -> str:
    """What reads a cell's turns on this kind of device."""
    if judge == "graph":
        return CUDA_GRAPH
    if judge == "kernels":
        return CUPTI
    return WALL_CLOCK if judge == "wall" and kind == "cuda" else TIMER[kind]


def pace(
    kind: str,
    call_ns: Sequence[float],
    open_ns: Sequence[float],
    settings: Options,
    share: float = 1.0,
    timer: str = "",
) -> Pace:
    """The pace for arms whose warm calls take `call_ns` and whose inputs take `open_ns` to make again.

    `timer` reads the turns; without one the kind's own. A wanted precision asks for more time where epochs are dear, a short
    budget for less: `share` of the rounds beyond the fewest (abprof/measure/budget.py). On a GPU it asks for epochs: what fresh
    processes differ by, no rounds lessen (docs/MEASUREMENT.md). `rounds` is the most; an epoch ends before when `settled`. A
    `call_ns` of 0 is not known.
    """
    scale = 1.0 if kind == "cuda" else max(1.0, min(4.0, settings.margin / _narrowest(settings)))
    wanted = wanted_error(settings)
    timer = timer or TIMER[kind]
    known = [ns for ns in call_ns if ns > 0]  # a clock that reads zero or less does not say how long a call is
    if not known:
        return Pace(timer, 1, FEWEST, FEWEST, wanted, "one call a turn: the timer read zero or less")
    together, shortest = sum(known) * len(call_ns) / len(known), _SHORTEST_TURN[kind]
    calls = calls_of_a_turn(kind, min(known))
    calls = min(calls, _MOST_RECORDED) if timer == CUPTI else calls
    budget = _SECONDS[kind] * 1e9 * len(call_ns) * scale * (0.5 if settings.quick else 1.0)
    long = min(known) >= wire.LONG_CALL
    fewest = FEWEST if settings.quick else fewest_rounds(kind, min(known), timer)
    usual = max(fewest, min(int(MOST * scale), round(budget / (together * calls))))
    if long and timer in _CLOCKED and not settings.quick:
        usual = 2 * fewest if _narrowest(settings) < _TELL else fewest
    rounds = _mirrored(fewest + round(share * (usual - fewest)))
    # Re-allocating may cost a fifth of the turns' time, with the untimed call after it where calls are long; at least
    # the placement at the opening is random.
    again = sum(open_ns) + (together if long else 0.0)
    affordable = 0.2 * rounds * together * calls / max(again, 1.0)
    fresh_every = max(2, math.ceil(rounds / max(affordable, 1.0)))
    empties = min(calls, _EMPTIES) if timer == TIMER["cuda"] and calls > 1 else 0
    early = again < _LONG_OPEN and not long
    rule = _rule(timer, calls, shortest)
    seconds = budget / 1e9 if kind == "cuda" else math.inf
    return Pace(timer, calls, rounds, fresh_every, wanted, rule, fewest, early, empties, seconds)


def wanted_error(settings: Options) -> float:
    """The standard error of a pair's median log ratio at which an epoch has enough rounds."""
    return _narrowest(settings) / 100 / _MARGIN_OVER_ERROR


def _narrowest(settings: Options) -> float:
    return min(settings.margin, settings.precision or settings.margin)


def fewest_rounds(kind: str, call_ns: float, timer: str = "") -> int:
    """Of an epoch, for a call of the fastest arm. One epoch that has to scatter by itself (--quick) takes FEWEST. A single one is
    for `timer`s that read the device's clock: under a power limit the later of two calls takes 1 % longer, as it is read."""
    if kind != "cuda" or call_ns < wire.MIDDLE_CALL:
        return FEWEST
    if call_ns < wire.LONG_CALL:
        return _FEWEST_MIDDLE
    return _FEWEST_SINGLE if call_ns >= _SINGLE and (timer or TIMER[kind]) in _CLOCKED else _FEWEST_LONG


def _mirrored(rounds: int) -> int:
    """Rounds come in pairs, but for a single one, whose order another epoch mirrors (`orders`)."""
    return rounds + rounds % 2 if rounds > 1 else rounds


def _rule(timer: str, calls: int, shortest: float) -> str:
    if timer == CUPTI and calls == _MOST_RECORDED:
        return f"{calls} calls a turn: each has its own reading"
    if calls == 1:
        return f"one call a turn: a call takes at least {shortest / 1e6:g} ms"
    return f"{calls} calls a turn, so that it takes {shortest / 1e6:g} ms"


def levelled(row: Sequence[Turn]) -> list[Turn]:
    """A round whose turns all read what they would in a process of mean launch cost.

    What a pair of events and a launch cost by themselves is of the process, not of the code: 3.1 to 3.4 us on an H200,
    some 0.1 us apart from process to process (docs/MEASUREMENT.md), which is 1 % of a 10 us kernel. So each turn also
    times empty launches; that is taken off its value, and the mean over the round's turns put back: the ratio loses what
    the processes differ in, the value stays a span from event to event. Without readings above zero of each turn: as it is.
    """
    if not all(turn.empty > 0 and turn.value > 0 for turn in row):  # a reading of zero must not become a time
        return list(row)
    usual = statistics.fmean(turn.empty for turn in row) if row else 0.0
    return [msgspec.structs.replace(turn, value=turn.value - turn.empty + usual) for turn in row]


def calls_of_a_turn(kind: str, call_ns: float) -> int:
    """As few as make a turn of the shortest length, for a call of the fastest arm."""
    return max(1, min(1000, math.ceil(_SHORTEST_TURN[kind] / max(call_ns, 1.0))))


def phase_calls(call_ns: float) -> int:
    """Calls in the pass that reads phases: ten, of long calls as few as take 0.1 s."""
    return max(1, min(10, math.ceil(_PHASED / max(call_ns, 1.0))))


def profiled(arm: str, call_ns: float, *, phases: bool) -> wire.Phases:
    """The pass that reads phases. Without any it reads what a call launches: two calls say whether all are alike; a
    long one is made once. The profiler's start, some milliseconds, is not thrown away with a call that dwarfs it."""
    calls = phase_calls(call_ns)
    if phases:
        return wire.Phases(arm, calls, min(2, calls - 1))
    return wire.Phases(arm, 2, 1) if calls > 1 else wire.Phases(arm, 1, 0)


def allotted(pace: Pace, rounds: int, share: float = 1.0) -> Pace:
    """The pace with so many rounds (abprof/measure/allocation.py): in pairs, no fewer than ever, at most four times the usual; where
    the budget affords a `share` only (abprof/measure/budget.py), at most what that leaves. Fewer where they settle it: what is known
    eight times better than the margin gains nothing by what is cheap for the cell."""
    most = 4 * pace.rounds if share >= 1.0 else pace.rounds
    return dataclasses.replace(pace, rounds=max(pace.fewest, min(_mirrored(rounds), most)), seconds=math.inf)


def settled(rounds: Sequence[Sequence[float]], wanted: float, fewest: int = FEWEST) -> bool:
    """Whether an epoch has enough rounds, of which the pace's `fewest` have to be. `rounds` holds each round's times in ns by
    arm, None never.

    Looks at the scatter of the log ratios to the first arm, never at their middle, so that stopping here cannot favour
    a verdict. The standard error of a median is sqrt(pi / 2) sd / sqrt(n), for a normal distribution; sd is taken as
    1.4826 times the median absolute deviation, which outliers do not move; of fewer than FEWEST, where that is small by chance
    too often, it is what it is.
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
    """1.4826 times the median absolute deviation: the standard deviation, for a normal distribution."""
    middle = statistics.median(values)
    return 1.4826 * statistics.median(abs(value - middle) for value in values)


def rejected(rounds: Sequence[Sequence[Turn]], origin: int, bad: Sequence[tuple[int, int, str]]) -> dict[int, str]:
    """The rounds that are dropped, and why: those for which a timer read nothing, or what no call takes, and those in a bad time
    of the device (from, to, why; ns of the clock on which the turns count from `origin`)."""
    found = {
        number: "the timer read zero or less"
        for number, row in enumerate(rounds)
        if any(turn.value <= 0 or turn.wall <= 0 for turn in row)
    }
    for number, row in enumerate(rounds):
        if any(max(turn.value, turn.wall) > LONGEST_CALL for turn in row):
            found.setdefault(number, "the timer read more than thirty years")
    for number, row in enumerate(rounds):
        start = origin + min((turn.start for turn in row), default=0)
        end = origin + max((turn.end for turn in row), default=0)
        for bad_from, bad_to, why in bad:
            if start <= bad_to and end >= bad_from:
                found.setdefault(number, why)
    return found


def ranked(items: Sequence[T], number: int) -> list[T]:
    """The items in their order for the so-many-th time, 0 for the first: each second time the first two have changed places,
    and each third begins one later. What a place does cancels between those two (base and target) over two times, and
    between all over twice as many as there are items."""
    return [items[place] for place in _ranked(range(len(items)), number)]


def _ranked(order: Sequence[int], number: int) -> list[int]:
    at = number // 2 % max(1, len(order))
    begun = [*order[at:], *order[:at]]
    exchanged = {0: 1, 1: 0} if number % 2 and len(order) > 1 else {}
    return [exchanged.get(one, one) for one in begun]


def orders(arms: int, rounds: int, seed: int | str, epoch: int = 1) -> list[list[int]]:
    """The order of the arms in each round of an epoch: random, and balanced. Every second round mirrors the one before, which
    cancels a drift; such pairs follow one another, and each epoch's the one before's, as in `ranked`, so that no arm has the
    outer places oftener than the others. Of a single round every second epoch mirrors the one before."""
    if rounds == 1:
        return [_pair(arms, seed, (epoch - 1) // 2)[(epoch - 1) % 2]]
    pairs = (_pair(arms, seed, number) for number in itertools.count(max(0, epoch - 1)))
    return list(itertools.islice(itertools.chain.from_iterable(pairs), rounds))


def _pair(arms: int, seed: int | str, number: int) -> tuple[list[int], list[int]]:
    """The so-many-th mirrored pair of rounds, 0 for the first."""
    order = random.Random(f"{seed}/{number // (2 * max(1, arms))}").sample(range(arms), arms)
    first = _ranked(order, number)
    return first, first[::-1]


def epoch_cost(kind: str, seats: int) -> tuple[float, float]:
    """Roughly how long an epoch takes: seconds for the start of the workers and for opening `seats` arms of cells, and
    seconds for their turns."""
    start = {"cuda": 6.0, "cpu": 5.0, "simulated": 0.2}[kind]
    return start + 0.1 * seats, _SECONDS[kind] * seats
