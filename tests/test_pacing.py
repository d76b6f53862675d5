"""Epochs fit the budget (abprof/measure/epoch_loop.py)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from abprof.measure import turns
from abprof.measure.epoch_loop import affordable
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


@pytest.mark.parametrize(
    ("done", "cost", "left", "fits"),
    [(5, 4.0, 4.0, True), (5, 4.0, 3.9, True), (4, 4.0, 3.4, False), (4, 4.0, 4.0, True), (11, 5.0, 0.6, True),
     (11, 5.0, 0.4, False), (32, 5.0, 1.0, True)],
)  # fmt: skip
def test_a_look_may_be_late_by_a_tenth_of_the_budget(done: int, cost: float, left: float, fits: bool) -> None:
    assert affordable(done, cost, left, budget=45.0) == fits


def rounds(result: Result) -> dict[int, list[int]]:
    """Epoch -> rounds of each of its blocks."""
    assert result.folder
    found: dict[int, list[int]] = {}
    for block in (block for block in runfolder.read(result.folder)[1] if block.rounds):
        found.setdefault(block.epoch, []).append(len(block.rounds))
    return found


@pytest.mark.slow
def test_epochs_are_so_short_that_a_small_budget_reaches_a_look(new_lab: NewLab) -> None:
    result = new_lab(SLOW).abprof("main", "fast", "--budget", "20s")
    found = rounds(result)
    assert len(found) >= stats.LOOKS[0]
    assert all(few >= turns.FEWEST for each in found.values() for few in each)
    assert result.verdict("w/case=slower") == "slower"


def test_a_budget_that_cannot_reach_the_first_look_is_reported_with_one_that_can(new_lab: NewLab) -> None:
    result = new_lab(replace(SLOW, faults=[])).abprof("main", "fast", "--budget", "0.1s")
    assert list(rounds(result)) == [1]
    assert set(result.table().values()) == {"unclear"}
    (warning,) = [warning for warning in result.run.warnings if warning.kind == "undecided"]
    assert "ended before 4 epochs" in warning.text
