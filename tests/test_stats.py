"""Numbers behind verdicts, against hand-worked values, scipy's own procedures, and laws that must hold."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as reference

from abprof.verdict import stats

FOUR = [0.010, 0.012, 0.008, 0.014]


def test_interval_agrees_with_scipys_t_test() -> None:
    wide = stats.repeated_interval(FOUR, 0.10)
    expected = reference.ttest_1samp(FOUR, 0.0).confidence_interval(1 - 0.0235)
    assert (wide.low, wide.high) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize(
    ("epochs", "look"), [(0, 0), (3, 0), (4, 4), (5, 4), (6, 6), (7, 6), (31, 24), (32, 32), (40, 32)]
)
def test_last_look(epochs: int, look: int) -> None:
    assert stats.last_look(epochs) == look


@given(st.lists(st.floats(-0.5, 0.5), min_size=4, max_size=40), st.floats(0, 0.2))
def test_p_says_the_same_as_the_interval(values: list[float], half_band: float) -> None:
    """p <= 0.05 exactly when the 95 % interval is beyond the band: a row and the header can't contradict each other."""
    interval, p = stats.repeated_interval(values), stats.p_beyond(values, -half_band, half_band)
    if abs(p - 0.05) > 1e-9:
        assert (p < 0.05) == (interval.low > half_band or interval.high < -half_band)


@given(st.floats(0, 1), st.floats(0, 1))
def test_joint_p_increases_and_is_a_bound(a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert stats.joint_p(low) <= stats.joint_p(high) * (1 + 1e-12)
    assert a <= stats.joint_p(a) * (1 + 1e-12)
    assert stats.joint_p(a) <= min(1.0, len(stats.LOOKS) * a * (1 + 1e-12))


def test_own_time_is_the_geometric_mean_with_its_interval() -> None:
    found = stats.own_time([100.0, 110.0, 121.0])
    logs = np.log([100.0, 110.0, 121.0])
    expected = reference.ttest_1samp(logs, 0.0).confidence_interval(0.95)
    assert found == pytest.approx((110.0, math.exp(expected.low), math.exp(expected.high)))
    assert stats.own_time([100.0]) == (100.0, None, None)
    assert stats.own_time([100.0, 100.0]) == (100.0, 100.0, 100.0)


@pytest.mark.parametrize(("alarms", "controls"), [(0, 6), (1, 6), (3, 40), (0, 59)])
def test_false_alarm_bound_agrees_with_scipys_exact_test(alarms: int, controls: int) -> None:
    exact = reference.binomtest(alarms, controls, alternative="less").proportion_ci(0.95, method="exact")
    assert stats.false_alarm_bound(alarms, controls) == pytest.approx(exact.high)


def test_discoveries_by_hand() -> None:
    """Benjamini and Hochberg at 5 %: p(k) <= k * 0.05 / 5 holds up to k = 2."""
    assert stats.discoveries([0.009, 0.8, 0.02, 0.04, 0.9]) == [True, False, True, False, False]
    assert stats.discoveries([]) == []
    assert stats.discoveries([0.04]) == [True]
