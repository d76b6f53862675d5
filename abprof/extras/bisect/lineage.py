"""Pure: a history of commits, and which of them can have changed a kernel package."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise

from abprof.sides import Link


@dataclass(frozen=True)
class History:
    """The commits that one end has and the other has not. `holds`: what each holds of the package, both ends included;
    commits of equal content build and run the same."""

    good: str
    links: Mapping[str, Link]  # commit -> its link, parents before children; without `good`
    holds: Mapping[str, str]

    def same(self, one: str, other: str) -> bool:
        """Whether two commits hold the same of the package."""
        return one == other or self.holds.get(one, one) == self.holds.get(other, other)

    def until(self, commit: str) -> set[str]:
        """A commit with its ancestors, as far as they belong to this history."""
        found, todo = {commit}, [commit]
        while todo:
            link = self.links.get(todo.pop())
            new = [parent for parent in link.parents if parent not in found] if link else []
            new = [parent for parent in new if parent in self.links or parent == self.good]
            found.update(new)
            todo += new
        return found

    def since(self, commit: str) -> set[str]:
        """A commit with its descendants."""
        found = {commit}
        for link in self.links.values():
            if not found.isdisjoint(link.parents):
                found.add(link.commit)
        return found

    def path(self, old: str, new: str, without: Set[str] = frozenset()) -> tuple[str, ...]:
        """What `new` goes back to, and its first parents from there to `new`, oldest first: none that `old` has, nor any
        of `without`.

        Where `new` descends from `old`, it goes back to that, by commits that descend from it too: one on a branch that
        was merged later lacks what `old` had got by then, and cannot be compared with it.
        """
        known, later = self.until(old) | without, self.since(old)
        found: list[str] = []
        commit = new
        while commit in self.links and commit not in known and not (new in later and commit not in later):
            found.append(commit)
            commit = next(iter(self.links[commit].parents), "")
        return (old if new in later and commit not in without else commit, *reversed(found))

    def turns(self, path: Sequence[str]) -> tuple[str, ...]:
        """The first commit of a path, and those at which the package's content is another than before."""
        changed = [now for before, now in pairwise(path) if not self.same(before, now)]
        return (path[0], *changed)

    def inside(self, before: str, last: str, also: Iterable[str] = ()) -> tuple[str, ...]:
        """What `last` has and `before` has not, as far as it can have changed the package: those that merges brought in too.
        `last` and those of `also` are part of it in any case."""
        new = (self.until(last) - self.until(before)) & self.links.keys()
        changed = {c for c in new if not any(self.same(c, parent) for parent in self.links[c].parents)}
        return self.ordered(changed | {last, *also})

    def ordered(self, commits: Iterable[str]) -> tuple[str, ...]:
        """The commits in the order of this history."""
        wanted = set(commits)
        return tuple(commit for commit in (self.good, *self.links) if commit in wanted)
