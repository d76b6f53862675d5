"""Some rounds of the campaign of random faults, and that it tells a broken promise. All of them:
`python -m tests.benchmarks.fault_campaign 0 1000`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulated import campaign
from tests.simulated.campaign import ENDS, drawn, play

# Between them: each way to end, and faults of cells, of workers and of both sides.
ROUNDS = [1, 10, 16, 19, 21, 23, 48, 62]


@pytest.mark.slow
@pytest.mark.parametrize("number", ROUNDS)
def test_a_round_keeps_every_promise(tmp_path: Path, number: int) -> None:
    assert play(drawn(number), tmp_path) == []


def test_the_rounds_here_end_in_every_way() -> None:
    assert {drawn(number).end for number in ROUNDS} == set(ENDS)


def test_a_wrong_verdict_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round without a fault, of which another truth is believed."""
    quiet = next(drawn(number) for number in range(100) if not drawn(number).faults and drawn(number).end == "none")
    monkeypatch.setitem(campaign.TRUTH, "w/case=slow", "same")
    [line] = play(quiet, tmp_path)
    assert line.startswith("w/case=slow is slower (), not same (round ")
