"""The search for the commits that made one row slower. Pure: no run is started here.

`search` is a generator: it yields an Ask (one measurement), is sent the Answer, and returns the Findings. The same answers
always lead to the same questions, so an interrupted bisection continues by replaying its answers. Between two ends:

1. Is the new end slower than the old end by more than the threshold?
2. Halve along first parents: is this commit slower than the old end by more than half of the whole change? Commits whose
   package content equals that of a measured commit are not measured. A commit without an answer (it does not build, or stays
   unclear) is passed over; what lies between the last fast and the first slow commit is then a range.
3. At a merge, search each merged branch from where it forked. The merge itself is a culprit only if no branch explains the
   change and it is slower than each of its parents.
4. Measure the culprit against its parent, in a run of its own.
5. Search what lies before and after the culprit in the same way, unless it is known not to be slower.

Error: an answer is certain once theta's repeated confidence interval (abprof/verdict/stats.py) lies on one side of the cut. A
wrong answer is wrong on one side only, so the two-sided interval at level 1 - 2a errs with probability a at most, however
often it is looked at. A search that plans m more steps gives the next step the share a/m of the error a that is left
(Bonferroni); all steps between one pair of ends together never exceed ERROR.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from abprof.records import Record
from abprof.sides import Link
from abprof.verdict import stats

ERROR = 0.05  # probability that any answer between one pair of ends is wrong
Question = Literal["ends", "step", "parent"]
Side = Literal["below", "above", "between"]


@dataclass(frozen=True)
class Ask:
    """Is `commit` slower than `base` by more than `cut` (a log ratio)?"""

    base: str
    commit: str
    question: Question
    cut: float
    error: float  # probability with which this answer may be wrong
    planned: int  # answers that the search still plans, including this one
    within: tuple[float, float] | None = None  # log ratios; certainly inside is an answer too: "between"


class Answer(Record, frozen=True, kw_only=True):
    """The answer for one row. `theta`, `low` and `high` are log ratios of time, commit over base."""

    result: Literal["below", "above", "between", "unclear", "cannot"]
    reason: str = ""  # of `unclear` and `cannot`
    theta: float | None = None
    low: float | None = None
    high: float | None = None
    epochs: int = 0


class Finding(Record, frozen=True, kw_only=True):
    """Commits that made a row slower. `answer` compares the last of `commits` with `parent`.

    `culprit`: one commit, certain, confirmed against its parent. `range`: one of several commits, certain, not narrowed
    further. `doubtful`: the steps lead here, the run against `parent` does not confirm it. `open`: it stays undecided
    whether anything in `commits` made the row slower.
    """

    kind: Literal["culprit", "range", "doubtful", "open"]
    commits: tuple[str, ...]
    parent: str
    answer: Answer


Steps = Generator[Ask, Answer, tuple[Finding, ...]]


def halvings(commits: int) -> int:
    """Steps that find one of `commits` by halving."""
    return math.ceil(math.log2(commits)) if commits > 1 else 0


def share(spent: float, planned: int) -> float:
    """The next step's share of the error that is left, rounded down to one with a table row in stats.py."""
    return stats.tabled(2 * max(0.0, ERROR - spent) / max(1, planned)) / 2


def side(values: Sequence[float], cut: float, error: float, within: tuple[float, float] | None = None) -> Side | None:
    """The side of the cut on which theta certainly lies; None while that is open. `values`: a log ratio per epoch.

    `between`: on no side for certain, and certainly inside `within`.
    """
    interval = stats.repeated_interval(values, 2 * error)
    if interval is None:
        return None
    if interval.low > cut:
        return "above"
    if interval.high < cut:
        return "below"
    return "between" if within and interval.inside(*within) else None


