"""Epochs fit the budget, and their rounds follow from cost and scatter (abprof/measure/pacing.py)."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace

import msgspec
import pytest

from abprof.measure import turns
from abprof.measure.pacing import Allocation, Budget, Pilot, best, pilot_of
from abprof.records import Block, Options
from abprof.store import runfolder
from abprof.verdict import stats
from tests import blocks
from tests.simulated.lab import Result
from tests.simulated.planted import NewLab, load, new_lab
from tests.simulated.scenario import Fault, Noise, Scenario, Time

__all__ = ["new_lab"]

# Turns that take real time and scatter so much that no epoch settles early.
SLOW = Scenario(
    workloads={"w": load(["slower", "same"])},
    times=[Time(ns=4e6), Time(factor=2.0, cell="*case=slower", side="target")],
    noise=[Noise(turn=0.2)],
    faults=[Fault("slow:0.012", "turn")],
)


def test_a_long_budget_takes_all_rounds_and_a_short_one_reaches_the_first_look() -> None:
    long = Budget(600, done=0, fixed=10, more=20)
    assert long.share() == 1.0
    short = Budget(100, done=0, fixed=10, more=25)
    assert short.share() == pytest.approx(0.5)  # 0.9 * 100 s in four epochs: 22.5 s each
    short.charge(40, once=8, more=12.5, share=0.5)
    assert (short.left, short.fixed, short.more) == (60, 19.5, 25)
    assert (short.share(), short.affords(0.0)) == (0.0, True)
    short.charge(12, once=0, more=0, share=0.0)
    assert (short.fixed, short.more) == (12, 25), "rounds that were not taken keep their cost"
    assert Budget(60, done=4, fixed=10, more=80).share() == 1.0, "later looks are not rushed"
    assert not Budget(60, done=4, fixed=10, more=80).affords(1.0)


def rounds(result: Result) -> dict[int, list[int]]:
    """Epoch -> rounds of each of its blocks."""
    assert result.folder
    found: dict[int, list[int]] = {}
    for block in runfolder.read(result.folder)[1]:
        found.setdefault(block.epoch, []).append(len(block.rounds))
    return found


@pytest.mark.slow
def test_long_epochs_get_fewer_rounds_so_that_the_first_look_is_reached(new_lab: NewLab) -> None:
    """Whole epochs take 7 s or more here, and two of them would fit."""
    result = new_lab(SLOW).abprof("main", "fast", "--budget", "20s")
    found = rounds(result)
    assert len(found) >= stats.LOOKS[0]
    for epoch in (2, 3, 4):
        assert all(turns.FEWEST <= few < most for few, most in zip(found[epoch], found[1], strict=True))
    assert result.verdict("w/case=slower") == "slower"


def test_a_budget_that_cannot_reach_the_first_look_is_reported_with_one_that_can(new_lab: NewLab) -> None:
    result = new_lab(replace(SLOW, faults=[])).abprof("main", "fast", "--budget", "0.1s")
    assert rounds(result) == {1: [turns.FEWEST] * 2}
    assert set(result.table().values()) == {"unclear"}
    (warning,) = [warning for warning in result.run.warnings if warning.kind == "undecided"]
    assert re.search(r"--budget \d+s", warning.advice)


def pilots(between: float, *, within: float = 4e-4, rounds: int = 40, count: int = 4, **cost: float) -> list[Pilot]:
    """Epochs whose values have exactly the variance that both levels make together."""
    sd = math.sqrt(between + within / rounds)
    unit = [-1.0, 1.0] * (count // 2)
    scale = sd / math.sqrt(sum(u * u for u in unit) / (count - 1))
    return [Pilot((scale * u,), (within,), rounds, cost.get("round", 0.002), cost.get("epoch", 0.5)) for u in unit]


def test_no_other_number_of_rounds_tells_more_for_its_time() -> None:
    found = best(pilots(1e-4))
    assert found == math.ceil(math.sqrt(0.5 / 0.002 * 4e-4 / 1e-4))

    def cost_of_knowing(r: int) -> float:  # variance of the mean over epochs, times the seconds of an epoch
        return (1e-4 + 4e-4 / r) * (0.5 + r * 0.002)

    assert min(range(1, 3000), key=cost_of_knowing) == pytest.approx(found, abs=1)


def test_scatter_that_rounds_explain_leaves_it_to_the_usual_rules() -> None:
    assert best(pilots(0.0)) is None
    cost = {"within": 4e-6, "rounds": 2, "round": 1.0, "epoch": 50.0}
    assert best(pilots(2e-6, count=4, **cost)) is None, "one run of ten scatters so by chance"  # type: ignore[arg-type]
    assert best(pilots(2e-6, count=16, **cost)) == 10  # type: ignore[arg-type]


def noisy(epoch: int, shift: float, *, sd: float = 0.01) -> Block:
    """A block of two-millisecond rounds in half a second."""
    chance = random.Random(epoch)
    made = blocks.block(epoch, {"base": 1.0, "target": math.exp(shift)}, rounds=40)
    rows = []
    for i, row in enumerate(made.rounds):
        when = {"start": 2_000_000 * i, "end": 2_000_000 * (i + 1)}
        rows.append(
            tuple(msgspec.structs.replace(t, value=t.value * math.exp(chance.gauss(0, sd)), **when) for t in row)
        )
    return msgspec.structs.replace(made, rounds=tuple(rows), seconds=0.5)


def learned(middle: float = 0.0, *, sd: float = 0.01, shift: float = 0.01, epochs: int = 4) -> int | None:
    allocation = Allocation()
    for epoch in range(1, epochs + 1):
        allocation.learn(noisy(epoch, middle + (shift if epoch % 2 else -shift), sd=sd), started=0.0)
    return allocation.rounds("dense/n=0")


def test_rounds_follow_from_scatter_and_never_from_the_middle() -> None:
    assert learned(epochs=3) is None, "before the first look nothing is known"
    assert learned() == learned(0.5) == learned(-0.5) is not None
    assert (learned(sd=0.0005, shift=0.02, epochs=8) or 99) <= 2
    assert (learned(sd=0.05, shift=0.04, epochs=8) or 0) > 20


def test_peers_and_rejected_rounds_teach_nothing() -> None:
    assert pilot_of(msgspec.structs.replace(noisy(1, 0.01), rejected=tuple(range(39))), 0.0) is None
    assert pilot_of(blocks.block(1, {"base": 1.0, "peer:sdpa": 2.0}), 0.0) is None


def test_allotted_rounds_are_even_and_bounded() -> None:
    usual = turns.pace("cuda", [1e6, 1e6], [1e6, 1e6], Options(threshold=1.5, margin=0.5))
    assert turns.allotted(usual, 31).rounds == 32
    assert turns.allotted(usual, 1).rounds == turns.FEWEST
    assert turns.allotted(usual, 10**6).rounds == 4 * usual.rounds
    assert turns.allotted(usual, 10**6, share=0.9).rounds == usual.rounds, "a short budget comes first"
