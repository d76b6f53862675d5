"""Which commits a search finds, in histories made up here: every answer is known, and so is every culprit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abprof.bisect.lineage import History
from abprof.bisect.search import Answer, Ask, Finding, explore
from abprof.repo import Link

THRESHOLD = math.log(1.015)


@dataclass
class World:
    """Commits whose time is known. `levels`: log of time; `silent`: commits that cannot be built."""

    history: History
    levels: Mapping[str, float]
    silent: Set[str] = frozenset()
    asked: list[Ask] = field(default_factory=list)

    def answer(self, ask: Ask) -> Answer:
        self.asked.append(ask)
        if ask.commit in self.silent or ask.base in self.silent:
            return Answer(said="cannot", reason="build_failed")
        theta = self.levels[ask.commit] - self.levels[ask.base]
        numbers = {"theta": theta, "low": theta - 1e-6, "high": theta + 1e-6, "epochs": 4}
        if ask.within and ask.within[0] < theta < ask.within[1] and abs(theta - ask.cut) < 1e-3:
            return Answer(said="between", **numbers)
        return Answer(said="above" if theta > ask.cut else "below", **numbers)

    def findings(self, bad: str) -> tuple[Finding, ...]:
        search = explore(self.history, bad, THRESHOLD)
        try:
            ask = next(search)
            while True:
                ask = search.send(self.answer(ask))
        except StopIteration as done:
            found: tuple[Finding, ...] = done.value
            return found


def line(steps: Sequence[float], silent: Set[int] = frozenset(), same: Set[int] = frozenset()) -> tuple[World, str]:
    """A history without branches: commit i changes the log of time by steps[i - 1]; those of `same` hold what stood before."""
    names = [f"c{i}" for i in range(len(steps) + 1)]
    links = {names[i]: Link(names[i], (names[i - 1],), f"Commit {i}") for i in range(1, len(names))}
    levels = {names[i]: sum(steps[:i]) for i in range(len(names))}
    holds: dict[str, str] = {}
    for i, name in enumerate(names):
        holds[name] = holds[names[i - 1]] if i in same else f"tree {i}"
    return World(History(names[0], links, holds), levels, {names[i] for i in silent}), names[-1]


def slips(count: int, at: Mapping[int, float]) -> list[float]:
    return [math.log1p(at.get(i, 0.0) / 100) for i in range(1, count + 1)]


def culprits(findings: Sequence[Finding]) -> list[str]:
    return [finding.commits[0] for finding in findings if finding.kind == "culprit" and not finding.undone]


@pytest.mark.parametrize("at", [1, 2, 31, 32, 33, 63, 64])
def test_one_slip_of_64(at: int) -> None:
    world, bad = line(slips(64, {at: 3.0}))
    assert culprits(world.findings(bad)) == [f"c{at}"]
    halving = [ask for ask in world.asked if ask.question == "step"]
    assert len(halving) <= 6
    parent = next(ask for ask in world.asked if ask.question == "parent")
    assert (parent.base, parent.commit) == (f"c{at - 1}", f"c{at}")


def test_nothing_slower_is_seen_at_the_ends() -> None:
    world, bad = line(slips(64, {20: 3.0, 40: -3.0}))
    assert world.findings(bad) == ()
    assert len(world.asked) == 1


@given(st.lists(st.sampled_from([0.0, 0.0, 0.0, 0.0, 3.0, 5.0]), min_size=1, max_size=40), st.data())
def test_every_slip_is_found(steps: list[float], data: st.DataObject) -> None:
    """Whatever their number and place; commits that change nothing may hold what stood before, and cost no step."""
    idle = [i for i, step in enumerate(steps, 1) if not step]
    same = data.draw(st.sets(st.sampled_from(idle))) if idle else set()
    world, bad = line([math.log1p(step / 100) for step in steps], same=same)
    assert culprits(world.findings(bad)) == [f"c{i}" for i, step in enumerate(steps, 1) if step]
    assert not {ask.commit for ask in world.asked if ask.question == "step"} & {f"c{i}" for i in same}