@dataclass(frozen=True)
class History:
    """The commits that the bad end has and the good end lacks.

    `links`: commit -> its link, parents before children, without `good`. `holds`: commit -> content of the kernel package;
    commits of equal content build and run the same.
    """

    good: str
    links: Mapping[str, Link]
    holds: Mapping[str, str]

    def same(self, one: str, other: str) -> bool:
        """Whether two commits hold the same package content."""
        return one == other or self.holds.get(one, one) == self.holds.get(other, other)

    def until(self, commit: str) -> set[str]:
        """A commit and its ancestors within this history."""
        found, todo = {commit}, [commit]
        while todo:
            link = self.links.get(todo.pop())
            new = {p for p in (link.parents if link else ()) if p not in found and (p in self.links or p == self.good)}
            found |= new
            todo += new
        return found

    def since(self, commit: str) -> set[str]:
        """A commit and its descendants."""
        found = {commit}
        for link in self.links.values():
            if not found.isdisjoint(link.parents):
                found.add(link.commit)
        return found

    def path(self, old: str, new: str, without: Set[str] = frozenset()) -> tuple[str, ...]:
        """The first parents of `new`, oldest first, without what `old` or `without` has; in front the commit they fork from.

        If `new` descends from `old`, only commits that descend from `old` too: one on a branch that was merged later lacks
        what `old` has, and cannot be compared with it.
        """
        known, later = self.until(old) | without, self.since(old)
        found: list[str] = []
        commit = new
        while commit in self.links and commit not in known and not (new in later and commit not in later):
            found.append(commit)
            commit = next(iter(self.links[commit].parents), "")
        return (old if new in later and commit not in without else commit, *reversed(found))

    def turns(self, path: Sequence[str]) -> tuple[str, ...]:
        """The first commit of a path, and those that change the package's content."""
        return (path[0], *(now for before, now in pairwise(path) if not self.same(before, now)))

    def inside(self, before: str, last: str, also: Iterable[str] = ()) -> tuple[str, ...]:
        """Commits that `last` has and `before` lacks and that change the package; `last` and `also` in any case."""
        new = (self.until(last) - self.until(before)) & self.links.keys()
        changed = {c for c in new if not any(self.same(c, parent) for parent in self.links[c].parents)}
        return self.ordered(changed | {last, *also})

    def ordered(self, commits: Iterable[str]) -> tuple[str, ...]:
        """The commits in the order of this history."""
        wanted = set(commits)
        return tuple(commit for commit in (self.good, *self.links) if commit in wanted)


def search(history: History, bad: str, threshold: float) -> Steps:
    """The findings between the good end and `bad`, in the order of the history. `threshold`: a log ratio.

    If the bad end is slower by more than the threshold, there is at least one finding.
    """
    found: dict[tuple[str, ...], Finding] = {}
    todo = [(history.good, bad)]
    while todo:
        for finding in (yield from _Between(history, *todo.pop(0), threshold, todo).run()):
            found.setdefault(finding.commits, finding)  # a branch that was merged twice is found twice
    place = {commit: number for number, commit in enumerate(history.links)}
    return tuple(sorted(found.values(), key=lambda finding: place.get(finding.commits[-1], -1)))


