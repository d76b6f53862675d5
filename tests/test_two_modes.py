"""Two modes of an arm's times, as the page names them: with what they go, and how seldom noise with one mode has two."""

import random
import re
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import pytest

from abprof.records import Block, Turn
from abprof.session import judge_run
from abprof.verdict import stats
from tests.blocks import block, head
from tests.reports import html

SLOW = (0, 1, 1, 0, 0, 1, 0, 1, 0, 0, 1, 1)  # which epochs are in the slow mode


def named(made: Sequence[Block], cells: int = 1) -> list[str]:
    """What the page says of two modes, side by side with the mark in the title of the entry."""
    page = html(judge_run(head(cells), made), made)
    found = re.findall(r"<b>(\w+ has .*?)\.</b>", page)
    assert bool(found) == ("<b>two modes</b>" in page)
    return found


def epochs(count: int, slow: float = 1.1, **fields: object) -> list[Block]:
    """Epochs in which base is in one of two modes, and target in one."""
    return [
        block(i + 1, {"base": slow if SLOW[i] else 1.0, "target": 1.3}, noise=0.003, rounds=10, **fields)
        for i in range(count)
    ]


def turns(made: Sequence[Block], change: Callable[[Turn, int, int], Turn]) -> list[Block]:
    """The blocks after `change(turn, its place in the round, the arm before)` of each of base's turns."""
    changed = []
    for one in made:
        rows, before = [], -1
        for row in one.rounds:
            new = []
            for place, turn in enumerate(row):
                new.append(change(turn, place, before) if one.arms[turn.arm] == "base" else turn)
                before = turn.arm
            rows.append(tuple(new))
        changed.append(msgspec.structs.replace(one, rounds=tuple(rows)))
    return changed


def slower(turn: Turn, factor: float = 1.1, mhz: float = 0.0) -> Turn:
    return msgspec.structs.replace(turn, value=turn.value * factor, mhz=mhz)


def test_by_process() -> None:
    """From four epochs on, of which each mode has two or more."""
    assert named(epochs(4)) == [
        "base has two modes, 1.000 and 1.099 ms: they go with the process (2 and 2 of 4 processes)"
    ]
    assert named(epochs(3)) == []
    assert named(epochs(4, slow=1.004)) == []  # within the noise


def test_by_the_clock() -> None:
    """Time x clock is the same in both modes: of processes, and of turns."""
    made = [
        one
        for i, slow in enumerate(SLOW[:6])
        for one in [block(i + 1, {"base": 1.1 if slow else 1.0, "target": 1.3}, noise=0.003, rounds=10,
                          mhz={"base": 1500 / (1.1 if slow else 1.0), "target": 1500})]
    ]  # fmt: skip
    assert [said.partition(": ")[2] for said in named(made)] == ["they go with the clock (3 and 3 of 6 processes)"]
    dice = random.Random(1)
    mixed = turns(
        epochs(4, 1.0), lambda turn, *_: slower(turn, *((1.1, 1400.0) if dice.random() < 0.5 else (1.0, 1540.0)))
    )
    (said,) = named(mixed)
    assert "they go with the clock (" in said
    assert said.endswith("of 40 turns)")
    steady = turns(epochs(4, 1.0), lambda turn, *_: slower(turn, 1.1 if dice.random() < 0.5 else 1.0, 1500.0))
    assert "they go with nothing that was recorded (" in named(steady)[0]


def test_by_placement() -> None:
    """The order of the workers' start, the place in the round, the arm before."""
    started = [
        msgspec.structs.replace(one, start_order=("target", "base") if SLOW[one.epoch - 1] else ("base", "target"))
        for one in epochs(12)
    ]
    assert "they go with the order in which workers started (6 and 6 of 12 processes)" in named(started)[0]
    placed = turns(epochs(4, 1.0), lambda turn, place, _: slower(turn, 1.0 + 0.1 * place))
    assert "they go with the place in the round (" in named(placed)[0]
    follows = turns(epochs(4, 1.0), lambda turn, _, before: slower(turn, 1.1 if before == turn.arm else 1.0))
    assert "they go with the arm before (" in named(follows)[0]


def test_a_chance_order_is_no_explanation() -> None:
    """Of four processes, workers' orders agree with the modes in one case of three."""
    started = [
        msgspec.structs.replace(one, start_order=("target", "base") if SLOW[one.epoch - 1] else ("base", "target"))
        for one in epochs(4)
    ]
    assert "they go with the process (" in named(started)[0]


def test_a_coarse_timer_has_no_modes() -> None:
    made = turns(
        epochs(4, 1.0), lambda turn, *_: msgspec.structs.replace(turn, value=round(turn.value / 8192) * 8192.0)
    )
    assert len({turn.value for one in made for row in one.rounds for turn in row if turn.arm == 0}) < 5
    assert named(made) == []


@pytest.mark.parametrize("noise", [lambda d: d.normal(1.0, 0.01), lambda d: 1 + 0.01 * d.lognormal(0.0, 1.0)])
def test_noise_with_one_mode_is_named_in_one_arm_of_a_hundred_at_most(
    noise: Callable[[np.random.Generator], float],
) -> None:
    """300 cells with two arms, whose processes and turns scatter."""
    dice, made = np.random.default_rng(1), []
    for number in range(300):
        for epoch in range(1, (4, 6, 12)[number % 3] + 1):
            ratios, rounds = {"base": noise(dice), "target": noise(dice)}, (6, 20)[number % 2]
            one = block(epoch, ratios, cell=f"dense/n={number}", rounds=rounds)
            rows = tuple(tuple(slower(turn, noise(dice)) for turn in row) for row in one.rounds)
            made.append(msgspec.structs.replace(one, rounds=rows))
    assert len(named(made, 300)) <= 6


@pytest.mark.parametrize("count", [4, 5, 8, 24, 300])
def test_the_test_for_two_modes_holds_its_level(count: int) -> None:
    dice, draws = np.random.default_rng(count), 1000
    for values in (dice.normal(size=(draws, count)), dice.lognormal(0.0, 1.0, (draws, count))):
        assert sum(stats.two_modes(one) is not None for one in values) <= 0.01 * draws
    far = np.interp(count, (4, 5, 8, 12, 24, 60, 300), (50, 30, 15, 12, 7, 6, 5))  # standard deviations
    apart = dice.normal(size=(draws, count)) + np.where(np.arange(count) % 2, far, 0.0)
    assert sum(stats.two_modes(one) is not None for one in apart) >= 0.8 * draws


def test_the_picture_says_medians_in_words_and_few_turns_have_none() -> None:
    page = html(judge_run(head(), made := epochs(4)), made)
    (title,) = re.findall(r'<svg class="density".*?<title>(.*?)</title>', page)
    assert re.fullmatch(
        r"base: median [\d.]+ ms, 90 % of 40 turns within [\d.]+ µs to [\d.]+ ms; target: median .*", title
    )
    few = [block(1, {"base": 1.0, "target": 1.0}, rounds=5)]
    assert "density" not in re.sub("<style>.*?</style>", "", html(judge_run(head(), few), few), flags=re.DOTALL)
