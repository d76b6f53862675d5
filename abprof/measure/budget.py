"""What the time budget still affords: whether an epoch may begin, and with how many of its rounds.

No verdict is given before the first planned look (abprof/verdict/stats.py). While that is ahead, epochs are shortened rather than
that the budget ends before it: the epoch is the statistical unit, and fewer rounds make its value noisier, which widens
the intervals and cannot favour a verdict, because the share depends on what epochs cost and never on what they read.
Epochs of unequal scatter keep the intervals' level: Student's statistic of normal values with unequal variances exceeds
its critical values less often, not more, below a level of 0.083 (Bakirov & Szekely 2005; tests/simulations/test_looks.py).
"""

from __future__ import annotations

from abprof.verdict import stats

_RESERVE = 0.9  # epochs are planned for this part of what is left: the next may take longer than the last


class Budget:
    """Seconds of measuring, and what an epoch costs: `fixed` at least, and `more` with all of its rounds."""

    def __init__(self, seconds: float, done: int, fixed: float, more: float) -> None:
        """`done`: epochs of an earlier invocation that count towards the first look. The costs are guesses to begin
        with, and then what the last epoch took."""
        self.left = seconds
        self.done = done
        self.fixed = fixed
        self.more = more

    def share(self) -> float:
        """Of the rounds beyond the fewest, how many the next epoch takes (0 to 1), so that the first look fits in."""
        needed = stats.LOOKS[0] - self.done
        if needed <= 0 or not self.more:
            return 1.0
        return min(1.0, max(0.0, (_RESERVE * self.left / needed - self.fixed) / self.more))

    def affords(self, share: float) -> bool:
        """Whether another epoch still fits in."""
        return self.fixed + share * self.more <= self.left

    def charge(self, seconds: float, once: float, more: float, share: float) -> None:
        """An epoch of this share of rounds ended: `once` of its seconds no other epoch spends (checks, phases), `more`
        went into rounds beyond the fewest."""
        self.left -= seconds
        self.done += 1
        self.fixed = max(0.0, seconds - once - more)
        if share and more:
            self.more = more / share
