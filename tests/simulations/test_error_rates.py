"""Coverage, false alarms and power of the stopping rule, by simulation with fixed seeds.

Spreads are those measured on a GPU: epoch values of kernels of 0.3 ms and longer have an sd of 0.02 % to 0.2 %,
short ones of 1 % and more. Bounds are the design's error rates plus three standard errors of the simulation.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from abprof.verdict import stats
from tests.simulations.protocol import MOST, normal, verdicts

RUNS = 1_000


def upper(rate: float, runs: int) -> float:
    """Most hits a rule of this error rate may show in so many runs (three standard errors)."""
    return runs * rate + 3 * math.sqrt(runs * rate * (1 - rate))


def misses(alpha: float, runs: int, *, planned: bool) -> int:
    """Runs in which some look's interval misses the true change. `planned=False`: plain t intervals at each look."""
    rng = np.random.default_rng(5)
    found = 0
    for _ in range(runs):
        values = list(rng.normal(0.02, 0.005, MOST))
        for look in stats.LOOKS:
            seen = values[:look]
            interval = stats.repeated_interval(seen, alpha) if planned else stats.student_interval(seen, alpha)
            assert interval is not None
            if not interval.low <= 0.02 <= interval.high:
                found += 1
                break
    return found


@pytest.mark.parametrize("alpha", [0.05, 0.10])
def test_intervals_cover_jointly_over_all_looks(alpha: float) -> None:
    runs = 4_000
    found = misses(alpha, runs, planned=True)
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
