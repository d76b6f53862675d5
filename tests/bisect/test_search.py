"""Which commits a search finds, in histories made up here: every answer is known, and so is every culprit."""

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abprof.extras.bisect.search import ERROR, Answer, Ask, Finding, History, search, side
from abprof.sides import Link

THRESHOLD = math.log(1.015)


@dataclass
class World:
    """Commits whose time is known. `levels`: log of time; `silent`: commits that cannot be built; `says`: other answers."""

    history: History
    levels: Mapping[str, float]
    silent: Set[str] = frozenset()
    says: Callable[[Ask], Answer | None] = lambda ask: None
    asked: list[Ask] = field(default_factory=list)

    def answer(self, ask: Ask) -> Answer:
        self.asked.append(ask)
        if said := self.says(ask):
            return said
        if ask.commit in self.silent or ask.base in self.silent:
            return Answer(result="cannot", reason="build_failed")
        theta = self.levels[ask.commit] - self.levels[ask.base]
        numbers = {"theta": theta, "low": theta - 1e-6, "high": theta + 1e-6, "epochs": 4}
        return Answer(result="above" if theta > ask.cut else "below", **numbers)

    def findings(self, bad: str) -> tuple[Finding, ...]:
        steps = search(self.history, bad, THRESHOLD)
        try:
            ask = next(steps)
            while True:
                ask = steps.send(self.answer(ask))
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
    return [finding.commits[0] for finding in findings if finding.kind == "culprit"]


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
    """Any number of culprits at any place; commits without a change cost no step."""
    idle = [i for i, step in enumerate(steps, 1) if not step]
    same = data.draw(st.sets(st.sampled_from(idle))) if idle else set()
    world, bad = line([math.log1p(step / 100) for step in steps], same=same)
    assert culprits(world.findings(bad)) == [f"c{i}" for i, step in enumerate(steps, 1) if step]
    assert not {ask.commit for ask in world.asked if ask.question == "step"} & {f"c{i}" for i in same}


@given(st.integers(2, 40), st.data())
def test_where_commits_do_not_build_the_culprit_is_in_the_range(count: int, data: st.DataObject) -> None:
    """And it is the culprit itself wherever it and the commit before it build. No commit is tried twice."""
    at = data.draw(st.integers(1, count))
    silent = data.draw(st.sets(st.integers(1, count - 1)))
    world, bad = line(slips(count, {at: 3.0}), silent)
    (finding,) = world.findings(bad)
    first = max(i for i in range(at) if i not in silent)
    last = min(i for i in range(at, count + 1) if i not in silent)
    assert finding.commits == tuple(f"c{i}" for i in range(first + 1, last + 1))
    assert finding.kind == ("culprit" if last == first + 1 else "range")
    tried = [ask.commit for ask in world.asked if ask.question == "step"]
    assert len(tried) == len(set(tried))


def test_ten_in_a_row_that_do_not_build_cost_few_steps() -> None:
    """Where the culprit is not among them: others are taken from further away, not one after the other."""
    world, bad = line(slips(64, {5: 3.0}), set(range(28, 38)))
    assert culprits(world.findings(bad)) == ["c5"]
    assert sum(ask.commit in world.silent for ask in world.asked) <= 3


def test_what_stays_unclear_widens() -> None:
    world, bad = line(slips(16, {9: 3.0}))
    unclear = Answer(result="unclear", reason="budget")
    world.says = lambda ask: unclear if ask.question == "step" and ask.commit in {"c9", "c10"} else None
    (finding,) = world.findings(bad)
    assert (finding.kind, finding.commits, finding.parent) == ("range", ("c9", "c10", "c11"), "c8")


@pytest.mark.parametrize("said", ["unclear", "cannot"])
def test_ends_without_an_answer_stay_open(said: Any) -> None:
    world, bad = line(slips(8, {4: 3.0}))
    world.says = lambda ask: Answer(result=said, reason="why")
    (finding,) = world.findings(bad)
    assert (finding.kind, finding.parent, finding.commits[-1], finding.answer.result) == ("open", "c0", "c8", said)


def test_a_culprit_that_its_parent_does_not_confirm_is_in_doubt() -> None:
    world, bad = line(slips(8, {4: 3.0}))
    world.says = lambda ask: Answer(result="below") if ask.question == "parent" else None
    (finding,) = world.findings(bad)
    assert (finding.kind, finding.commits) == ("doubtful", ("c4",))


