"""Pure: the whole search of a cell, from one pair of ends to the next (search.py), until nothing is left to be explained.

Between the good and the bad end only what made it slower is looked for. Of what is then left, before and after each commit
that was found, both directions are: where a slip's change is gone again at the new end, what took it back is found as well, and
so is a slip that hid behind that. Two ends that lie within the threshold of each other are not looked between.

A commit whose message says that it takes a culprit back, or the merge that brought it in, is asked against its own parent. If
it does, the search is parted there: what was slow before it and what got slow after it are not weighed against each other.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from abprof.extras.bisect import rule
from abprof.extras.bisect.lineage import History
from abprof.extras.bisect.questions import Answer, Ask, Finding, Steps
from abprof.extras.bisect.search import Between, Left, Pair, both_ways


def explore(history: History, bad: str, threshold: float) -> Steps:
    """All findings between the ends of a history, in its order. `threshold` is a log ratio.

    Where the bad end is slower by more than that, one of them at least is a culprit that was not taken back, or uncertain.
    """
    whole = _Whole(history, bad, threshold)
    first = Between(history, history.good, bad, threshold, whole.left)
    yield from whole.take((yield from first.run()))
    if first.ends is None or first.ends.said != "above":
        return tuple(whole.found.values())
    while whole.left.rest or whole.doubted():
        findings, _ = yield from both_ways(history, whole.left.rest.pop(0), threshold, whole.left)
        yield from whole.take(findings)
    found = _weighed(history, list(whole.found.values()))
    if not any(map(_stands, found)):
        commits = history.inside(history.good, bad)
        found.append(Finding(kind="open", commits=commits, parent=history.good, answer=first.ends))
    assert any(map(_stands, found)), "a bad end that is slower has a finding"
    place = {commit: number for number, commit in enumerate(history.ordered(history.links))}
    return tuple(sorted(found, key=lambda finding: place.get(finding.commits[-1], -1)))


def _stands(finding: Finding) -> bool:
    """Whether a finding says why the bad end is slower, or that this is not certain."""
    return finding.kind != "faster" and not (finding.kind == "culprit" and finding.undone)


@dataclass
class _Whole:
    """What was found, and what is left to be searched."""

    history: History
    bad: str
    threshold: float
    left: Left = field(default_factory=Left)
    found: dict[tuple[str, ...], Finding] = field(default_factory=dict)  # a branch that was merged twice is found twice
    asked: set[str] = field(default_factory=set)  # reverts

    def take(self, findings: Sequence[Finding]) -> Generator[Ask, Answer, None]:
        """Keep findings; culprits with what became of them."""
        for finding in findings:
            if finding.commits not in self.found:
                self.found[finding.commits] = finding
                if finding.kind != "faster":
                    self.found[finding.commits] = yield from self._taken_back(finding)

    # ------------------------------------------------------------ reverts

    def _taken_back(self, finding: Finding) -> Generator[Ask, Answer, Finding]:
        """A culprit with the commit that took it back, if one says so of itself and does. Of several commits of which one is
        the culprit nobody can say how much the one that was taken back had made."""
        sure = finding.kind == "culprit"
        for revert in self._reverts(finding.commits):
            before = self.history.links[revert].parents[0]
            if self.history.same(before, revert):
                continue
            cut = finding.answer.theta / 2 if sure and finding.answer.theta else self.threshold
            self.asked.add(revert)
            answer = yield Ask(revert, before, "revert", cut, rule.share(0.0, 1), 1)
            if answer.said != "below":
                if not self._part(revert):  # it stands on a branch that the search did not go along
                    self.left.rest.append((finding.commits[-1], before))
                if finding.kind == "open":
                    return finding
                kind = "culprit" if sure and answer.said == "above" else "doubtful"
                return msgspec.structs.replace(finding, kind=kind, undone=revert)
        return finding

    def _reverts(self, culprits: Sequence[str]) -> Iterator[str]:
        """Commits whose message says that they take one of these back, or a merge that brought it in; last first."""
        history, has = self.history, self.history.until(self.bad)
        for link in reversed([*history.links.values()]):
            named = [c for c in history.links if any(map(c.startswith, link.reverts))]
            if link.commit in has and any(
                link.commit in history.since(culprit)
                and any(c == culprit or self._brought_in(c, culprit) for c in named)
                for culprit in culprits
            ):
                yield link.commit

    def _brought_in(self, merge: str, culprit: str) -> bool:
        first, *others = self.history.links[merge].parents
        return bool(others) and culprit in self.history.until(merge) - self.history.until(first)

    def doubted(self) -> bool:
        """Part what seemed quiet at reverts in it of what stands before it: one may hide a slip there. Whether any does."""
        before = len(self.asked)
        for old, new in [*self.left.quiet]:
            has = self.history.until(old)
            for commit in self.history.ordered(self.history.until(new) - has):
                link = self.history.links.get(commit)
                names = link.reverts if link and commit not in self.asked else ()
                if any(c.startswith(name) for c in has for name in names):
                    self.asked.add(commit)
                    self._part(commit)
        return len(self.asked) > before and bool(self.left.rest)

    def _part(self, at: str) -> bool:
        """Part every pair of ends between which this commit stands, also where nothing seemed to be left. Whether one was
        searched up to it."""
        parted = False
        for pairs in (self.left.rest, self.left.quiet):
            for old, new in [pair for pair in pairs if self._holds(pair, at)]:
                self.left.rest.append((at, new))
                later = self.history.since(old)
                before = next((parent for parent in self.history.links[at].parents if parent in later), None)
                if before is not None:  # otherwise it came in with a merge, and the pair stays
                    pairs.remove((old, new))
                    self.left.rest.append((old, before))
                    parted = True
        return parted

    def _holds(self, pair: Pair, commit: str) -> bool:
        old, new = pair
        return commit in self.history.until(new) - self.history.until(old)


# ------------------------------------------------------------ what became faster again


def _weighed(history: History, found: list[Finding]) -> list[Finding]:
    """The findings; a culprit after which a commit that does not say so took as much back is told with it."""
    for faster in [one for one in found if one.kind == "faster" and not history.links[one.commits[0]].reverts]:
        before = history.until(faster.commits[0])
        slower = [one for one in found if one.kind == "culprit" and not one.undone and one.commits[0] in before]
        alike = [one for one in slower if _as_much(one.answer, faster.answer)]
        for one in alike or [one for one in slower if _half(one.answer, faster.answer)]:
            kind = "culprit" if len(alike) == 1 else "doubtful"  # of several nobody can say which it was
            found[found.index(one)] = msgspec.structs.replace(one, kind=kind, undone=faster.commits[0])
    return found


def _as_much(slower: Answer, faster: Answer) -> bool:
    """Whether the two may be of one size."""
    again = faster.turned
    if slower.low is None or slower.high is None or again.low is None or again.high is None:
        return False
    return slower.low <= again.high and again.low <= slower.high


def _half(slower: Answer, faster: Answer) -> bool:
    return slower.theta is not None and faster.theta is not None and -faster.theta > slower.theta / 2
