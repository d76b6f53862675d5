"""Coverage, false alarms and power of the stopping rule, by simulation with fixed seeds.

Spreads are those measured on a GPU: epoch values of kernels of 0.3 ms and longer have an sd of 0.02 % to 0.2 %,
short ones of 1 % and more. Bounds are the design's error rates plus three standard errors of the simulation.
"""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import stdtr

from abprof.verdict import stats
from tests.simulations.protocol import MOST, normal, verdicts

RUNS = 1_000


def upper(rate: float, runs: int) -> float:
    """Most hits a rule of this error rate may show in so many runs (three standard errors)."""
    return runs * rate + 3 * math.sqrt(runs * rate * (1 - rate))


def misses(alpha: float, runs: int) -> int:
    """Runs in which some look's interval misses the true change."""
    rng = np.random.default_rng(5)
    found = 0
    for _ in range(runs):
        values = list(rng.normal(0.02, 0.005, MOST))
        for look in stats.LOOKS:
            interval = stats.repeated_interval(values[:look], alpha)
            if not interval.low <= 0.02 <= interval.high:
                found += 1
                break
    return found


@pytest.mark.parametrize("alpha", [0.05, 0.10])
def test_intervals_cover_jointly_over_all_looks(alpha: float) -> None:
    runs = 4_000
    found = misses(alpha, runs)
    assert found <= upper(alpha, runs)
    assert found >= 2 * runs * alpha - upper(alpha, runs)  # and are not wider than they need to be


@pytest.mark.parametrize(
    ("threshold", "margin", "sd"), [(1.5, 0.5, 0.2), (1.5, 0.5, 1.5), (0.5, 0.5, 0.15), (0.25, 0.25, 0.05)]
)
def test_no_false_alarm_on_the_same_code(threshold: float, margin: float, sd: float) -> None:
    found = verdicts(normal(0.0, sd), RUNS, seed=1, threshold=threshold, margin=margin)
    assert found["slower"] + found["faster"] <= 1, found  # H0 lies well inside the threshold: rarer than its bound


def test_false_alarms_at_the_threshold_keep_their_bound() -> None:
    """A change of exactly the threshold is the worst case: half of the 5 % on either side."""
    slower = verdicts(normal(1.5, 0.3), RUNS, seed=3)
    faster = verdicts(normal(-1.5, 0.3), RUNS, seed=4)
    assert slower["slower"] <= upper(0.025, RUNS), slower
    assert faster["faster"] <= upper(0.025, RUNS), faster


def test_false_same_at_the_margin_keeps_its_bound() -> None:
    for pct in (0.5, -0.5):
        found = verdicts(normal(pct, 0.3), RUNS, seed=6)
        assert found["same"] <= upper(0.05, RUNS), found


PATHS = 2_000_000


def smallest_p(looks: Sequence[int], paths: int, seed: int, scatter: Sequence[float] = (1.0,)) -> NDArray[np.float64]:
    """For each path of independent normal epoch values the smallest two-sided Student p over the looks.

    Student's statistic is pivotal: neither the true mean nor the spread matters, so standard deviates serve. `scatter`
    gives the first epochs spreads of their own, and its last value to all others.
    """
    spreads = np.array([scatter[min(epoch, len(scatter) - 1)] for epoch in range(looks[-1])])
    rng = np.random.default_rng(seed)
    found = []
    for start in range(0, paths, 100_000):
        values = spreads * rng.standard_normal((min(100_000, paths - start), looks[-1]))
        best = np.ones(len(values))
        for epochs in looks:
            seen = values[:, :epochs]
            t = np.abs(seen.mean(axis=1)) * math.sqrt(epochs) / seen.std(axis=1, ddof=1)
            best = np.minimum(best, 2 * stdtr(epochs - 1, -t))
        found.append(best)
    return np.concatenate(found)


@pytest.mark.slow
def test_every_row_of_the_table_keeps_its_joint_level() -> None:
    """P(smallest p <= a') is alpha: never above (but for chance), and not needlessly below. The two in use are its quantiles."""
    smallest = smallest_p(stats.LOOKS, PATHS, seed=20261120)
    for alpha, level in stats.JOINT[:-1]:
        rate = float((smallest <= level).mean())
        error = math.sqrt(alpha * (1 - alpha) / PATHS)
        assert rate < alpha + 3 * error, f"a'={level} gives {rate}, more than alpha={alpha}"
        assert rate > 0.94 * alpha - 3 * error, f"a'={level} gives {rate}, wastes alpha={alpha}"
    for alpha in (0.05, 0.10):
        assert np.quantile(smallest, alpha) == pytest.approx(dict(stats.JOINT)[alpha], rel=0.01)
