"""Rounds per epoch by Kalibera and Jones, from programmed scatter and cost."""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import replace

import msgspec
import pytest

from abprof.measure import allocation, turns
from abprof.measure.allocation import Allocation, Pilot
from abprof.records import Block, Options
from abprof.verdict import stats
from tests import blocks


def pilots(
    *, between: float, within: float, rounds: int, count: int = 4, c_round: float, c_epoch: float
) -> list[Pilot]:
    """Epochs whose values have exactly the variance that the two levels make together."""
    sd = math.sqrt(between + within / rounds)
    unit = [-1.0, 1.0] * (count // 2)
    scale = sd / math.sqrt(sum(u * u for u in unit) / (count - 1))
    return [Pilot((scale * u,), (within,), rounds, c_round, c_epoch) for u in unit]


def best(taught: list[Pilot]) -> int | None:
    known = allocation.scatter(taught)
    assert known is not None
    return allocation.best(known)


def test_no_other_number_of_rounds_tells_more_for_its_time() -> None:
    between, within, c_round, c_epoch = 1e-4, 4e-4, 0.002, 0.5
    found = best(pilots(between=between, within=within, rounds=40, c_round=c_round, c_epoch=c_epoch))
    assert found is not None
    assert found == math.ceil(math.sqrt(c_epoch / c_round * within / between))

    def cost_of_knowing(r: int) -> float:  # variance of the mean over epochs, times the seconds that an epoch takes
        return (between + within / r) * (c_epoch + r * c_round)

    assert min(range(1, 3000), key=cost_of_knowing) == pytest.approx(found, abs=1)


def test_epochs_that_scatter_as_their_rounds_explain_leave_it_to_the_usual_rules() -> None:
    assert best(pilots(between=0.0, within=4e-4, rounds=40, c_round=0.002, c_epoch=0.5)) is None


def test_what_few_epochs_scatter_by_chance_asks_for_no_rounds() -> None:
    """The formula would have said ten rounds of four epochs that scatter twice as far in their squares as their two rounds
    explain, as one run of nine does by chance. Sixteen that do are none."""
    seconds = {"within": 4e-6, "rounds": 2, "c_round": 1.0, "c_epoch": 50.0}
    assert best(pilots(between=2e-6, count=4, **seconds)) is None
    assert best(pilots(between=2e-6, count=16, **seconds)) == 10
    assert best(pilots(between=2.3e-6, count=4, **seconds)) == 10


def test_a_quiet_comparison_does_not_silence_one_that_scatters() -> None:
    loud = pilots(between=1e-4, within=4e-4, rounds=40, c_round=0.002, c_epoch=0.5)
    quiet = pilots(between=0.0, within=4e-4, rounds=40, c_round=0.002, c_epoch=0.5)
    both = [
        replace(one, values=one.values + other.values, variances=one.variances + other.variances)
        for one, other in zip(loud, quiet, strict=True)
    ]
    assert best(both) == best(loud) is not None
    assert best([replace(p, values=p.values * 2, variances=p.variances * 2) for p in quiet]) is None


def test_one_draw_of_ten_is_beyond_chance() -> None:
    chance = random.Random(1)
    for count in (4, 16):
        drawn = [statistics.variance([chance.gauss(0, 1) for _ in range(count)]) for _ in range(4000)]
        beyond = sum(each > stats.variance_by_chance(count) for each in drawn) / len(drawn)
        assert beyond == pytest.approx(0.1, abs=0.015), "4,000 draws: a standard deviation is 0.005"


def noisy(epoch: int, shift: float, *, sd: float, rounds: int = 40) -> Block:
    """A block of two-millisecond rounds in a sitting of half a second."""
    chance = random.Random(epoch)
    made = blocks.block(epoch, {"base": 1.0, "target": math.exp(shift)}, rounds=rounds)
    rows = []
    for i, row in enumerate(made.rounds):
        when = {"start": 2_000_000 * i, "end": 2_000_000 * (i + 1)}
        loud = [turn.value * math.exp(chance.gauss(0, sd)) for turn in row]
        rows.append(tuple(msgspec.structs.replace(t, value=value, **when) for t, value in zip(row, loud, strict=True)))
    return msgspec.structs.replace(made, rounds=tuple(rows), seconds=0.5)


def test_nothing_is_said_before_the_first_look() -> None:
    learnt = Allocation()
    for epoch, shift in enumerate((0.01, -0.01, 0.01), 1):
        learnt.learn(noisy(epoch, shift, sd=0.001), started=0.0)
        assert learnt.rounds("dense/n=0") is None
    learnt.learn(noisy(4, -0.01, sd=0.001), started=0.0)
    assert learnt.rounds("dense/n=0") is not None
    assert learnt.rounds("another") is None


def test_quiet_rounds_in_unlike_epochs_are_few_and_loud_ones_many() -> None:
    def learnt(sd: float, shift: float, started: float = 0.0) -> int:
        found = Allocation()
        for epoch in range(1, 9):
            found.learn(noisy(epoch, shift if epoch % 2 else -shift, sd=sd), started=started)
        rounds = found.rounds("dense/n=0")
        assert rounds is not None
        return rounds

    assert learnt(0.0005, 0.02) <= 2
    assert learnt(0.05, 0.04) > 20
    assert learnt(0.05, 0.04, started=5.0) > 2 * learnt(0.05, 0.04), "a dearer epoch is worth more rounds"


def test_a_change_of_the_middle_changes_nothing() -> None:
    def learnt(middle: float) -> int | None:
        found = Allocation()
        for epoch in range(1, 5):
            found.learn(noisy(epoch, middle + (0.01 if epoch % 2 else -0.01), sd=0.01), started=0.0)
        return found.rounds("dense/n=0")

    assert learnt(0.0) == learnt(0.5) == learnt(-0.5)


def test_a_block_without_rounds_teaches_nothing() -> None:
    assert allocation.observed(msgspec.structs.replace(noisy(1, 0.01, sd=0.01), rounds=()), 0.0) is None


def test_peers_and_rejected_rounds_teach_nothing() -> None:
    block = msgspec.structs.replace(noisy(1, 0.01, sd=0.01), rejected=tuple(range(39)))
    assert allocation.observed(block, 0.0) is None
    alone = blocks.block(1, {"base": 1.0, "peer:sdpa": 2.0})
    assert allocation.observed(alone, 0.0) is None


def test_the_allotted_rounds_are_even_and_bounded() -> None:
    usual = turns.pace("cuda", [1e6, 1e6], [1e6, 1e6], Options(threshold=1.5, margin=0.5))
    assert turns.allotted(usual, 31).rounds == 32
    assert turns.allotted(usual, 1).rounds == turns.FEWEST
    assert turns.allotted(usual, 10**6).rounds == 4 * usual.rounds
    assert turns.allotted(usual, 10**6, share=0.9).rounds == usual.rounds, "a short budget comes first"
    kept = {"rounds": usual.rounds, "seconds": usual.seconds}
    assert replace(turns.allotted(usual, 31), **kept) == usual
