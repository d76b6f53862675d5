"""Some rounds of the campaign of random faults, and that it tells a broken promise. All of them:
`python -m tests.benchmarks.fault_campaign 0 1000`, and from 1000 on those of two devices (docs/RELIABILITY.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulated import campaign
from tests.simulated.campaign import drawn, play
from tests.simulated.shard_trouble import SHARD_TROUBLES
from tests.simulated.trouble import TROUBLES, CannotPlay

# The first of each trouble, in the order of numbers.
FIRST = {drawn(number).end: number for number in reversed(range(200))}
SPREAD = {drawn(number).end: number for number in reversed(range(campaign.SPREAD, campaign.SPREAD + 60))}
FOUND = {
    1010: "clean left the note of a killed run's lease of a device that the run did not need any more",
    143: "what workers had loaded died with a killed abprof, and verdicts rested on rounds that nothing vouched for",
    199: "a note of bytes that are no text in the state folder ended every run, and clean, as a bug",
    44: "the same, of one that was left without memory",
}


def played(number: int, folder: Path) -> list[str]:
    try:
        return play(drawn(number), folder)
    except CannotPlay as why:
        pytest.skip(str(why))


@pytest.mark.slow
@pytest.mark.parametrize("number", sorted((*FIRST.values(), *SPREAD.values())))
def test_a_round_keeps_every_promise(tmp_path: Path, number: int) -> None:
    assert played(number, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", sorted(FOUND))
def test_a_round_that_found_something_keeps_every_promise_now(tmp_path: Path, number: int) -> None:
    assert played(number, tmp_path) == []


def test_the_rounds_here_end_in_every_way() -> None:
    assert FIRST.keys() == TROUBLES.keys()
    assert SPREAD.keys() > SHARD_TROUBLES.keys()


def test_a_round_is_what_its_number_says() -> None:
    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)


def test_a_wrong_verdict_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round without a fault, of which another truth is believed."""
    quiet = next(drawn(number) for number in range(100) if not drawn(number).faults and drawn(number).end == "none")
    monkeypatch.setitem(campaign.TRUTH, "w/case=slow", "same")
    [line] = play(quiet, tmp_path)
    assert line.startswith("w/case=slow is slower (), not same (round ")
