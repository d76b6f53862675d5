"""What a time budget affords: fewer rounds an epoch rather than an end before the first look."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from abprof.measure import turns
from abprof.measure.budget import Budget
from abprof.store import runfolder
from abprof.verdict import stats
from tests.simulated.lab import Result
from tests.simulated.planted import NewLab, load, new_lab
from tests.simulated.scenario import Fault, Noise, Scenario, Time

__all__ = ["new_lab"]

# Turns that take a while of real time and scatter so much that no epoch has enough of them: whole epochs, without a plan.
SLOW = Scenario(
    workloads={"w": load(["slower", "same"])},
    times=[Time(ns=4e6), Time(factor=2.0, cell="*case=slower", side="target")],
    noise=[Noise(turn=0.2)],
    faults=[Fault("slow:0.012", "turn")],
)


def test_a_budget_that_is_long_enough_takes_all_rounds() -> None:
    plan = Budget(600, done=0, fixed=10, more=20)
    assert plan.share() == 1.0
    for _ in range(4):
        plan.charge(30, once=0, more=20, share=1.0)
    assert (plan.share(), plan.affords(1.0), plan.left) == (1.0, True, 480)


def test_a_short_one_takes_as_many_as_reach_the_first_look() -> None:
    plan = Budget(100, done=0, fixed=10, more=25)
    assert plan.share() == pytest.approx(0.5)  # 0.9 * 100 s in four epochs: 22.5 s each
    plan.charge(40, once=8, more=12.5, share=0.5)
    assert (plan.left, plan.fixed, plan.more) == (60, 19.5, 25)  # checks are not made again
    assert plan.share() == 0.0  # 18 s an epoch and a start of 19.5 s: the fewest, for the next may be cheaper
    assert plan.affords(0.0)
    plan.charge(12, once=0, more=0, share=0.0)
    assert (plan.fixed, plan.more) == (12, 25), "rounds that were not taken keep the price they had"
    assert plan.share() == pytest.approx((0.9 * 48 / 2 - 12) / 25)


def test_epochs_of_an_interrupted_run_count_and_later_looks_are_not_rushed() -> None:
    assert Budget(60, done=2, fixed=10, more=20).share() == pytest.approx(0.85)
    assert Budget(60, done=4, fixed=10, more=80).share() == 1.0
    assert not Budget(60, done=4, fixed=10, more=80).affords(1.0)


def rounds(result: Result) -> dict[int, list[int]]:
    """Epoch -> rounds of each of its blocks."""
    assert result.folder
    found: dict[int, list[int]] = {}
    for block in runfolder.read_blocks(result.folder)[0]:
        found.setdefault(block.epoch, []).append(len(block.rounds))
    return found


@pytest.mark.slow
def test_epochs_that_are_too_long_get_fewer_rounds_and_the_first_look_is_reached(new_lab: NewLab) -> None:
    """Whole epochs take 7 s or more here, of which two would fit in."""
    result = new_lab(SLOW).abprof("main", "fast", "--budget", "20s")
    found = rounds(result)
    assert len(found) >= stats.LOOKS[0]
    whole = found[1]
    assert all(
        turns.FEWEST <= count < most for epoch in (2, 3, 4) for count, most in zip(found[epoch], whole, strict=True)
    )
    assert result.verdict("w/case=slower") == "slower"
    assert result.verdict("w/case=same") in {"unclear", "same"}


def test_a_budget_that_cannot_reach_it_is_said_with_one_that_can(new_lab: NewLab) -> None:
    result = new_lab(replace(SLOW, faults=[])).abprof("main", "fast", "--budget", "0.1s")
    assert rounds(result) == {1: [turns.FEWEST] * 2}
    assert set(result.table().values()) == {"unclear"}
    (warning,) = [warning for warning in result.run.warnings if warning.kind == "undecided"]
    assert "2 of 2 rows undecided: the budget of 0.1 s ended before the first look, at 4 epochs" in warning.text
    advised = re.fullmatch(
        "no verdict is given before it; on this machine as it was, --budget ([0-9]+)s", warning.advice
    )
    assert advised, warning.advice
    blocks = runfolder.read_blocks(result.folder)[0] if result.folder else []
    took = max(block.began + block.seconds for block in blocks) - min(block.began for block in blocks)
    assert 4 * took < int(advised[1]) <= 4 * took * 1.1 + 10, "four such epochs, a tenth more, in tens"