def test_a_creep_of_many_small_steps_names_no_culprit() -> None:
    """No commit is slower than its parent by the searched change: the result is reported as doubtful."""
    world, bad = line(slips(8, dict.fromkeys(range(1, 9), 0.5)))
    assert {finding.kind for finding in world.findings(bad)} == {"doubtful"}


def test_a_revert_to_what_the_good_end_holds_costs_no_step() -> None:
    world, bad = line(slips(64, {10: 3.0, 40: -3.0, 50: 3.0}))
    holds = {**world.history.holds, **{f"c{i}": "tree 0" for i in range(40, 50)}}
    world = World(History("c0", world.history.links, holds), world.levels)
    assert culprits(world.findings(bad)) == ["c50"]
    assert all(int(ask.commit[1:]) > 40 for ask in world.asked)


def test_what_holds_the_same_as_the_bad_end_is_as_slow() -> None:
    """Two opposite half changes after the culprit leave its change in place."""
    world, bad = line(slips(64, {10: 3.0}))
    holds = {**world.history.holds, "c10": "slow", bad: "slow"}
    world = World(History("c0", world.history.links, holds), world.levels)
    assert culprits(world.findings(bad)) == ["c10"]
    assert all(int(ask.commit[1:]) <= 10 for ask in world.asked if ask.question == "step")


def grown(data: st.DataObject) -> tuple[World, str, set[str]]:
    """A history of branches and merges. A commit holds the changes of all that it comes from, and its own; each slip makes
    3 % of what the good end takes. Also the slips that the last commit has and the good end has not."""
    count = data.draw(st.integers(2, 14))
    parents: list[list[int]] = [[]]
    for i in range(1, count + 1):
        first = data.draw(st.sampled_from([i - 1, i - 1, i - 1, *range(i)]))
        second = data.draw(st.sampled_from([first, *range(i)]))
        parents.append(list(dict.fromkeys([first, second])))
    slipping = data.draw(st.sets(st.integers(1, count)))
    has: list[set[int]] = []
    for i, before in enumerate(parents):
        has.append({i}.union(*(has[j] for j in before)))
    good = data.draw(st.sampled_from(sorted(has[count] - {count})))
    links = {f"c{i}": Link(f"c{i}", tuple(f"c{j}" for j in parents[i]), "") for i in sorted(has[count] - has[good])}
    changing = slipping | {i for i in range(count + 1) if len(parents[i]) < 2}  # a merge without a slip only merges
    holds = {f"c{i}": repr(sorted(has[i] & changing)) for i in range(count + 1)}
    levels = {f"c{i}": math.log1p(0.03 * len(has[i] & slipping)) for i in range(count + 1)}
    return (
        World(History(f"c{good}", links, holds), levels),
        f"c{count}",
        {f"c{i}" for i in slipping & (has[count] - has[good])},
    )


@given(st.data())
def test_culprits_among_branches_and_merges(data: st.DataObject) -> None:
    """Every slip on any branch is found and no other commit is named, except a slip made in a merge."""
    world, bad, slipped = grown(data)
    found = culprits(world.findings(bad))
    assert set(found) <= slipped
    assert {commit for commit in slipped if len(world.history.links[commit].parents) < 2} <= set(found)


def test_a_merge_that_is_slower_than_each_of_its_parents() -> None:
    parents = {"c1": ("c0",), "c2": ("c0",), "c3": ("c1", "c2"), "c4": ("c3",)}
    links = {commit: Link(commit, before, "") for commit, before in parents.items()}
    levels = {"c0": 0.0, "c1": 0.0, "c2": 0.0, "c3": math.log(1.03), "c4": math.log(1.03)}
    world = World(History("c0", links, {}), levels)
    (finding,) = world.findings("c4")
    assert (finding.kind, finding.commits, finding.parent) == ("culprit", ("c3",), "c1")
    assert ("c2", "c3") in {(ask.base, ask.commit) for ask in world.asked}


def test_errors_of_all_steps_stay_within_the_error_of_a_search() -> None:
    world, bad = line(slips(64, {37: 3.0}), set(range(30, 36)))
    world.findings(bad)
    first = [ask for ask in world.asked if ask.question != "ends" or ask.base == "c0"]
    assert sum(ask.error for ask in first) <= ERROR
    ask = Ask("c0", "c1", "ends", cut=0.01, error=0.005)
    assert side([0.0, 1e-4, 0.0], ask) is None
    assert side([0.0, 1e-4, 0.0, 1e-4], ask) == "below"
    assert side([0.02, 0.0201, 0.02, 0.0201], ask) == "above"
