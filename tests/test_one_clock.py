"""Times at one clock: when a cell is judged so, and what a clock that wandered may say (abprof/verdict/rounds.py)."""

from __future__ import annotations

import dataclasses
import math
import random

import msgspec
import numpy as np
import pytest

from abprof.records import Block, Outcome, Turn
from abprof.verdict import judge
from abprof.verdict.rounds import Columns, at_one_clock
from tests.blocks import block, head
from tests.test_verdict import only


def wandering(epoch: int, ratio: float, follow: float = 1.0, seed: int = 0, rounds: int = 12) -> Block:
    """Rounds in which each turn has a clock of its own between 1,400 and 1,800 MHz, and its time follows it to the
    power of `follow`: 1 for a kernel that computes, 0 for one that waits for memory; the target takes `ratio` as long."""
    chance = random.Random(f"{seed}/{epoch}/{ratio}")
    made = []
    for i in range(rounds):
        row = []
        for arm, factor in ((0, 1.0), (1, ratio)):
            mhz = chance.uniform(1400, 1800)
            ns = 1e6 * factor * (1600 / mhz) ** follow * chance.lognormvariate(0, 2e-4)
            row.append(Turn(arm, i, i + 1, ns, ns, 0.0, mhz))
        made.append(tuple(row))
    return msgspec.structs.replace(block(epoch, {"base": 1.0, "target": 1.0}), rounds=tuple(made))


@pytest.mark.parametrize("rounds", [12, 2, 1])
@pytest.mark.parametrize(("ratio", "verdict"), [(1.0, "same"), (1.02, "slower"), (0.98, "faster")])
def test_calls_whose_clock_wanders_are_judged_at_one_clock(ratio: float, verdict: str, rounds: int) -> None:
    """As read their ratios scatter by 10 %, and four epochs say nothing."""
    judged = judge(head(), [wandering(epoch, ratio, rounds=rounds) for epoch in range(1, 5)])
    row = only(judged)
    assert (row.verdict, row.reasons) == (verdict, ("one_clock",))
    assert row.pct == pytest.approx(100 * ratio - 100, abs=0.05)
    assert row.read_pct is not None
    assert abs(row.read_pct - row.pct) > 0.1
    base, target = (seen.metrics["wall"] for seen in judged.observations)
    assert target.value / base.value == pytest.approx(ratio, rel=1e-3), "the times shown are at one clock as well"
    assert " MHz" in base.protocol


@pytest.mark.parametrize("rounds", [12, 1])
def test_times_that_do_not_follow_the_clock_stay_as_they_were_read(rounds: int) -> None:
    row = only(judge(head(), [wandering(epoch, 1.02, follow=0.0, rounds=rounds) for epoch in range(1, 5)]))
    assert (row.verdict, row.reasons, row.read_pct) == ("slower", (), None)
    assert row.pct == pytest.approx(2.0, abs=0.05)


def test_an_arm_that_some_epochs_lack_does_not_make_them_wander() -> None:
    """A control twice as fast, which was lost in every second epoch."""
    made = []
    for epoch in range(1, 5):
        whole = wandering(epoch, 1.0, rounds=1)
        if epoch % 2:
            base = whole.rounds[0][0]
            control = Turn(2, 2, 3, base.value / 2, base.wall, 0.0, base.mhz)
            row = (*whole.rounds[0], control)
            outcomes = {**whole.outcomes, "control": Outcome(status="ok")}
            whole = msgspec.structs.replace(whole, arms=(*whole.arms, "control"), rounds=(row,), outcomes=outcomes)
        made.append(whole)
    made.append(msgspec.structs.replace(wandering(5, 1.0, rounds=1), rejected=(0,)))
    assert "one_clock" in only(judge(head(), made)).reasons


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
    assert "one_clock" not in three.reasons, "of three nobody can tell"


def test_the_clock_is_no_reason_to_call_the_same_what_is_slower_in_time() -> None:
    """A target that computes the same cycles, but at a clock that is 4 % lower whenever it runs."""
    chance = random.Random(1)

    def slowed(base: Turn) -> Turn:
        ns = base.value * 1.04 * chance.lognormvariate(0, 2e-4)
        return Turn(1, base.start, base.end, ns, ns, 0.0, base.mhz / 1.04)

    blocks = [
        msgspec.structs.replace(whole, rounds=tuple((base, slowed(base)) for base, _ in whole.rounds))
        for whole in (wandering(epoch, 1.0) for epoch in range(1, 5))
    ]
    row = only(judge(head(), blocks))
    assert (row.verdict, row.reasons) == ("unclear", ("clock",))


