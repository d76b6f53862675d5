"""Times rescaled to one clock: when abprof judges them, with a wandering clock (abprof/verdict/cells.py)."""

import random

import msgspec
import pytest

from abprof.records import Block, Turn
from abprof.verdict import judge
from tests.blocks import block, head
from tests.test_verdict import only


def wandering(epoch: int, ratio: float, follow: float = 1.0, rounds: int = 12, **peers: float) -> Block:
    """Rounds in which each turn has a clock of its own between 1,400 and 1,800 MHz, and its time follows it to the
    power of `follow`: 1 for a kernel that computes, 0 for one that waits for memory; the target takes `ratio` as long."""
    chance, arms = random.Random(f"0/{epoch}/{ratio}"), {"base": 1.0, "target": ratio, **peers}
    made = []
    for i in range(rounds):
        row = []
        for arm, factor in enumerate(arms.values()):
            mhz = chance.uniform(1400, 1800)
            ns = 1e6 * factor * (1600 / mhz) ** follow * chance.lognormvariate(0, 2e-4)
            row.append(Turn(arm, i, i + 1, ns, ns, 0.0, mhz))
        made.append(tuple(row))
    return msgspec.structs.replace(block(epoch, arms), rounds=tuple(made))


@pytest.mark.parametrize("rounds", [12, 2, 1])
@pytest.mark.parametrize(("ratio", "verdict"), [(1.0, "same"), (1.02, "slower"), (0.98, "faster")])
def test_calls_whose_clock_wanders_are_judged_at_one_clock(ratio: float, verdict: str, rounds: int) -> None:
    """As read their ratios scatter by 10 %, and four epochs say nothing: not of a change of the clock either, so that `same`
    waits for slices without a pause."""
    turns = [wandering(epoch, ratio, rounds=rounds) for epoch in range(1, 5)]
    if verdict == "same":
        assert (only(judge(head(), turns)).verdict, only(judge(head(), turns)).reasons) == (
            "unclear",
            ("clock", "one_clock"),
        )
    slices = [block(epoch, {"base": 1.0, "target": ratio}, metric="gpu_sustained") for epoch in range(5, 9)]
    judged = judge(head(), [*turns, *slices])
    row = only(judged)
    assert (row.verdict, row.reasons) == (verdict, ("one_clock",))
    assert row.pct == pytest.approx(100 * ratio - 100, abs=0.05)
    assert abs(row.read_pct - row.pct) > 0.1
    base, target = (seen.metrics["wall"] for seen in judged.observations)
    assert target.value / base.value == pytest.approx(ratio, rel=1e-3), "the times shown are at one clock as well"
    assert " MHz" in base.protocol


def test_clock_rates_of_code_that_may_be_hostile_rescale_nothing() -> None:
    turns = [wandering(epoch, 0.98) for epoch in range(1, 5)]
    row = only(judge(head(settings={"untrusted": True, "check": "outside"}), turns))
    assert row.verdict == "unclear"
    assert row.read_pct is None


@pytest.mark.parametrize("rounds", [12, 1])
def test_times_that_do_not_follow_the_clock_stay_as_they_were_read(rounds: int) -> None:
    row = only(judge(head(), [wandering(epoch, 1.02, follow=0.0, rounds=rounds) for epoch in range(1, 5)]))
    assert (row.verdict, row.reasons, row.read_pct) == ("slower", (), None)
    assert row.pct == pytest.approx(2.0, abs=0.05)


def test_of_single_rounds_the_ratios_have_no_say_in_whether_the_clock_counts() -> None:
    """Their scatter from epoch to epoch is what the interval is made of: here it is ten times as much at one clock, while all
    arms together wander ten times less."""
    clocks = [(1500, 1.00, 1.004), (1800, 1.01, 0.996), (1400, 0.99, 1.004), (1700, 1.00, 0.996)]
    made = []
    for epoch, (mhz, level, ratio) in enumerate(clocks, start=1):
        base = Turn(0, 0, 1, 1e6 * level * 1600 / mhz, 1e6, 0.0, float(mhz))
        target = Turn(1, 1, 2, base.value * 1.0004, 1e6, 0.0, mhz * ratio)
        made.append(msgspec.structs.replace(block(epoch, {"base": 1.0, "target": 1.0}), rounds=((base, target),)))
    row = only(judge(head(), made))
    assert "one_clock" in row.reasons
    assert row.read_pct == pytest.approx(0.04, abs=0.001)
    assert row.high_pct - row.low_pct > 0.6
    three = only(judge(head(), made[:3]))
    assert "one_clock" not in three.reasons, "three ratios are too few"


def test_peers_do_not_make_the_sides_wander() -> None:
    wild = [wandering(epoch, 1.02, rounds=1, **{"peer:sdpa": 2.0 ** (epoch % 3)}) for epoch in range(1, 7)]
    row = judge(head(peers=("sdpa",)), wild).comparisons[0]
    assert (row.to, row.verdict, "one_clock" in row.reasons) == ("target", "slower", True)


@pytest.mark.parametrize(("follow", "counts"), [(1.0, True), (0.6, True), (0.5, False), (0.0, False)])
def test_the_clock_counts_where_it_lessens_the_wander_by_a_fifth(follow: float, counts: bool) -> None:
    """Times that follow it to the power of 0.6 wander by 0.6 of it as read, and by 0.4 at one clock."""
    row = only(judge(head(), [wandering(epoch, 1.02, follow=follow) for epoch in range(1, 9)]))
    assert ("one_clock" in row.reasons) == counts
