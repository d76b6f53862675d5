"""The joint levels in abprof/verdict/stats.py, computed again from nothing but normal deviates and Student's distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import stdtr

from abprof.verdict import stats

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
    """P(smallest p <= a') is alpha: never above (but for chance), and not needlessly below."""
    smallest = smallest_p(stats.LOOKS, PATHS, seed=20261120)
    for alpha, level in stats.JOINT[:-1]:
        rate = float((smallest <= level).mean())
        error = math.sqrt(alpha * (1 - alpha) / PATHS)
        assert rate < alpha + 3 * error, f"a'={level} gives {rate}, more than alpha={alpha}"
        assert rate > 0.94 * alpha - 3 * error, f"a'={level} gives {rate}, wastes alpha={alpha}"


@pytest.mark.slow
def test_the_two_levels_in_use_are_the_quantiles() -> None:
    smallest = smallest_p(stats.LOOKS, PATHS, seed=7)
    assert np.quantile(smallest, 0.05) == pytest.approx(dict(stats.JOINT)[0.05], rel=0.01)
    assert np.quantile(smallest, 0.10) == pytest.approx(dict(stats.JOINT)[0.10], rel=0.01)