def test_one_unread_clock_costs_its_round_and_not_the_cell() -> None:
    blocks = [wandering(epoch, 1.02) for epoch in range(1, 5)]
    (base, target), *rest = blocks[0].rounds
    blocks[0] = msgspec.structs.replace(blocks[0], rounds=((base, msgspec.structs.replace(target, mhz=0.0)), *rest))
    assert only(judge(head(), blocks)).reasons == ("one_clock",)
    unread = tuple(tuple(msgspec.structs.replace(turn, mhz=0.0) for turn in row) for row in blocks[1].rounds)
    blocks[1] = msgspec.structs.replace(blocks[1], rounds=unread)
    assert "one_clock" not in only(judge(head(), blocks)).reasons, "a quarter of them: not known"


def test_peers_have_no_say_in_how_the_sides_are_judged() -> None:
    """Three that wait for memory while the clock wanders widely, beside two sides that compute: at one clock theirs scatter."""
    chance = random.Random(2)

    def with_peers(whole: Block) -> Block:
        rows = []
        for row in whole.rounds:
            peers = (chance.lognormvariate(0, 2e-4) * 1e6 for _ in range(3))
            rows.append(
                (*row, *(Turn(n, 0, 1, ns, ns, 0.0, chance.uniform(900, 2400)) for n, ns in enumerate(peers, 2)))
            )
        names = ("base", "target", "peer:a", "peer:b", "peer:c")
        outcomes = {name: Outcome(status="ok") for name in names}
        return msgspec.structs.replace(whole, arms=names, rounds=tuple(rows), outcomes=outcomes)

    run = head(peers=("a", "b", "c"))
    judged = judge(run, [with_peers(wandering(epoch, 1.0)) for epoch in range(1, 5)])
    row = next(row for row in judged.comparisons if row.from_ == "base")
    assert (row.verdict, row.reasons) == ("same", ("one_clock",))


# ---------------------------------------------------------------- epochs of a single round


def single(epoch: int, clock: float, *, follow: float = 1.0, read: bool = True, **more: float) -> Columns:
    """A round of base and target at a clock, which times follow to a power; `more` arms take what is said. The target's clock may
    not have been `read`."""
    times = {"base": 1e6 / clock**follow, "target": 1.001e6 / clock**follow, **more}
    values = {arm: np.array([time]) for arm, time in times.items()}
    clocks = {arm: np.array([1500 * clock if read or arm == "base" else math.nan]) for arm in times}
    return Columns(epoch, "", {}, values, values, clocks, {})


CLOCKS = (0.9, 1.0, 1.1, 0.95, 1.05, 1.0)


def test_peers_do_not_make_the_sides_wander() -> None:
    peers = (1e6, 4e6, 2e6, 9e6, 3e6, 1e6)
    digests = [
        single(i, clock, **{"peer:sdpa": peer}) for i, (clock, peer) in enumerate(zip(CLOCKS, peers, strict=True))
    ]
    assert at_one_clock(tuple(digests)) is not None


def test_one_arm_alone_has_no_ratio_and_stays_as_it_was_read() -> None:
    whole = [single(i, clock) for i, clock in enumerate(CLOCKS)]
    alone = [dataclasses.replace(one, values={"base": one.values["base"]}) for one in whole]
    assert at_one_clock(tuple(whole)) is not None
    assert at_one_clock(tuple(alone)) is None


def test_an_epoch_that_lost_a_side_does_not_turn_the_clock_off_for_the_others() -> None:
    whole = [single(i, clock) for i, clock in enumerate(CLOCKS)]
    lost = dataclasses.replace(whole[2], values={"base": whole[2].values["base"]})
    assert at_one_clock((*whole[:2], lost, *whole[3:])) is not None
    assert at_one_clock((*whole[:3], lost)) is None, "three are too few to tell"


def test_a_turn_whose_clock_was_not_read_costs_its_epoch_and_not_the_cell() -> None:
    digests = [single(i, clock, read=i < 5) for i, clock in enumerate(CLOCKS)]
    assert at_one_clock(tuple(digests)) is not None


@pytest.mark.parametrize(("follow", "counts"), [(1.0, True), (0.6, True), (0.5, False), (0.0, False)])
def test_the_clock_counts_where_it_lessens_the_wander_by_a_fifth(follow: float, counts: bool) -> None:
    """Times that follow it to the power of 0.6 wander by 0.6 of it as read, and by 0.4 at one clock."""
    assert (
        at_one_clock(tuple(single(i, clock, follow=follow) for i, clock in enumerate(CLOCKS))) is not None
    ) == counts
