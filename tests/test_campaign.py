"""Some rounds of the campaign of random faults, and that it tells a broken promise. All of them:
`python -m tests.benchmarks.fault_campaign 0 1000`, and from 1000 on those of two devices (docs/RELIABILITY.md)."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.fleet.test_pool import TWO, blocks, once_each, scenario
from tests.simulated import campaign
from tests.simulated.campaign import drawn, play
from tests.simulated.lab import Lab
from tests.simulated.shard_trouble import SHARD_TROUBLES
from tests.simulated.trouble import TROUBLES, CannotPlay, Moment

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


def test_the_rounds_here_end_in_every_way() -> None:
    assert FIRST.keys() == TROUBLES.keys()
    assert SPREAD.keys() > SHARD_TROUBLES.keys()


def test_a_cut_of_the_news_is_met(tmp_path: Path) -> None:
    """The trouble happens: a line with an epoch is said twice. Nothing of that shard stands, and every cell has its verdict."""
    lab = Lab(tmp_path, scenario())
    result = SHARD_TROUBLES["news cut"](lab, ("main", "fast", *TWO), Moment(0, 0), Random(5))
    (loss,) = result.run.losses
    assert loss.reason == "news lines received twice: 1"
    assert loss.shard not in {block.shard for block in blocks(result)}
    once_each(result.run, blocks(result))
    assert result.table() | {"w/n=2": "slower", "v/n=7": "faster"} == result.table()
