"""Ten thousand cells on 2 to 1,000 slots, with recorded times of calls: how far the schedule is from an ideal one.

`python -m tests.simulations.test_schedule` prints the table of docs/SCALE.md. Nothing is measured here: a cell's seconds
follow from a call's time, recorded on an H200 (docs/KERNELS.md, docs/MEASUREMENT.md), by the rules that give its turns.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from abprof.fleet.packing import CONTROLS
from abprof.fleet.schedule import ASSUMED, SEEN_BEFORE, Error, Queue, StartUp, Task
from abprof.measure import turns
from abprof.records import Settings
from abprof.verdict import stats

CELLS, SLOTS = 10_000, (2, 4, 8, 64, 1000)
EXACT = Error(0.0, 0.0)
# Milliseconds of a call. Of ffa: dense at 8,192 tokens, and block-sparse at 49,152 (all of preset `full`).
DENSE = (3.139, 9.793, 1.653, 5.165, 0.918, 2.862, 0.607, 1.847)
BLOCKS = (10.52, 32.48, 6.075, 20.16, 20.47, 62.58, 11.87, 38.86, 40.85, 123.8, 23.88, 74.89,
          102.4, 308.6, 60.26, 185.6, 237.9, 648.1, 118.5, 358.5)  # fmt: skip
RECORDED = {
    "ffa": (*DENSE, *BLOCKS),
    "ladder": (0.201, 0.162, 0.145, 0.131, 0.621, 0.480, 0.426, 0.406, 2.073, 1.574, 1.404, 1.401,
               7.461, 5.333, 5.052, 5.192, 29.23, 20.22, 20.17, 20.94),
    "wsattn": (0.00952, 0.00930, 1.733, 1.560),
    "dmask": (0.633, 0.859, 0.636, 0.859, 0.334, 0.360, 0.218, 0.119, 0.526, 0.657, 0.262, 0.216, 0.273, 0.238,
              0.405, 0.499, 0.321, 0.331, 0.233, 0.148, 0.631, 0.860, 0.636, 0.859, 0.629, 0.849, 0.632, 0.859),
    "memtraffic": (0.999, 0.377, 14.40, 5.034, 2.983, 4.767),
}  # fmt: skip
DECIDED_AT_ONCE = 24 / 28  # of all of preset `full`; how many epochs the others take was not measured: any later look


@dataclass(frozen=True)
class Outcome:
    """What a schedule came to. Overheads are shares of the ideal."""

    end: float
    shards: int
    longest: float
    over_bound: float  # the bound: all slots busy with cells alone, or the longest cell
    over_ideal: float  # the bound and one start-up, which no slot can do without


def epoch(call_ms: float, arms: int = 3) -> float:
    """Seconds of one epoch of a cell: base, target and control."""
    pace = turns.pace("cuda", [call_ms * 1e6] * arms, [0.0] * arms, Settings(threshold=1.5, margin=0.5, budget=600.0))
    inside = min(pace.seconds, pace.rounds * pace.calls * arms * call_ms / 1e3)
    opening = turns.epoch_cost("cuda", arms)[0] - turns.epoch_cost("cuda", 0)[0]
    return opening + 2 * arms * call_ms / 1e3 + inside


def matrix(cells: int, seed: int) -> list[Task]:
    """So many cells with the seconds that they will take."""
    rng = random.Random(seed)
    calls = [(kernel, call) for kernel, of in RECORDED.items() for call in of]
    found = []
    for i in range(cells):
        kernel, call = rng.choice(calls)
        epochs = stats.LOOKS[0] if rng.random() < DECIDED_AT_ONCE else rng.choice(stats.LOOKS[1:])
        found.append(Task(f"{kernel}/i={i}", kernel, epochs * epoch(call)))
    return found


def estimated(real: list[Task], seed: int, *, cell: float, package: float = 0.0) -> list[Task]:
    """What is thought of them beforehand: wrong by factors of a cell and of a package (sd of their logarithms)."""
    rng = random.Random(seed)
    factors = {kernel: rng.lognormvariate(0, package) for kernel in RECORDED}
    return [
        Task(task.cell, task.kernel, task.seconds * factors[task.kernel] * rng.lognormvariate(0, cell)) for task in real
    ]


def run(
    real: list[Task], thought: list[Task], slots: int, start_up: StartUp, error: Error, light: int = CONTROLS
) -> Outcome:
    """Slots take shards as they become free, until all is measured."""
    seconds = {task.cell: task.seconds for task in real}
    queue = Queue(thought, {str(i): 1.0 for i in range(slots)}, start_up, error=error, light=light)
    free = [(0.0, str(i)) for i in range(slots)]
    ran: dict[str, tuple[tuple[Task, ...], float]] = {}
    seen, shards, end, longest = list[str](), 0, 0.0, 0.0
    while len(queue):
        now, slot = heapq.heappop(free)
        if slot in ran:
            queue.took(*ran.pop(slot))
        shard = queue.take(slot, now)
        inside = sum(seconds[task.cell] for task in shard)
        packages = len({task.kernel for task in shard})
        took = start_up.shard + start_up.package * (packages - 1) + inside + (start_up.slot if now == 0 else 0.0)
        ran[slot] = shard, inside
        seen += [task.cell for task in shard]
        shards, end, longest = shards + 1, max(end, now + took), max(longest, took)
        heapq.heappush(free, (now + took, slot))
    assert sorted(seen) == sorted(seconds)
    bound = max(sum(seconds.values()) / slots, *seconds.values())
    return Outcome(end, shards, longest, end / bound - 1, end / (bound + start_up.slot + start_up.shard) - 1)


def test_the_seconds_of_a_cell_are_those_of_a_run_that_was_measured() -> None:
    """All of preset `full`: epochs of 61, 62, 38 and 34 s, of which checks and profiles are in the first two."""
    assert 34 < sum(map(epoch, (*DENSE, *BLOCKS))) < 62


@pytest.mark.parametrize("slots", SLOTS[:4])
def test_less_than_two_per_cent_over_all_slots_busy_with_cells_alone(slots: int) -> None:
    """With a start-up of 3 s, and cells that earlier runs know to 20 %."""
    real = matrix(CELLS, seed=1)
    thought = estimated(real, seed=2, cell=0.2)
    assert run(real, thought, slots, StartUp(3.0, 6.0), SEEN_BEFORE).over_bound < 0.02
    assert run(real, real, slots, StartUp(3.0, 6.0), EXACT).over_bound < 0.02


@pytest.mark.parametrize("slots", SLOTS[:3])
def test_less_than_two_per_cent_where_nothing_is_known(slots: int) -> None:
    """A start-up of 10 s; packages are wrong by a factor of two, and cells by 30 % more."""
    real = matrix(CELLS, seed=1)
    thought = estimated(real, seed=2, cell=0.3, package=0.7)
    assert run(real, thought, slots, StartUp(10.0, 6.0), ASSUMED).over_bound < 0.02


def test_long_start_ups_on_many_slots_are_paid_twice_where_the_estimates_are_right() -> None:
    """1,200 s a slot, of which a start-up of 10 s is 0.8 %; and no shard is longer than 900 s."""
    real = matrix(CELLS, seed=1)
    outcome = run(real, real, 64, StartUp(10.0, 6.0), EXACT)
    assert outcome.over_ideal < 0.02
    assert outcome.shards <= 2 * 64 + 8


@pytest.mark.parametrize("slots", SLOTS[:4])
def test_a_program_that_takes_its_slots_next_shard_starts_once(slots: int) -> None:
    """Ten seconds of a slot's first shard, of which every further one needs three."""
    real = matrix(CELLS, seed=1)
    for thought, error, most in (
        (estimated(real, seed=2, cell=0.2), SEEN_BEFORE, 0.015),
        (estimated(real, seed=2, cell=0.3, package=0.7), ASSUMED, 0.03),
    ):
        each = run(real, thought, slots, StartUp(10.0, 6.0), error)
        once = run(real, thought, slots, kept(10.0), error)
        assert once.over_ideal < 0.6 * each.over_ideal
        assert once.over_ideal < most


