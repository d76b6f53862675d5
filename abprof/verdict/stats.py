"""Statistics of the verdicts: pure functions of epoch values.

A comparison has two arms, `from` and `to`. An epoch's value is the median, over the epoch's rounds, of the log ratio
log(to/from) of their times. The effect `theta` is the mean of the epoch values. Functions take and return log ratios
unless a name says `percent` or `pct`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from abprof.records import LOOKS
from abprof.records.messages import LONG_CALL

MOST_ATTEMPTS = 2 * LOOKS[-1]  # epochs after which a cell without a verdict is given up

# Repeated confidence intervals (Jennison & Turnbull 1984; for equivalence 1993): at look k the interval is
#     theta_k +- t(1 - a'/2; E_k - 1) * s_k / sqrt(E_k)
# with one a' for all looks, chosen so that all intervals of LOOKS cover together with probability 1 - alpha. The t
# statistics are pivotal, so a' is the alpha quantile of the smallest two-sided p over the looks. Row: (alpha, a').
# Monte Carlo of 10,000,000 paths, rounded down (wider intervals); tests/simulations/test_error_rates.py recomputes the table.
JOINT = (
    (0.0001, 1.40e-5), (0.0002, 2.95e-5), (0.0005, 7.75e-5), (0.001, 1.60e-4), (0.002, 3.28e-4), (0.005, 8.73e-4),
    (0.01, 1.83e-3), (0.02, 3.88e-3), (0.05, 0.0107), (0.10, 0.0235), (0.20, 0.0533), (0.30, 0.0879), (0.50, 0.1719),
    (0.70, 0.2819), (0.90, 0.4540), (1.0, 1.0),
)  # fmt: skip
_LEVEL = dict(JOINT)
_FEWEST_ORDERED = 6  # epochs: fewer have too few orders for `lag_one`
# Two modes: the best split of the values into two groups explains more of their variance than it does of noise with one
# mode in 0.5 % of all cases. Row: (number of values, that share), the largest of normal, lognormal (sigma 0.5 and 1) and
# uniform noise. Monte Carlo of 200,000 draws; the split of very many uniform values explains 0.75.
_ONE_MODE = (
    (4, 0.9982), (5, 0.9942), (6, 0.9881), (7, 0.9832), (8, 0.9778), (10, 0.9697), (12, 0.9613), (16, 0.947), (20, 0.9248),
    (24, 0.9048), (32, 0.8852), (48, 0.855), (64, 0.8419), (100, 0.824), (200, 0.8029), (400, 0.7873), (1000, 0.7741),
)  # fmt: skip
_TICKS = 3.0  # least distance of two modes, in steps of the timer: coarse times lie on few values
_LARGEST = 700.0  # log ratio: exp() of more overflows


@dataclass(frozen=True)
class Interval:
    """Confidence interval of an effect, which is the mean log ratio `theta`, from the values of `epochs` epochs."""

    theta: float
    low: float
    high: float
    epochs: int

    def inside(self, low: float, high: float) -> bool:
        return low < self.low and self.high < high


def epochs_for_same(margin: float) -> int:
    """Return the look up to which a cell that is `same` is measured, for a margin in per cent.

    Processes that take 10 % longer shift the mean by twice the margin if their share is margin / 5 %. The epochs up to
    this look hold one of them with a probability of 90 % (margin 0.5 %: 24 epochs; 5 %: the first look).
    """
    share = min(0.99, margin / 5)
    needed = math.log(0.1) / math.log1p(-share) if share else math.inf
    return next((look for look in LOOKS if look >= needed), LOOKS[-1])


def epochs_if_unchanged(scatter: float, margin: float, seconds: float) -> int:
    """Return the look at which an unchanged cell is usually `same`; more than the last look if it is not. `scatter` is
    the standard deviation of an epoch's value and `margin` the margin, both in per cent; a call takes `seconds`."""
    from scipy.special import stdtrit

    fewest = epochs_for_same(margin) if seconds * 1e9 <= LONG_CALL else LOOKS[0]
    return next(
        (
            look for look in LOOKS
            if look >= fewest and stdtrit(look - 1, 1 - _LEVEL[0.10] / 2) * scatter / math.sqrt(look) < margin
        ),
        LOOKS[-1] + 1,
    )  # fmt: skip


def last_look(epochs: int) -> int:
    """Return the last look that `epochs` epochs have reached; 0 before the first look."""
    return max((look for look in LOOKS if look <= epochs), default=0)


