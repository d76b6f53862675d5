"""What a time budget affords: fewer rounds an epoch rather than an end before a look."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from abprof import looks, measure, runfolder, stats, turns
from abprof.allocation import Allocation
from abprof.budget import Budget
from abprof.measure import Ground
from abprof.model import Run
from tests.blocks import head
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
    assert plan.share(4) == 1.0
    for _ in range(4):
        plan.charge(30, once=0, more=20, share=1.0)
    assert (plan.share(2), plan.affords(1.0, 2), plan.left) == (1.0, True, 480)


def test_a_short_one_takes_as_many_as_reach_the_first_look() -> None:
    plan = Budget(100, done=0, fixed=10, more=25)
    assert plan.share(4) == pytest.approx(0.5)  # 0.9 * 100 s in four epochs: 22.5 s each
    plan.charge(40, once=8, more=12.5, share=0.5)
    assert (plan.left, plan.fixed, plan.more) == (60, 19.5, 25)  # checks are not made again
    assert plan.share(3) == 0.0  # 18 s an epoch and a start of 19.5 s: the fewest, for the next may be cheaper
    assert plan.affords(0.0, 3)
    plan.charge(12, once=0, more=0, share=0.0)
    assert (plan.fixed, plan.more) == (12, 25), "rounds that were not taken keep the price they had"
    assert plan.share(2) == pytest.approx((0.9 * 48 / 2 - 12) / 25)


def test_a_later_look_is_reached_with_fewer_rounds_or_not_begun() -> None:
    assert Budget(60, done=2, fixed=10, more=20).share(2) == pytest.approx(0.85), "epochs of an interrupted run count"
    assert Budget(60, done=4, fixed=10, more=80).share(2) == pytest.approx(17 / 80)
    assert Budget(60, done=4, fixed=10, more=80).affords(17 / 80, 2)
    far = Budget(60, done=8, fixed=16, more=80)
    assert far.share(4) == 0.0
    assert not far.affords(0.0, 4), "four epochs of 16 s, which the next look needs, do not fit into 60 s"
    assert far.affords(0.0, 3), "another cell may come to its own before"


class Clock(SimpleNamespace):
    """Time that goes by when it is told to."""

    def __init__(self) -> None:
        super().__init__(now=0.0, monotonic=lambda: self.now)


class Looking:
    """Takes note of epochs, each of all cells, and wants more until the last look."""

    def __init__(self, before: dict[str, int]) -> None:
        self.counts, self.done = dict(before), 0

    def wanted(self) -> set[str]:
        return {cell for cell, count in self.counts.items() if count < stats.LOOKS[-1]}

    def nearest(self, cells: Iterable[str]) -> int:
        return looks.to_the_nearest(head(), self.counts, cells)


def played(
    monkeypatch: pytest.MonkeyPatch, budget: float, record: Looking, *, fixed: float = 10.0, more: float = 20.0
) -> tuple[list[float], float]:
    """The share of the rounds that each epoch took, and the seconds of all, where epochs cost so much."""
    clock, shares = Clock(), list[float]()

    def epoch(ground: Ground, epoch: measure.Epoch, todo: set[str]) -> Iterator[measure.Item]:
        epoch.more = epoch.share * more
        clock.now += fixed + epoch.more
        shares.append(epoch.share)
        for cell in todo:
            record.counts[cell] += 1
        yield from ()

    monkeypatch.setattr(measure, "time", clock)
    monkeypatch.setattr(measure, "_epoch", epoch)
    ground: Any = SimpleNamespace(
        run=head(),
        device=SimpleNamespace(kind="simulated"),
        arms=dict.fromkeys(record.counts, ()),
        timers={},
        shop=None,
    )
    for _ in measure.epochs(ground, record, Allocation(), first=1, budget=budget):
        pass
    return shares, clock.now


def test_a_run_ends_at_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs of 30 s, or 10 s with the fewest rounds. 500 s are 16 of them and a rest, which does not make eight; 620 s do."""
    assert played(monkeypatch, 500, Looking({"a": 0})) == ([1.0] * 16, 480)
    shares, seconds = played(monkeypatch, 620, Looking({"a": 0}))
    assert shares[:17] == [1.0] * 16 + [pytest.approx((0.9 * 140 / 8 - 10) / 20)]
    assert len(shares) == 24
    assert 600 < seconds <= 620


def test_a_cell_that_lost_an_epoch_comes_to_its_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """One at 15 needs one epoch more, though the others would need eight."""
    late = Looking({"a": 16, "late": 15})
    late.done = 16
    assert len(played(monkeypatch, 90, late)[0]) == 1
    assert late.counts == {"a": 17, "late": 16}


def test_before_the_first_look_any_epoch_is_worth_having(monkeypatch: pytest.MonkeyPatch) -> None:
    assert played(monkeypatch, 53, Looking({"a": 0})) == ([1.0, 0.0, 0.0], 50)


@pytest.mark.parametrize(
    "asked", [head(settings={"epochs": 10}), msgspec.structs.replace(head(), sides=head().sides[:1])]
)
def test_epochs_that_were_asked_for_and_those_of_one_branch_all_count(asked: Run) -> None:
    """What one branch alone takes is known better with every epoch, and is not tested."""
    assert [looks.to_the_nearest(asked, {"a": count}, "a") for count in (0, 3, 4, 7, 32)] == [4, 1, 1, 1, 1]


def test_how_far_the_next_look_is() -> None:
    counts = {"a": 0, "b": 5, "c": 17, "d": 32}
    assert [looks.to_the_nearest(head(), counts, cell) for cell in counts] == [4, 1, 7, 1]
    assert looks.to_the_nearest(head(), counts, "ac") == 4
    assert looks.to_the_nearest(head(), counts, "") == 1


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
