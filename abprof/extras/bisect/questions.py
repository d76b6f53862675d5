"""What a search asks of a measurement, what it is answered, and what it finds."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Literal

import msgspec

from abprof.records import Record

Question = Literal["ends", "step", "parent", "revert"]
Said = Literal["below", "above", "between", "unclear", "cannot"]


@dataclass(frozen=True)
class Ask:
    """Is `commit` slower than `base` by more than `cut` (a log ratio)?"""

    base: str
    commit: str
    question: Question
    cut: float
    error: float  # the share of the search's error that this answer may have
    planned: int  # answers that the search still plans, this one among them
    within: tuple[float, float] | None = None


class Answer(Record, frozen=True, kw_only=True):
    """What was found of one cell. `theta` with its interval is the log ratio of time, commit over base."""

    said: Said
    reason: str = ""  # of `unclear` and `cannot`
    theta: float | None = None
    low: float | None = None
    high: float | None = None
    epochs: int = 0

    @property
    def turned(self) -> Answer:
        """The same, base over commit."""
        low, high = (None if bound is None else -bound for bound in (self.high, self.low))
        return msgspec.structs.replace(self, theta=None if self.theta is None else -self.theta, low=low, high=high)


class Finding(Record, frozen=True, kw_only=True):
    """A commit that changed the cell; or the commits of which one did, where no smaller range could be decided.

    `culprit`, `range`: made it slower, certain, also against `parent` by a run of its own. `doubtful`: found, and not certain:
    not confirmed against `parent`, or it may have been taken back. `open`: whether anything between `parent` and the last of
    `commits` slowed the cell stayed undecided. `faster`: made it faster, which is told because of what was slow before.
    """

    kind: Literal["culprit", "range", "doubtful", "open", "faster"]
    commits: tuple[str, ...]
    parent: str
    answer: Answer  # the last commit against the parent
    undone: str = ""  # the commit that took it back; of `doubtful`: that may have


Steps = Generator[Ask, Answer, tuple[Finding, ...]]