def repeated_interval(values: Sequence[float], alpha: float = 0.05, rounding: float = 0.0) -> Interval | None:
    """Return the confidence interval of the mean log ratio at the last look reached; None before the first look.

    The intervals of all looks together contain the true mean with probability 1 - `alpha`, a value listed in the table
    JOINT. `rounding` (log ratio) widens the interval on both sides, for times printed with few digits.
    """
    look = last_look(len(values))
    return expected_interval(values[:look], look, alpha, rounding) if look else None


def expected_interval(values: Sequence[float], look: int, alpha: float, rounding: float) -> Interval:
    """Return the interval to expect after `look` epochs, if mean and scatter stay as in `values` (at least two)."""
    return _student(values, _LEVEL[alpha], look, rounding)


def tabled(alpha: float) -> float:
    """Return the largest alpha listed in this module's table JOINT that is not above `alpha`, or else the smallest."""
    return max((row for row, _ in JOINT if row <= alpha), default=JOINT[0][0])


def student_interval(values: Sequence[float], alpha: float) -> Interval:
    """Return Student's two-sided confidence interval, at level 1 - `alpha`, of the mean of two or more values."""
    return _student(values, alpha, len(values), 0.0)


def _student(values: Sequence[float], alpha: float, count: int, rounding: float) -> Interval:
    from scipy.special import stdtrit

    mean, error = _mean_and_error(values)
    half = float(stdtrit(count - 1, 1 - alpha / 2)) * error * math.sqrt(len(values) / count) if error else 0.0
    return Interval(mean, mean - half - rounding, mean + half + rounding, count)


def p_beyond(values: Sequence[float], low: float, high: float) -> float | None:
    """Return the p-value for the hypothesis that the true mean lies in [low, high]; None before the first look. The
    p-value allows for repeated looks: p <= 0.05 exactly if the 95 % `repeated_interval` lies outside [low, high]."""
    from scipy.special import stdtr

    look = last_look(len(values))
    if not look:
        return None
    mean, error = _mean_and_error(values[:look])
    if error == 0:
        return 0.0 if mean > high or mean < low else 1.0
    up, down = (mean - high) / error, (low - mean) / error
    return joint_p(min(1.0, 2 * float(stdtr(look - 1, -max(up, down)))))


def joint_p(smallest: float) -> float:
    """Correct a two-sided p-value, the smallest of all looks, for having looked several times."""
    bound = min(1.0, len(LOOKS) * smallest)
    if smallest < JOINT[0][1]:
        return min(bound, JOINT[0][0])
    (alpha0, level0), (alpha1, level1) = next(rows for rows in pairwise(JOINT) if smallest <= rows[1][1])
    share = math.log(smallest / level0) / math.log(level1 / level0)
    return min(bound, alpha0 * math.exp(share * math.log(alpha1 / alpha0)))


def _mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    data = np.asarray(values, dtype=float)
    mean, spread = float(data.mean()), float(data.std(ddof=1))
    return mean, 0.0 if spread <= 1e-14 * max(1.0, abs(mean)) else spread / math.sqrt(data.size)


def percent(theta: float) -> float:
    """Convert a log ratio to a change of time in per cent: 100 (exp(theta) - 1)."""
    return 100 * math.expm1(max(-_LARGEST, min(_LARGEST, theta)))


def band(pct: float) -> tuple[float, float]:
    """Convert -`pct` and +`pct` per cent of time to log ratios; the first is -inf if `pct` is 100 or more."""
    return (math.log1p(-pct / 100) if pct < 100 else -math.inf, math.log1p(pct / 100))


def half_width_pct(interval: Interval) -> float:
    """Return half the interval's width, in per cent of time."""
    return (percent(interval.high) - percent(interval.low)) / 2


def detectable(values: Sequence[float], bound: float, power: float = 0.9) -> float | None:
    """Return the smallest effect (log ratio) whose 95 % interval lies above `bound` with probability `power`. Assumes
    as many epochs as `values` holds, with the same scatter. Returns None before the first look."""
    from scipy.special import stdtrit

    look = last_look(len(values))
    if not look:
        return None
    _, error = _mean_and_error(values[:look])
    return bound + error * float(stdtrit(look - 1, 1 - _LEVEL[0.05] / 2) + stdtrit(look - 1, power))


def more_often(after: int, before: int) -> float:
    """Return the p-value of a one-sided sign test that events became more frequent, from `before` to `after` events."""
    from scipy.special import bdtrc

    return float(bdtrc(after - 1, after + before, 0.5)) if after else 1.0


