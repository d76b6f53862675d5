"""Epochs fit the budget (abprof/measure/epoch_loop.py)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from abprof.measure import turns
from abprof.measure.epoch_loop import Budget
from abprof.store import runfolder
from abprof.verdict import stats
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


def test_a_budget_holds_twelve_epochs_or_as_many_as_reach_an_earlier_look() -> None:
    assert Budget(600, done=0, fixed=10, more=20).share() == 1.0
    assert Budget(240, done=0, fixed=10, more=20).share() == pytest.approx(0.4)  # 0.9 * 240 s in twelve epochs of 18 s
    short = Budget(100, done=0, fixed=10, more=25)
    assert short.share() == pytest.approx(
        0.5
    )  # four epochs of 22.5 s: six would have less than a quarter of the rounds
    assert Budget(100, done=0, fixed=10, more=25, epochs=2).share() == 1.0, "--epochs 2 needs no room for more"
    short.charge(40, once=8, more=12.5, share=0.5)
    assert (short.left, short.fixed, short.more) == (60, 19.5, 25)
    assert (short.share(), short.affords(0.0)) == (0.0, True), "not even the first look fits in"
    short.charge(12, once=0, more=0, share=0.0)
    assert (short.fixed, short.more) == (12, 25), "rounds that were not taken keep their cost"
    late = Budget(160, done=12, fixed=10, more=80)
    assert late.share() == pytest.approx(0.325)  # four epochs of 36 s, up to the look at 16
    assert (late.affords(0.325), late.affords(2.0)) == (True, False)


def rounds(result: Result) -> dict[int, list[int]]:
    """Epoch -> rounds of each of its blocks."""
    assert result.folder
    found: dict[int, list[int]] = {}
    for block in (block for block in runfolder.read(result.folder)[1] if block.rounds):
        found.setdefault(block.epoch, []).append(len(block.rounds))
    return found


@pytest.mark.slow
def test_long_epochs_get_fewer_rounds_so_that_the_first_look_is_reached(new_lab: NewLab) -> None:
    """Whole epochs take 7 s or more here, and two of them would fit."""
    result = new_lab(SLOW).abprof("main", "fast", "--budget", "20s")
    found = rounds(result)
    assert len(found) >= stats.LOOKS[0]
    for epoch in (2, 3, 4):
        assert sum(found[epoch]) < sum(found[1]), found  # the order of the cells changes with the epoch
        assert all(few >= turns.FEWEST for few in found[epoch])
    assert result.verdict("w/case=slower") == "slower"


def test_a_budget_that_cannot_reach_the_first_look_is_reported_with_one_that_can(new_lab: NewLab) -> None:
    result = new_lab(replace(SLOW, faults=[])).abprof("main", "fast", "--budget", "0.1s")
    assert rounds(result) == {1: [turns.FEWEST] * 2}
    assert set(result.table().values()) == {"unclear"}
    (warning,) = [warning for warning in result.run.warnings if warning.kind == "undecided"]
    assert "ended before 4 epochs" in warning.text
