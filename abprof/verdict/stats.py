"""The numbers behind the verdicts: pure functions of epoch values.

The statistical unit is the epoch (fresh worker processes). Its value D is the median over rounds of the pair's log ratio
log(to/from); the effect is theta, the mean of D over epochs. Everything is in log ratios unless a name says `percent`: an
equal step up and down cancels, and a ratio's interval is the exponential of its log's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

LOOKS = (4, 6, 8, 12, 16, 24, 32)  # epochs at which a verdict may be given
MOST_ATTEMPTS = 2 * LOOKS[-1]  # epochs after which a cell that keeps failing or losing all rounds is given up

# Repeated confidence intervals (Jennison & Turnbull 1984; for equivalence 1993): at look k the interval is
#     theta_k +- t(1 - a'/2; E_k - 1) * s_k / sqrt(E_k)
# with one a' for all looks, chosen so that all intervals of LOOKS cover together with probability 1 - alpha. The t
# statistics are pivotal, so a' is the alpha quantile of the smallest two-sided p over the looks. Row: (alpha, a').
# Monte Carlo of 10,000,000 paths, rounded down (wider intervals); tests/simulations/test_looks.py recomputes the table.
JOINT = (
    (0.0001, 1.40e-5), (0.0002, 2.95e-5), (0.0005, 7.75e-5), (0.001, 1.60e-4), (0.002, 3.28e-4), (0.005, 8.73e-4),
    (0.01, 1.83e-3), (0.02, 3.88e-3), (0.05, 0.0107), (0.10, 0.0235), (0.20, 0.0533), (0.30, 0.0879), (0.50, 0.1719),
    (0.70, 0.2819), (0.90, 0.4540), (1.0, 1.0),
)  # fmt: skip
_LEVEL = dict(JOINT)
_FEWEST_ORDERED = 6  # epochs
_LARGEST = 700.0  # exp() of more overflows


@dataclass(frozen=True)
class Interval:
    """theta with its interval, in log ratios, and the number of epochs it rests on."""

    theta: float
    low: float
    high: float
    epochs: int

    def inside(self, low: float, high: float) -> bool:
        return low < self.low and self.high < high


def last_look(epochs: int) -> int:
    """Epochs of the last planned look that `epochs` complete; 0 before the first."""
    return max((look for look in LOOKS if look <= epochs), default=0)


def repeated_interval(values: Sequence[float], alpha: float = 0.05, rounding: float = 0.0) -> Interval | None:
    """Repeated confidence interval at level 1 - alpha (a row of JOINT), jointly over all LOOKS; None before the first.

    Between looks it rests on the epochs of the last completed look, in the order of measuring: the joint level is a
    statement about the planned looks only. Equal values give zero width. `rounding`: the largest log ratio that rounded
    readings can hide, which widens the interval on both sides.
    """
    look = last_look(len(values))
    if not look:
        return None
    found = student_interval(values[:look], _LEVEL[alpha])
    return replace(found, low=found.low - rounding, high=found.high + rounding)


def expected_interval(values: Sequence[float], look: int, alpha: float = 0.05, rounding: float = 0.0) -> Interval:
    """The repeated interval that `look` epochs would give, if their mean and scatter were those of `values` (two at least)."""
    from scipy.special import stdtrit

    mean, error = _mean_and_error(values)
    half = float(stdtrit(look - 1, 1 - _LEVEL[alpha] / 2)) * error * math.sqrt(len(values) / look) + rounding
    return Interval(mean, mean - half, mean + half, look)


def tabled(alpha: float) -> float:
    """The largest level of JOINT that is not above `alpha`, else its smallest."""
    return max((row for row, _ in JOINT if row <= alpha), default=JOINT[0][0])


def student_interval(values: Sequence[float], alpha: float) -> Interval:
    """Two-sided Student interval of the mean at level 1 - alpha; needs two values."""
    from scipy.special import stdtrit

    mean, error = _mean_and_error(values)
    half = float(stdtrit(len(values) - 1, 1 - alpha / 2)) * error if error else 0.0
    return Interval(mean, mean - half, mean + half, len(values))


def p_beyond(values: Sequence[float], low: float, high: float) -> float | None:
    """P against "theta lies in [low, high]", corrected for all LOOKS; None before the first look.

    Twice the one-sided Student p towards the nearer bound, mapped through the distribution of the smallest p over the
    looks: p <= 0.05 exactly when the repeated 95 % interval lies beyond the bounds.
    """
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
    """P(smallest two-sided p over LOOKS <= `smallest`) under the null: JOINT, interpolated in log-log, and at most
    Bonferroni's bound. Below the first row that bound, or the row if it is less."""
    bound = min(1.0, len(LOOKS) * smallest)
    if smallest < JOINT[0][1]:
        return min(bound, JOINT[0][0])
    (alpha0, level0), (alpha1, level1) = next(rows for rows in pairwise(JOINT) if smallest <= rows[1][1])
    share = math.log(smallest / level0) / math.log(level1 / level0)
    return min(bound, alpha0 * math.exp(share * math.log(alpha1 / alpha0)))