def lag_one(series: Sequence[Sequence[float]], p: float = 0.002) -> float | None:
    """Return the lag-one autocorrelation of epoch values, averaged over comparisons; None if it is not significant.

    `series` holds the epoch values of each comparison. A permutation test at level `p` decides what is significant.
    Returns None with fewer than six epochs.
    """
    most = max(map(len, series), default=0)
    used = [np.asarray(each) - np.mean(each) for each in series if len(each) == most and len(set(each)) > 1][:200]
    if most < _FEWEST_ORDERED or not used:
        return None
    values = np.stack(used)
    values /= np.sqrt((values**2).sum(axis=1, keepdims=True))
    seen = float((values[:, :-1] * values[:, 1:]).sum(axis=1).mean())
    dice, orders = np.random.default_rng(0), round(2 / p)
    as_large = 0
    for _ in range(orders):
        moved = values[:, dice.permutation(most)]
        as_large += float((moved[:, :-1] * moved[:, 1:]).sum(axis=1).mean()) >= seen
    return seen if (1 + as_large) / (1 + orders) <= p else None


def own_time(epoch_medians: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Return the geometric mean of an arm's epoch medians, and the bounds of its 95 % interval (None with one epoch).
    Reports show these numbers; verdicts do not use them."""
    first = float(epoch_medians[0])
    if len(epoch_medians) == 1:
        return first, None, None
    if min(epoch_medians) == max(epoch_medians):
        return first, first, first
    own = student_interval([math.log(value) for value in epoch_medians], 0.05)
    return math.exp(own.theta), math.exp(own.low), math.exp(min(own.high, _LARGEST))


def false_alarm_bound(alarms: int, controls: int) -> float | None:
    """Return the upper 95 % bound of the false-alarm rate (Clopper & Pearson 1934); None without controls."""
    from scipy.special import betaincinv

    if not controls:
        return None
    return 1.0 if alarms >= controls else float(betaincinv(alarms + 1, controls - alarms, 0.95))


def discoveries(p_values: Sequence[float | None], q: float = 0.05) -> list[bool]:
    """Return for each p-value whether it is significant by Benjamini and Hochberg's method (1995). `q` is the false-
    discovery rate. A p-value of None (not tested) gives False."""
    known = sorted(p for p in p_values if p is not None)
    limit = max((p for k, p in enumerate(known, 1) if p * (len(known) / k) <= q), default=-1.0)
    return [p is not None and p <= limit for p in p_values]


# ---------------------------------------------------------------- two modes


def two_modes(values: ArrayLike) -> float | None:
    """Return the value that parts two modes of `values`; None if they show one mode, or are fewer than four.

    Each mode has a tenth of the values or more, and at least two. The lowest and the highest twentieth do not count.
    """
    every = np.sort(np.asarray(values, dtype=float))
    x = every[len(every) // 20 : len(every) - len(every) // 20]
    n, least = len(x), max(2, math.ceil(len(x) / 10))
    if n < 2 * least or x[0] == x[-1]:
        return None
    k = np.arange(least, n - least + 1)  # sizes of the lower group
    between = np.cumsum(x - x.mean())[k - 1] ** 2 * n / (k * (n - k))
    best = int(k[between.argmax()])
    counts, shares = zip(*_ONE_MODE, strict=True)
    apart = x[best:].mean() - x[:best].mean() > _TICKS * np.diff(np.unique(x)).min()
    if not apart or between.max() / ((x - x.mean()) ** 2).sum() <= np.interp(len(every), counts, shares):
        return None
    return float(x[best - 1] + x[best]) / 2


def goes_with(high: ArrayLike, factor: ArrayLike, p: float = 0.01) -> bool:
    """Whether groups of equal `factor` explain half of the variance of `high` or more, and by chance a random order of
    `high` seldom does (permutation test at level `p`)."""
    groups = np.unique(factor, return_inverse=True)[1]
    sizes, x = np.bincount(groups), np.asarray(high, dtype=float)
    x = x - x.mean()

    def explained(x: NDArray[np.float64]) -> float:
        return float((np.bincount(groups, x) ** 2 / sizes).sum())

    seen, dice, orders = explained(x), np.random.default_rng(0), round(2 / p)
    if seen < 0.5 * (x @ x):
        return False
    as_large = sum(explained(dice.permutation(x)) >= seen * (1 - 1e-9) for _ in range(orders))
    return (1 + as_large) / (1 + orders) <= p
