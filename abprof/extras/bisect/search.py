"""Search for the commits that made one cell slower. This module only computes; docs/BISECT.md has the method.

`search` is a generator: it yields an Ask (a comparison to measure), receives the Answer, and returns the Findings. Its
questions depend only on earlier answers, so a resumed bisection repeats the recorded answers.

An answer is final when the confidence interval of the log ratio of times (commit over base) lies entirely above or
below `cut`. In a search between two commits, any answer is wrong with probability ERROR at most (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from abprof.records import Record
from abprof.records.quantities import interval, signed
from abprof.sides import Link
from abprof.verdict import stats

ERROR = 0.05  # largest probability that any answer between one pair of ends is wrong
Question = Literal["ends", "step", "parent"]
# Place of the next commit to try, as a fraction of the commits left. The index is the number of commits that gave no answer,
# because such commits are often neighbours.
_PARTS = (1 / 2, 1 / 4, 3 / 4, 1 / 8, 5 / 8, 3 / 8, 7 / 8)


@dataclass(frozen=True)
class Ask:
    """A question: is `commit` slower than `base` by more than `cut`, a log ratio of times?"""

    base: str
    commit: str
    question: Question
    cut: float
    error: float  # largest probability of a wrong answer

    @property
    def place(self) -> tuple[Question, str, str]:
        """Return a key that is equal for questions that one run can answer."""
        return self.question, self.base, self.commit


class Answer(Record, frozen=True, kw_only=True):
    """The answer to a question. `theta`: log ratio of times, commit over base. `low`, `high`: its confidence limits."""

    result: Literal["below", "above", "unclear", "cannot"]
    reason: str = ""  # of `unclear` and `cannot`
    theta: float | None = None
    low: float | None = None
    high: float | None = None
    epochs: int = 0

    @property
    def change(self) -> str:
        """Return the change of time and its confidence interval as text."""
        if self.theta is None or self.low is None or self.high is None:
            return self.reason or "no interval yet"
        theta, low, high = map(stats.percent, (self.theta, self.low, self.high))
        return f"{signed(theta, 2)} ({interval(low, high, 2)})"


class Finding(Record, frozen=True, kw_only=True):
    """Commits that made a cell slower. `answer` compares the last of `commits` with `parent`.

    `kind`: "culprit", one commit, confirmed against its parent; "range", one of `commits`, unknown which; "doubtful",
    the search led to `commits`, but the comparison with `parent` did not confirm them; "open", undecided whether any of
    `commits` made the cell slower.
    """

    kind: Literal["culprit", "range", "doubtful", "open"]
    commits: tuple[str, ...]
    parent: str
    answer: Answer


Steps = Generator[Ask, Answer, tuple[Finding, ...]]


def halvings(commits: int) -> int:
    """Return how many steps it takes to find one of `commits` commits by halving."""
    return math.ceil(math.log2(commits)) if commits > 1 else 0


def side(values: Sequence[float], ask: Ask) -> Literal["below", "above"] | None:
    """Return "below" or "above" if the interval of `values` (log ratios) lies on that side of `ask.cut`, else None."""
    interval = stats.repeated_interval(values, 2 * ask.error)
    if interval and interval.low > ask.cut:
        return "above"
    return "below" if interval and interval.high < ask.cut else None


@dataclass(frozen=True)
class History:
    """The commits reachable from the bad commit but not from the good one.

    `good`: the good commit. `links`: commit -> its Link, parents before children. `holds`: commit -> hash of the kernel
    package; commits with equal hashes build and run the same code.
    """

    good: str
    links: Mapping[str, Link]
    holds: Mapping[str, str]

    def same(self, one: str, other: str) -> bool:
        return one == other or self.holds.get(one, one) == self.holds.get(other, other)

    def until(self, commit: str) -> set[str]:
        """Return `commit` and its ancestors in this history, the good commit included."""
        found, todo = {commit}, [commit]
        while todo:
            link = self.links.get(todo.pop())
            new = {p for p in (link.parents if link else ()) if p not in found and (p in self.links or p == self.good)}
            found |= new
            todo += new
        return found

    def path(self, old: str, new: str, without: Set[str] = frozenset()) -> tuple[str, ...]:
        """Return the chain of first parents that ends with `new`, oldest first. It begins with `old` if `new` descends
        from `old`, else with the newest ancestor of `old` on it; or with a commit of `without`, if that is newer."""
        known, later = self.until(old) | without, {old}
        for link in self.links.values():
            if not later.isdisjoint(link.parents):
                later.add(link.commit)
        found: list[str] = []
        commit = new
        while commit in self.links and commit not in known and not (new in later and commit not in later):
            found.append(commit)
            commit = next(iter(self.links[commit].parents), "")
        return (old if new in later and commit not in without else commit, *reversed(found))

    def turns(self, path: Sequence[str]) -> tuple[str, ...]:
        """Return the first commit of `path` and every later commit that changes the kernel package."""
        return (path[0], *(now for before, now in pairwise(path) if not self.same(before, now)))

    def inside(self, before: str, last: str, also: Iterable[str] = ()) -> tuple[str, ...]:
        """Return the commits after `before` up to `last` that change the package, together with `last` and `also`."""
        new = (self.until(last) - self.until(before)) & self.links.keys()
        changed = {c for c in new if not any(self.same(c, parent) for parent in self.links[c].parents)}
        wanted = changed | {last, *also}
        return tuple(commit for commit in (self.good, *self.links) if commit in wanted)


def search(history: History, bad: str, threshold: float) -> Steps:
    """Search for the commits up to `bad` that made the cell slower, and return the findings, oldest first. There are
    none unless `bad` is slower than the good commit by more than `threshold`, a log ratio of times."""
    findings = yield from _Between(history, history.good, bad, threshold).run()
    # The search visits a branch twice if two merges bring it in: drop duplicates.
    found = {finding.commits: finding for finding in reversed(findings)}
    place = {commit: number for number, commit in enumerate(history.links)}
    return tuple(sorted(found.values(), key=lambda finding: place.get(finding.commits[-1], -1)))


@dataclass
class _Between:
    history: History
    old: str
    new: str
    threshold: float
    spent: float = 0.0  # part of ERROR that earlier questions used
    cut: float = 0.0
    known: dict[str, Answer] = field(default_factory=dict)  # commit -> answer of the comparison with `old`

    def run(self) -> Steps:
        """Search, and return the findings; () if `new` is not slower than `old`."""
        path = self.history.path(self.old, self.new)
        turns = self.history.turns(path)
        if len(turns) < 2:
            return ()
        self.cut = self.threshold
        ends = yield self._ask("ends", self.old, self.new, halvings(len(turns) - 1) + 2)
        if ends.result == "below":
            return ()
        if ends.theta is None or ends.result != "above":
            commits = self.history.inside(turns[0], turns[-1])
            return (Finding(kind="open", commits=commits, parent=self.old, answer=ends),)
        self.cut, self.known[self.new] = min(self.threshold, ends.theta / 2), ends
        before, suspects = yield from self._halve(turns)
        culprit = suspects[-1]
        if len(suspects) == 1:
            found = yield from self._confirm(culprit, path[path.index(culprit) - 1])
        else:
            answer = yield self._ask("parent", before, culprit, 1)
            commits = self.history.inside(before, culprit, suspects)
            kind: Literal["range", "doubtful"] = "range" if answer.result == "above" else "doubtful"
            found = (Finding(kind=kind, commits=commits, parent=before, answer=answer),)
        if not self.history.same(culprit, self.new):
            found += yield from _Between(self.history, culprit, self.new, self.threshold).run()
        return found

    def _halve(self, turns: Sequence[str]) -> Generator[Ask, Answer, tuple[str, tuple[str, ...]]]:
        """Return the last commit found not slower, and the commits after it up to the first commit found slower."""
        last = len(turns) - 1
        while True:
            low = max((i for i in range(1, last) if self._result(turns[i]) == "below"), default=0)
            high = next((i for i in range(low + 1, last) if self._result(turns[i]) == "above"), last)
            inside = turns[low + 1 : high]
            todo = [commit for commit in inside if not self._result(commit)]
            if not todo:
                return turns[low], tuple(turns[low + 1 : high + 1])
            commit = todo[int(len(todo) * _PARTS[(len(inside) - len(todo)) % len(_PARTS)])]
            self.known[commit] = yield self._ask("step", self.old, commit, halvings(len(todo) + 1) + 1)

    def _confirm(self, culprit: str, parent: str) -> Steps:
        """Compare `culprit` with its parent, and return the findings; for a merge, first search the merged branches."""
        has = self.history.until(parent)
        tips = [tip for tip in self.history.links[culprit].parents if tip not in has]
        brought: tuple[Finding, ...] = ()
        for tip in (tip for tip in tips if tip in self.history.links):
            fork = self.history.path(self.old, tip, has)[0]
            brought += yield from _Between(self.history, fork, tip, self.threshold).run()
            has = has | self.history.until(tip)
        if brought:
            return brought
        answer = yield self._ask("parent", parent, culprit, 1 + len(tips))
        # A branch that forked before the good end may have been slow already; then the merge brings the slowness in.
        own = not tips or self.history.good in self.history.until(self.old)
        for number, tip in enumerate(tips if answer.result == "above" else ()):
            own = own and (yield self._ask("parent", tip, culprit, len(tips) - number)).result == "above"
        if own and answer.result == "above":
            return (Finding(kind="culprit", commits=(culprit,), parent=parent, answer=answer),)
        commits = self.history.inside(parent, culprit)
        return (Finding(kind="doubtful", commits=commits, parent=parent, answer=answer),)

    def _result(self, commit: str) -> str:
        """Return "below", "above" etc. for `commit` or a commit of equal content; "" if neither was measured."""
        if self.history.same(commit, self.old):
            return "below"
        return next((answer.result for other, answer in self.known.items() if self.history.same(commit, other)), "")

    def _ask(self, question: Question, base: str, commit: str, planned: int) -> Ask:
        error = stats.tabled(2 * max(0.0, ERROR - self.spent) / planned) / 2  # rounded down to a level with a table row
        self.spent += error  # an answer that stays unclear uses up its part, too
        return Ask(base, commit, question, self.cut, error)