def _mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard error; 0 for values equal up to rounding."""
    data = np.asarray(values, dtype=float)
    mean, spread = float(data.mean()), float(data.std(ddof=1))
    return mean, 0.0 if spread <= 1e-14 * max(1.0, abs(mean)) else spread / math.sqrt(data.size)


def percent(theta: float) -> float:
    """Change of time in per cent of a log ratio: 100 (exp(theta) - 1)."""
    return 100 * math.expm1(max(-_LARGEST, min(_LARGEST, theta)))


def band(pct: float) -> tuple[float, float]:
    """Log ratios of -pct and +pct per cent of time, symmetric in per cent. From 100 % nothing is faster than the band."""
    return (math.log1p(-pct / 100) if pct < 100 else -math.inf, math.log1p(pct / 100))


def half_width_pct(interval: Interval) -> float:
    """Half the interval's width, in per cent of time."""
    return (percent(interval.high) - percent(interval.low)) / 2


def detectable(values: Sequence[float], bound: float, power: float = 0.9) -> float | None:
    """The theta above `bound` that these epochs would have shown as certainly above `bound` with probability `power`;
    None before the first look.

    Given their scatter, the mean of E epochs is theta + t s / sqrt(E), with t of Student's distribution.
    """
    from scipy.special import stdtrit

    look = last_look(len(values))
    if not look:
        return None
    _, error = _mean_and_error(values[:look])
    return bound + error * float(stdtrit(look - 1, 1 - _LEVEL[0.05] / 2) + stdtrit(look - 1, power))


def more_often(after: int, before: int) -> float:
    """P, one-sided, that at least `after` of `after + before` events fall to one of two equally likely sides."""
    from scipy.special import bdtrc

    return float(bdtrc(after - 1, after + before, 0.5)) if after else 1.0


def lag_one(series: Sequence[Sequence[float]], p: float = 0.002) -> float | None:
    """Mean autocorrelation of neighbouring epoch values over the comparisons, if larger than chance allows; else None.

    Epochs are reordered at random, in all comparisons alike, since comparisons share epochs. `p`: share of the orders that
    may show as much. Comparisons with fewer than six epochs are left out: their orders are too few.
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
    """An arm's own time: geometric mean of its epoch medians and its 95 % Student interval (in logs; None with one epoch),
    as a description: no verdict uses it."""
    first = float(epoch_medians[0])
    if len(epoch_medians) == 1:
        return first, None, None
    if min(epoch_medians) == max(epoch_medians):
        return first, first, first
    own = student_interval([math.log(value) for value in epoch_medians], 0.05)
    return math.exp(own.theta), math.exp(own.low), math.exp(min(own.high, _LARGEST))


def false_alarm_bound(alarms: int, controls: int) -> float | None:
    """95 % upper bound on the false-alarm rate (Clopper & Pearson 1934, one-sided); None without controls."""
    from scipy.special import betaincinv

    if not controls:
        return None
    return 1.0 if alarms >= controls else float(betaincinv(alarms + 1, controls - alarms, 0.95))


def discoveries(p_values: Sequence[float | None], q: float = 0.05) -> list[bool]:
    """Which hypotheses Benjamini and Hochberg's procedure (1995) rejects at false-discovery rate q; None is not tested.

    Not scipy.stats.false_discovery_control, which takes a second to import at the end of every run.
    """
    known = sorted(p for p in p_values if p is not None)
    limit = max((p for k, p in enumerate(known, 1) if p * (len(known) / k) <= q), default=-1.0)
    return [p is not None and p <= limit for p in p_values]