def test_slots_that_have_few_cells_end_when_the_longest_cell_does() -> None:
    """Ten cells a slot: the longest alone takes longer than a slot's part, is the first to begin, and nothing ends after it;
    or its slot's light cells do, which spare it a control of its own."""
    real = matrix(CELLS, seed=1)
    assert max(task.seconds for task in real) > 1.5 * sum(task.seconds for task in real) / 1000
    for thought, error in ((real, EXACT), (estimated(real, seed=2, cell=0.2), SEEN_BEFORE)):
        outcome = run(real, thought, 1000, StartUp(10.0, 6.0), error, light=0)
        assert outcome.over_ideal == pytest.approx(0.0, abs=1e-6)
        assert run(real, thought, 1000, StartUp(10.0, 6.0), error).over_ideal < 0.1


def kept(first: float) -> StartUp:
    """A local pool's: what the loop assumes of a shard's start-up on a GPU, 20 s, are 6 s of workers, which every shard pays."""
    return StartUp(0.3 * first, 6.0, 0.7 * first)


def table(start_up: Callable[[float], StartUp]) -> None:
    real = matrix(CELLS, seed=1)
    total, longest = sum(task.seconds for task in real), max(task.seconds for task in real)
    print(f"{CELLS} cells, {total:.0f} s, the longest {longest:.0f} s")
    kinds = {
        "known exactly": (real, EXACT),
        "known to 20 %": (estimated(real, seed=2, cell=0.2), SEEN_BEFORE),
        "never measured": (estimated(real, seed=2, cell=0.3, package=0.7), ASSUMED),
    }
    print("| start-up | estimates | " + " | ".join(f"{slots} slots" for slots in SLOTS) + " |")
    for shard in (1.0, 3.0, 10.0, 20.0):
        for name, (thought, error) in kinds.items():
            each = [run(real, thought, slots, start_up(shard), error) for slots in SLOTS]
            cells = [f"{100 * o.over_bound:.2f} % ({100 * o.over_ideal:.2f} %), {o.shards}" for o in each]
            print(f"| {shard:g} s | {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    table(kept)
    table(lambda first: StartUp(first, 6.0))
