"""When an answer is certain, and how the error is split."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abprof.extras.bisect import rule
from abprof.verdict import stats

CUT = math.log(1.015)


@pytest.mark.parametrize(("turns", "steps"), [(0, 0), (1, 0), (2, 1), (3, 2), (64, 6), (65, 7), (1000, 10)])
def test_halving_takes_the_logarithm(turns: int, steps: int) -> None:
    assert rule.steps(turns) == steps


@given(st.lists(st.integers(2, 12), max_size=40))
def test_all_shares_together_never_exceed_the_error(planned: list[int]) -> None:
    """Whatever is planned as steps are taken, as long as one more is: the last takes what is left."""
    spent = 0.0
    for number in [*planned, 1]:
        part = rule.share(spent, number)
        assert part > 0
        spent += part
    assert spent <= rule.ERROR + 1e-12


def test_a_plan_that_is_kept_gives_each_step_about_its_part() -> None:
    spent = 0.0
    for left in range(8, 0, -1):
        part = rule.share(spent, left)
        assert rule.ERROR / 8 / 2.5 <= part <= (rule.ERROR - spent) / left
        spent += part


def test_an_answer_needs_its_interval_on_one_side() -> None:
    def values(middle: float, scatter: float, epochs: int) -> list[float]:
        return [middle + scatter * (1 if i % 2 else -1) for i in range(epochs)]

    assert rule.side(values(0.0, 1e-4, 3), CUT, 0.005) is None  # before the first look
    assert rule.side(values(0.0, 1e-4, 4), CUT, 0.005) == "below"
    assert rule.side(values(2 * CUT, 1e-4, 4), CUT, 0.005) == "above"
    assert rule.side(values(CUT, 1e-4, 4), CUT, 0.005) is None
    assert rule.side(values(CUT, 1e-4, 4), CUT, 0.005, (0.5 * CUT, 1.5 * CUT)) == "between"
    wide = values(1.5 * CUT, CUT / 3, 8)
    assert (rule.side(wide, CUT, 0.05), rule.side(wide, CUT, 0.00005)) == ("above", None)


@pytest.mark.slow
@pytest.mark.parametrize("error", [0.005, 0.01, 0.025])
def test_how_often_an_answer_is_wrong(error: float) -> None:
    """Theta a hair above the cut, looked at after every epoch until an answer: `below` is wrong, and comes with no more
    than the error's probability (4,000 searches: three standard deviations)."""
    rng, many = np.random.default_rng(1), 4000
    wrong = 0
    for values in rng.normal(CUT, 1e-3, (many, stats.LOOKS[-1])):
        answers = (rule.side([*values[:look]], CUT, error) for look in stats.LOOKS)
        wrong += next((answer for answer in answers if answer), None) == "below"
    assert wrong / many <= error + 3 * math.sqrt(error / many)
