"""Some rounds of the campaign of random faults, and that it tells a broken promise. All of them:
`python -m tests.benchmarks.fault_campaign 0 1000`, and from 1000 on those of two devices (docs/RELIABILITY.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulated import campaign
from tests.simulated.campaign import drawn, play
from tests.simulated.trouble import CannotPlay

# The first of each trouble, in the order of numbers.
FIRST = {drawn(number).end: number for number in reversed(range(200))}
SPREAD = {drawn(number).end: number for number in reversed(range(campaign.SPREAD, campaign.SPREAD + 60))}
FOUND = {
    1010: "clean left the note of a killed run's lease of a device that the run did not need any more",
    1025: "a shard's program without memory waited for ever for a thread that could not begin, and the run for it",
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