@dataclass
class _Between:
    """The search between one pair of ends. `rest` collects the pairs of ends that are left to search."""

    history: History
    old: str
    new: str
    threshold: float
    rest: list[tuple[str, str]]
    spent: float = 0.0  # of ERROR
    ends: Answer | None = None
    change: float = 0.0  # of the commit that is known to be slow, against `old`
    known: dict[str, Answer] = field(default_factory=dict)  # commit -> its answer against `old`

    def run(self) -> Steps:
        """The findings; none if the new end is not slower than the old one."""
        path = self.history.path(self.old, self.new)
        turns = self.history.turns(path)
        if len(turns) < 2:
            return ()
        self.ends = ends = yield self._ask("ends", self.old, self.new, self.threshold, halvings(len(turns) - 1) + 2)
        if ends.result == "below":
            return ()
        if ends.theta is None or ends.result not in {"above", "between"}:
            commits = self.history.inside(turns[0], turns[-1])
            return (Finding(kind="open", commits=commits, parent=self.old, answer=ends),)
        self.change, self.known[self.new] = ends.theta, ends
        before, suspects = yield from self._halve(turns)
        culprit = suspects[-1]
        self._search_later(before, culprit)
        if len(suspects) == 1:
            return (yield from self._confirm(before, culprit, path[path.index(culprit) - 1]))
        answer = yield self._against(before, culprit, 1)
        commits = self.history.inside(before, culprit, suspects)
        kind: Literal["range", "doubtful"] = "range" if answer.result == "above" else "doubtful"
        return (Finding(kind=kind, commits=commits, parent=before, answer=answer),)

    def _confirm(self, before: str, culprit: str, parent: str) -> Steps:
        """The findings of a commit that halving led to: its own, or those of the branches that it merged."""
        has = self.history.until(parent)
        tips = [tip for tip in self.history.links[culprit].parents if tip not in has]
        brought, explained = yield from self._branches(tips, has)
        if brought:
            if explained is None:
                more = yield from self._exceeds(culprit, tips)
            else:
                more = self._level(culprit) - self._level(before) - explained > self.threshold
            if not more:
                return brought
        answer = yield self._against(parent, culprit, 1 + len(tips))
        own = answer.result == "above" and not brought and (yield from self._exceeds(culprit, tips))
        # On a branch that forked before the good end a merge may bring in what that branch was slow by already.
        early = len(self.history.links[culprit].parents) > 1 and self.history.good not in self.history.until(self.old)
        if own and not early:
            return (Finding(kind="culprit", commits=(culprit,), parent=parent, answer=answer),)
        commits = self.history.inside(parent, culprit)
        return (*brought, Finding(kind="doubtful", commits=commits, parent=parent, answer=answer))

    def _branches(
        self, tips: Sequence[str], has: set[str]
    ) -> Generator[Ask, Answer, tuple[tuple[Finding, ...], float | None]]:
        """Findings on merged branches since they forked from `has`, and their whole change as a log ratio.

        The change is None if a branch had merged from `has`: it then counts some commits twice.
        """
        found: list[Finding] = []
        change, apart = 0.0, True
        for tip in (tip for tip in tips if tip in self.history.links):
            fork = self.history.path(self.old, tip, has)[0]
            branch = _Between(self.history, fork, tip, self.threshold, self.rest)
            found += yield from branch.run()
            change += (branch.ends.theta or 0.0) if branch.ends else 0.0
            had = self.history.until(tip)
            apart = apart and (had & has) <= self.history.until(fork)
            has = has | had
        return tuple(found), change if apart else None

    def _exceeds(self, merge: str, tips: Sequence[str]) -> Generator[Ask, Answer, bool]:
        """Whether a merge is slower than each branch that it merged."""
        for number, tip in enumerate(tips):
            if (yield self._against(tip, merge, len(tips) - number)).result != "above":
                return False
        return True

    def _halve(self, turns: Sequence[str]) -> Generator[Ask, Answer, tuple[str, tuple[str, ...]]]:
        """The last commit that is not slow, and those after it up to the first slow one: one, if all had an answer."""
        last = len(turns) - 1
        while True:
            low = max((i for i in range(1, last) if self._result(turns[i]) == "below"), default=0)
            slow = (i for i in range(low + 1, last) if self._result(turns[i]) in {"above", "between"})
            high = next(slow, last)
            inside = turns[low + 1 : high]
            todo = [commit for commit in inside if not self._result(commit)]
            if not todo:
                return turns[low], tuple(turns[low + 1 : high + 1])
            yield from self._step(_nearest(inside, todo), halvings(len(todo) + 1) + 1)

    def _step(self, commit: str, planned: int) -> Generator[Ask, Answer, None]:
        """Measure a commit. One that is certainly slower, and certainly not by the whole, is what is halved next."""
        within = (self.threshold, self.change - self.threshold)
        ask = self._ask("step", self.old, commit, self.change / 2, planned, within if within[0] < within[1] else None)
        self.known[commit] = answer = yield ask
        if answer.result == "between" and answer.theta is not None:
            self.change = answer.theta

    def _answer(self, commit: str) -> Answer | None:
        """The answer of a commit, or of one with the same content."""
        if self.history.same(commit, self.old):
            return Answer(result="below", theta=0.0, low=0.0, high=0.0)
        return next((answer for other, answer in self.known.items() if self.history.same(commit, other)), None)

    def _result(self, commit: str) -> str:
        answer = self._answer(commit)
        return answer.result if answer else ""

    def _level(self, commit: str) -> float:
        """Log ratio of a measured commit against the old end."""
        answer = self._answer(commit)
        return answer.theta or 0.0 if answer else 0.0

    def _search_later(self, before: str, culprit: str) -> None:
        """Note the pairs of ends before and after the culprit that may hold another one."""
        answer = self._answer(before)
        fast = answer is not None and answer.high is not None and answer.high < self.threshold
        if not fast and not self.history.same(before, self.old):
            self.rest.append((self.old, before))
        if not self.history.same(culprit, self.new):
            self.rest.append((culprit, self.new))

    def _against(self, parent: str, commit: str, planned: int) -> Ask:
        # One of several culprits need not make half of the whole change.
        return self._ask("parent", parent, commit, min(self.threshold, self.change / 2), planned)

    def _ask(
        self, question: Question, base: str, commit: str, cut: float, planned: int,
        within: tuple[float, float] | None = None,
    ) -> Ask:  # fmt: skip
        error = share(self.spent, planned)
        self.spent += error  # decided or not
        return Ask(base, commit, question, cut, error, planned, within)


def _nearest(inside: Sequence[str], todo: Sequence[str]) -> str:
    """The open commit nearest to the middle; the more have no answer, the further away: 1/2, 1/4, 3/4, 1/8, 5/8, ... (van
    der Corput), because commits that do not build often stand side by side."""
    share, part, number = 0.0, 0.5, len(inside) - len(todo) + 1
    while number:
        share += part * (number & 1)
        part, number = part / 2, number >> 1
    middle = share * (len(inside) - 1)
    places = {commit: place for place, commit in enumerate(inside)}
    return min(todo, key=lambda commit: abs(places[commit] - middle))
