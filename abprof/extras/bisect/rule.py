"""Pure: when an answer is certain, and how the error that is allowed is split over a search.

A step asks one question: is the change of time, theta, above or below a cut? It is answered when theta's repeated confidence
interval (abprof/verdict/stats.py) has left the cut behind on one side. A wrong answer is wrong on one side only, so the two-sided
interval at level 1 - 2a errs with probability a at most, whenever it is looked at.

A search that plans m more steps gives its next one the share a/m of the error a that is left (Bonferroni; what a step was
given counts as spent, decided or not). As many steps as planned get a/m each; where there are more, because commits cannot
be built, later shares are smaller, and all together never exceed the 5 % that the search began with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from abprof.verdict import stats

ERROR = 0.05  # of a whole search: that any of its answers is wrong
Side = Literal["below", "above", "between"]


def steps(turns: int) -> int:
    """Steps that find one of `turns` commits by halving."""
    return math.ceil(math.log2(turns)) if turns > 1 else 0


def share(spent: float, planned: int) -> float:
    """The next step's share of the error that is left, rounded down to one that stats.py has a table row for."""
    return stats.tabled(2 * max(0.0, ERROR - spent) / max(1, planned)) / 2


def side(values: Sequence[float], cut: float, error: float, within: tuple[float, float] | None = None) -> Side | None:
    """On which side of the cut theta certainly lies, None while that is open. All in log ratios; `values` are an epoch each.

    `between`: not on a certain side, and certainly inside `within`.
    """
    interval = stats.repeated_interval(values, 2 * error)
    if interval is None:
        return None
    if interval.low > cut:
        return "above"
    if interval.high < cut:
        return "below"
    return "between" if within and interval.inside(*within) else None
