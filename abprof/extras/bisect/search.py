"""Pure: from one answer to the next question, until the commits are found that changed a cell between one pair of ends.

Generators: they yield a question, are sent the answer, and return findings. The same answers always lead the same way, so a
search that was interrupted is gone on with by sending it the answers that it had. `explore.py` puts the pairs together.

    1. The ends: is the new end slower than the old one by more than the threshold?
    2. Steps along first parents: is this commit slower than the old end by more than half of the whole change? Commits that
       hold what another one holds are not asked about. Where there is no answer (it cannot be built; it stays unclear) others
       are taken, in widening halves, and what lies between the last below and the first above is a range.
    3. A merge: each branch that it brought in is searched by itself, from where it left. What its branches do not explain is
       the merge's own: it is a culprit where no branch did anything and it is slower than each of its parents.
    4. The commit against its parent, by a run of its own.
    5. What is left of the change, before it and after it, is handed back as pairs of ends.

A search for what made it faster is the same with every question turned round.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from abprof.extras.bisect import rule
from abprof.extras.bisect.lineage import History
from abprof.extras.bisect.questions import Answer, Ask, Finding, Question, Said, Steps

Pair = tuple[str, str]  # an old and a new end
SLOW: frozenset[Said] = frozenset({"above", "between"})


@dataclass
class Left:
    """What searches leave. `rest`: pairs that are to be searched; `quiet`: pairs that nothing is left between."""

    rest: list[Pair] = field(default_factory=list)
    quiet: list[Pair] = field(default_factory=list)


@dataclass
class Between:
    """The search between one pair of ends for what made it slower; with `faster` for what made it faster.

    `ends`: the answer of its first question, in the sense of this search. `spent`: of the error that a pair of ends may have.
    """

    history: History
    old: str
    new: str
    threshold: float
    left: Left
    faster: bool = False
    spent: float = 0.0
    ends: Answer | None = None
    change: float = 0.0
    known: dict[str, Answer] = field(default_factory=dict)  # commit -> its answer against the old end

    def run(self) -> Steps:
        """What it finds; nothing where the new end is not slower than the old one."""
        path = self.history.path(self.old, self.new)
        turns = self.history.turns(path)
        if len(turns) < 2:
            self.left.quiet.append((self.old, self.new))
            return ()
        self.ends = ends = yield self._ask("ends", self.old, self.new, self.threshold, rule.steps(len(turns) - 1) + 2)
        if ends.said in {"unclear", "cannot"}:
            return self._told("open", self.history.inside(turns[0], turns[-1]), self.old, ends)
        if ends.said == "below":
            return ()
        assert ends.theta is not None
        self.change, self.known[self.new] = ends.theta, ends  # what holds the same is as slow
        return (yield from self._between(path))

    def _between(self, path: tuple[str, ...]) -> Steps:
        """What made it slower on this path, or on a branch that was merged into it there."""
        before, suspects = yield from self._halve(self.history.turns(path))
        culprit = suspects[-1]
        self._leave(before, culprit)
        if len(suspects) > 1:
            answer = yield self._against(before, culprit, 1)
            commits = self.history.inside(before, culprit, suspects)
            return self._told("range" if answer.said == "above" else "doubtful", commits, before, answer)
        parent = path[path.index(culprit) - 1]
        has = self.history.until(parent)
        tips = [tip for tip in self.history.links[culprit].parents if tip not in has]
        brought, explained = yield from self._brought(tips, has)
        if brought and not (yield from self._unexplained(before, culprit, tips, explained)):
            return brought
        answer = yield self._against(parent, culprit, 1 + len(tips))
        own = answer.said == "above" and not brought and (yield from self._exceeds(culprit, tips))
        # On a branch that left before the good end a merge may add up what that has as well, and a revert on a branch may
        # hide a slip on it from its ends: neither can be told apart from what the merge did.
        hidden = any(self.history.links[commit].reverts for commit in self.history.inside(parent, culprit)[:-1])
        early = len(self.history.links[culprit].parents) > 1 and self.history.good not in self.history.until(self.old)
        if own and not hidden and not early:
            return self._told("culprit", suspects, parent, answer)
        return (*brought, *self._told("doubtful", self.history.inside(parent, culprit, suspects), parent, answer))

    def _told(
        self,
        kind: Literal["culprit", "range", "doubtful", "open"],
        commits: tuple[str, ...],
        parent: str,
        answer: Answer,
    ) -> tuple[Finding, ...]:
        """The finding; of a search for what made it faster only what may hide something slow, and what is certain."""
        if not self.faster:
            return (Finding(kind=kind, commits=commits, parent=parent, answer=answer),)
        if len(commits) > 1 or answer.said in {"unclear", "cannot"}:
            return (Finding(kind="open", commits=commits, parent=parent, answer=answer.turned),)
        if answer.said == "below":
            return ()
        return (Finding(kind="faster", commits=commits, parent=parent, answer=answer.turned),)

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
        answer = self._answer(commit)
        return answer.said if answer else ""

    def _answer(self, commit: str) -> Answer | None:
        return next((answer for other, answer in self.known.items() if self.history.same(commit, other)), None)

    def _level(self, commit: str) -> float:
        """What was measured of a commit against the old end."""
        answer = None if self.history.same(commit, self.old) else self._answer(commit)
        return answer.theta or 0.0 if answer else 0.0

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

    def _brought(
        self, tips: Sequence[str], has: set[str]
    ) -> Generator[Ask, Answer, tuple[tuple[Finding, ...], float | None]]:
        """What the branches that a merge brought in did by themselves, since they left what was there (`has`) already; and
        how much they changed in all, in the sense of this search: None where one had merged from what was there."""
        found: list[Finding] = []
        change, apart = 0.0, True
        for tip in tips:
            if tip in self.history.links:
                fork, *_ = self.history.path(self.old, tip, has)
                findings, theta = yield from both_ways(self.history, (fork, tip), self.threshold, self.left)
                found += findings
                change += -theta if self.faster else theta
                had = self.history.until(tip)
                apart = apart and (had & has) <= self.history.until(fork)
                has = has | had
        return tuple(found), change if apart else None

    def _unexplained(
        self, before: str, merge: str, tips: Sequence[str], explained: float | None
    ) -> Generator[Ask, Answer, bool]:
        """Whether a merge changed more than what it brought in did."""
        if explained is None:
            return (yield from self._exceeds(merge, tips))
        return self._level(merge) - self._level(before) - explained > self.threshold

    def _exceeds(self, merge: str, tips: Sequence[str]) -> Generator[Ask, Answer, bool]:
        """Whether a merge is slower than each of what it brought in: it has its change from none of them."""
        for number, tip in enumerate(tips):
            if (yield self._against(tip, merge, len(tips) - number)).said != "above":
                return False
        return True

    # ------------------------------------------------------------ what is left

    def _leave(self, before: str, culprit: str) -> None:
        """What this change does not explain: before it, as far as that may still hold one, and after it."""
        answer = self._answer(before)
        quiet = self.history.same(before, self.old) or (answer is not None and within(answer, self.threshold))
        (self.left.quiet if quiet else self.left.rest).append((self.old, before))
        alike = self.history.same(culprit, self.new)
        (self.left.quiet if alike else self.left.rest).append((culprit, self.new))

    def _against(self, parent: str, commit: str, planned: int) -> Ask:
        # Of several culprits none need make half of the whole.
        return self._ask("parent", parent, commit, min(self.threshold, self.change / 2), planned)

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
        if self.faster:
            base, commit = commit, base
        return Ask(base, commit, question, cut, error, planned, within)


def both_ways(
    history: History, pair: Pair, threshold: float, left: Left
) -> Generator[Ask, Answer, tuple[tuple[Finding, ...], float]]:
    """What changed between two ends, slower or faster, and by how much in all. Faster is asked for only where it may be."""
    slower = Between(history, *pair, threshold, left)
    found = yield from slower.run()
    ends = slower.ends
    if ends is None or ends.said != "below":
        return found, (ends.theta or 0.0) if ends else 0.0
    if within(ends, threshold):
        left.quiet.append(pair)
        return found, ends.theta or 0.0
    faster = Between(history, *pair, threshold, left, faster=True, spent=slower.spent)
    found = yield from faster.run()
    if faster.ends and faster.ends.said == "below":
        left.quiet.append(pair)
    return found, ends.theta or 0.0


def within(answer: Answer, threshold: float) -> bool:
    """Whether it is certain that nothing changed by more than the threshold, either way."""
    return answer.low is not None and answer.high is not None and -threshold < answer.low <= answer.high < threshold


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
