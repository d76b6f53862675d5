"""Pure: from one answer to the next question, until the commits are found that made a cell slower.

`explore` is a generator: it yields a question, is sent the answer, and returns its findings. The same answers always lead the
same way, so a search that was interrupted is gone on with by sending it the answers that it had.

    1. The ends: is the bad end slower than the good one by more than the threshold? If not, nothing is to be found.
    2. Steps along first parents: is this commit slower than the good end by more than half of the whole change? Commits that
       hold what another one holds are not asked about. Where there is no answer (it cannot be built; it stays unclear) others
       are taken, in widening halves, and what lies between the last below and the first above is a range.
    3. A merge: each branch that it brought in is searched by itself, from where it left; the merge itself is a culprit where
       none of them did it and it is slower than each of its parents.
    4. The commit against its parent, by a run of its own.
    5. What is left of the change, before it and after it: the same again from 1. A commit that was taken back (its revert
       names it) is told, and the search goes on after the revert.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence, Set
from dataclasses import dataclass, field
from typing import Literal

from abprof.bisect import rule
from abprof.bisect.lineage import History
from abprof.model import Record

Question = Literal["ends", "step", "parent"]
Said = Literal["below", "above", "between", "unclear", "cannot"]
SLOW: frozenset[Said] = frozenset({"above", "between"})


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


class Finding(Record, frozen=True, kw_only=True):
    """A commit that made the cell slower; or the commits of which one did, where no smaller range could be decided.

    `culprit`, `range`: certain, also against `parent` by a run of its own. `doubtful`: found step by step, and not confirmed
    against `parent`. `open`: whether anything between `parent` and the last of `commits` slowed the cell stayed undecided.
    """

    kind: Literal["culprit", "range", "doubtful", "open"]
    commits: tuple[str, ...]
    parent: str
    answer: Answer  # the last commit against the parent
    undone: str = ""  # the commit that took it back


Steps = Generator[Ask, Answer, tuple[Finding, ...]]


def explore(history: History, bad: str, threshold: float) -> Steps:
    """All findings between the ends of a history, in its order. `threshold` is a log ratio."""
    found: list[Finding] = []
    todo = [(history.good, bad)]
    while todo:
        search = _Search(history, *todo.pop(0), threshold)
        found += yield from search.run()
        todo += search.rest
    place = {commit: number for number, commit in enumerate(history.ordered(history.links))}
    found = list({finding.commits: finding for finding in found}.values())  # a branch that was merged twice
    return tuple(sorted(found, key=lambda finding: place.get(finding.commits[-1], -1)))


@dataclass
class _Search:
    """The search between one pair of ends. `rest`: what is to be searched after it."""

    history: History
    old: str
    new: str
    threshold: float
    rest: list[tuple[str, str]] = field(default_factory=list)
    spent: float = 0.0
    change: float = 0.0
    known: dict[str, Answer] = field(default_factory=dict)  # commit -> its answer against the old end

    def run(self) -> Steps:
        path = self.history.path(self.old, self.new)
        turns = self.history.turns(path)
        if len(turns) < 2:
            return ()
        ends = yield self._ask("ends", self.old, self.new, self.threshold, rule.steps(len(turns) - 1) + 2)
        if ends.said in {"unclear", "cannot"}:
            return (Finding(kind="open", commits=(*turns[1:-1], self.new), parent=self.old, answer=ends),)
        if ends.said == "below":
            return ()
        assert ends.theta is not None
        self.change, self.known[self.new] = ends.theta, ends  # what holds the same is as slow
        return (yield from self._between(path))

    def _between(self, path: tuple[str, ...]) -> Steps:
        """What made it slower on this path, or on a branch that was merged into it there."""
        before, suspects = yield from self._halve(self.history.turns(path))
        culprit, parent, brought = suspects[-1], before, tuple[Finding, ...]()
        self._leave(before, culprit)
        if len(suspects) == 1:
            parent = path[path.index(culprit) - 1]
            has = self.history.until(parent)
            brought = yield from self._brought(culprit, has)
            if any(finding.kind in {"culprit", "range"} for finding in brought) or (yield from self._had(culprit, has)):
                return brought
        undoing = self._undoing(culprit)
        cut = min(self.threshold, self.change / 2)  # of several culprits none need make half of the whole
        answer = yield self._ask("parent", parent, culprit, cut, 2 if undoing else 1)
        undone = undoing and answer.said == "above" and (yield from self._step(undoing, 1)) == "below"
        if undone:
            self.rest = [(undoing if old == culprit else old, new) for old, new in self.rest]
        # On a branch that left before the good end a merge may add up what that has as well: it cannot be told apart.
        mixed = len(self.history.links[culprit].parents) > 1 and self.history.good not in self.history.until(self.old)
        if answer.said != "above" or mixed or brought:
            kind: Literal["culprit", "range", "doubtful"] = "doubtful"
        else:
            kind = "culprit" if len(suspects) == 1 else "range"
        found = Finding(kind=kind, commits=suspects, parent=parent, answer=answer, undone=undoing if undone else "")
        return (*brought, found)

    # ------------------------------------------------------------ halving

    def _halve(self, turns: Sequence[str]) -> Generator[Ask, Answer, tuple[str, tuple[str, ...]]]:
        """The last commit that is not slow, and those after it up to the first that is: one, if all could be answered."""
        while True:
            inside, low, high = self._narrowed(turns)
            silent = [commit for commit in inside if self._said(commit)]
            todo = [commit for commit in inside if not self._said(commit)]
            if not todo:
                return turns[low], tuple(turns[low + 1 : high + 1])
            commit = _nearest(inside, todo, len(silent))
            yield from self._step(commit, rule.steps(len(todo) + 1) + 1)

    def _narrowed(self, turns: Sequence[str]) -> tuple[Sequence[str], int, int]:
        """What lies between the last commit that is below, and the first after it that is above: no answers, or silent."""
        last = len(turns) - 1
        low = max((i for i in range(1, last) if self._said(turns[i]) == "below"), default=0)
        high = next((i for i in range(low + 1, last) if self._said(turns[i]) in SLOW), last)
        return turns[low + 1 : high], low, high

    def _said(self, commit: str) -> Said | Literal[""]:
        """What is known of a commit, by itself or by one that holds the same."""
        if self.history.same(commit, self.old):
            return "below"
        alike = (answer for other, answer in self.known.items() if self.history.same(commit, other))
        return next((answer.said for answer in alike), "")

    def _step(self, commit: str, planned: int) -> Generator[Ask, Answer, Said]:
        """The answer on a commit; one that is certainly slower, yet certainly not by the whole, is what is searched next."""
        said = self._said(commit)
        if said:
            return said
        within = (self.threshold, self.change - self.threshold)
        ask = self._ask("step", self.old, commit, self.change / 2, planned, within if within[0] < within[1] else None)
        self.known[commit] = answer = yield ask
        if answer.said == "between" and answer.theta is not None:
            self.change = answer.theta
        return answer.said

    # ------------------------------------------------------------ merges

    def _brought(self, merge: str, has: Set[str]) -> Steps:
        """What the branches that a merge brought in did by themselves, since they left what was there (`has`) already."""
        found: list[Finding] = []
        for parent in self.history.links[merge].parents:
            if parent in self.history.links and parent not in has:
                fork, *_ = self.history.path(self.old, parent, has)
                search = _Search(self.history, fork, parent, self.threshold)
                found += yield from search.run()
                self.rest += search.rest
        return tuple(found)

    def _had(self, merge: str, has: Set[str]) -> Generator[Ask, Answer, bool]:
        """Whether a merge is no slower than something it brought in: that has been searched, or the good end has it too."""
        for parent in self.history.links[merge].parents:
            if parent not in has:
                cut = min(self.threshold, self.change / 2)
                if (yield self._ask("parent", parent, merge, cut, 3)).said == "below":
                    return True
        return False

    # ------------------------------------------------------------ what is left

    def _leave(self, before: str, culprit: str) -> None:
        """What this change does not explain: before it, as far as that may still hold one, and after it."""
        answer = self.known.get(before)
        quiet = answer is not None and answer.high is not None and answer.high < self.threshold
        if not (self.history.same(before, self.old) or quiet):
            self.rest.append((self.old, before))
        if not self.history.same(culprit, self.new):
            self.rest.append((culprit, self.new))

    def _undoing(self, culprit: str) -> str:
        """The last commit whose message says that it takes the culprit back: what is left is searched after that one."""
        has = self.history.until(self.new)
        links = (link for commit, link in self.history.links.items() if commit in has)
        return next((link.commit for link in reversed([*links]) if any(map(culprit.startswith, link.reverts))), "")

    def _ask(
        self,
        question: Question,
        base: str,
        commit: str,
        cut: float,
        planned: int,
        within: tuple[float, float] | None = None,
    ) -> Ask:
        error = rule.share(self.spent, planned)
        self.spent += error
        return Ask(base, commit, question, cut, error, planned, within)


def _nearest(inside: Sequence[str], todo: Sequence[str], silent: int) -> str:
    """The open commit nearest to the middle; the more are silent, the further away: 1/2, 1/4, 3/4, 1/8, 5/8, ... (van der
    Corput), since what cannot be built often stands side by side."""
    share, part, number = 0.0, 0.5, silent + 1
    while number:
        share += part * (number & 1)
        part, number = part / 2, number >> 1
    middle = share * (len(inside) - 1)
    places = {commit: place for place, commit in enumerate(inside)}
    return min(todo, key=lambda commit: abs(places[commit] - middle))
