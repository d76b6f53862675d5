"""Some rounds of the campaign of random faults, and that it tells a broken promise. All of them:
`python -m tests.benchmarks.fault_campaign 0 1000`, and from 1000 on those of two devices (docs/RELIABILITY.md)."""

from __future__ import annotations

from pathlib import Path
from random import Random

import msgspec
import pytest

from tests import real_faults, runs
from tests.benchmarks import fault_campaign
from tests.fleet.test_pool import TWO, blocks, once_each, scenario
from tests.simulated import campaign, promises
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


def test_a_round_is_what_its_number_says() -> None:
    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)


def test_a_wrong_verdict_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round without a fault, of which another truth is believed."""
    quiet = next(drawn(number) for number in range(100) if not drawn(number).faults and drawn(number).end == "none")
    monkeypatch.setitem(campaign.TRUTH, "w/case=slow", "same")
    [line] = play(quiet, tmp_path)
    assert line.startswith("w/case=slow is slower (), not same (round ")


def test_what_stands_on_two_devices_is_told() -> None:
    first, second, *_ = runs.blocks(runs.run(), 2)
    blocks = [msgspec.structs.replace(b, cell="w/a", device=f"simulated:{n}") for n, b in enumerate((first, second))]
    assert [*promises.on_one_device(blocks)] == ["w/a stands on simulated:0 and simulated:1"]
    assert [*promises.on_one_device(blocks[:1] * 2)] == []


def test_a_cut_of_the_news_is_met(tmp_path: Path) -> None:
    """The trouble happens: a line with an epoch is said twice. Nothing of that shard stands, and every cell has its verdict."""
    lab = Lab(tmp_path, scenario())
    result = SHARD_TROUBLES["news cut"](lab, ("main", "fast", *TWO), Moment(0, 0), Random(5))
    (loss,) = result.run.losses
    assert loss.reason == "news lines received twice: 1"
    assert loss.shard not in {block.shard for block in blocks(result)}
    once_each(result.run, blocks(result))
    assert result.table() | {"w/n=2": "slower", "v/n=7": "faster"} == result.table()


@pytest.mark.slow
def test_a_round_with_real_workers_keeps_every_promise(tmp_path: Path) -> None:
    assert real_faults.play(real_faults.drawn(1), tmp_path) == []


def test_thirty_real_rounds_end_in_every_way() -> None:
    rounds = [real_faults.drawn(number) for number in range(30)]
    assert {round_.end for round_ in rounds} == set(real_faults.ENDS) <= TROUBLES.keys()
    planted = [round_.planted for round_ in rounds if round_.planted]
    assert len(planted) > 10
    for one in planted:
        compile(one.code, one.deed, "exec")


def test_a_campaign_that_was_cut_short_has_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quiet = next(number for number in range(100) if not drawn(number).faults)
    log = tmp_path / "log"
    log.write_text(f"round {quiet} kept, 3 s: no fault\nround {quiet + 1} broke, 4 s: x\nits promise (round 3 kept)\n")
    fault_campaign.table([log])
    said = capsys.readouterr().out
    assert f"| abprof: {drawn(quiet).end} | 1 | 0 |" in said
    assert "2 rounds, 1 broke a promise, 0 not played" in said
