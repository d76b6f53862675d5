"""Searches in histories of slips, reverts, improvements and merges: no commit is named with certainty that the bad end does
not have, and nothing that is slower than what is looked for is passed over in silence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from abprof.extras.bisect.lineage import History
from abprof.extras.bisect.questions import Answer, Ask, Finding
from abprof.sides import Link
from tests.bisect.test_search import THRESHOLD, World, culprits, line

Known = tuple[tuple[str, ...], float, tuple[str, ...]]  # parents, level in per cent, what it says that it reverts


def told(commits: Mapping[str, Known], silent: Set[str] = frozenset(), **old: float) -> list[tuple[Any, ...]]:
    """Kind, last commit and what took it back, of all findings from g, at 0 %, to the last commit. `old`: levels of commits
    that g has as well."""
    links = {commit: Link(commit, parents, "", reverts) for commit, (parents, _, reverts) in commits.items()}
    levels = {"g": 0.0, **old, **{commit: level for commit, (_, level, _) in commits.items()}}
    world = World(History("g", links, {}), {commit: level / 100 for commit, level in levels.items()}, silent)
    return [(one.kind, one.commits[-1], one.undone) for one in world.findings(list(commits)[-1])]


def chain(*levels: float, reverts: Mapping[int, int] = {}) -> dict[str, Known]:
    """Commits aaaaaa1, aaaaaa2, ... of these levels one after the other; some revert another, by number."""
    names = ["g", *(f"aaaaaa{i}" for i in range(1, len(levels) + 1))]
    said = {i: (names[reverts[i]],) if i in reverts else () for i in range(1, len(names))}
    return {names[i]: ((names[i - 1],), levels[i - 1], said[i]) for i in range(1, len(names))}


# ---------------------------------------------------------------- taken back


def test_a_revert_is_weighed_against_its_own_parent() -> None:
    """What came between a slip and its revert is slower than the good end, after the revert too."""
    assert told(chain(5, 8, 3, reverts={3: 1})) == [("culprit", "aaaaaa1", "aaaaaa3"), ("culprit", "aaaaaa2", "")]
    assert told(chain(10, 13, 3, 13, reverts={3: 1})) == [
        ("culprit", "aaaaaa1", "aaaaaa3"),
        ("culprit", "aaaaaa2", ""),
        ("culprit", "aaaaaa4", ""),
    ]


def test_a_revert_of_the_merge_that_brought_a_slip_in() -> None:
    commits: dict[str, Known] = {
        "bbbbbb1": (("g",), 5, ()),
        "aaaaaa1": (("g",), 0, ()),
        "aaaaaa2": (("aaaaaa1", "bbbbbb1"), 5, ()),
        "aaaaaa3": (("aaaaaa2",), 0, ("aaaaaa2",)),
        "aaaaaa4": (("aaaaaa3",), 5, ()),
    }
    assert told(commits) == [("culprit", "bbbbbb1", "aaaaaa3"), ("culprit", "aaaaaa4", "")]


def test_a_revert_of_one_of_a_range_parts_what_is_left() -> None:
    """The range is in doubt then: what the reverted commit of it had made nobody knows."""
    commits = chain(3, 12, 9, 12, reverts={3: 1})
    assert told(commits, silent={"aaaaaa1"}) == [("doubtful", "aaaaaa2", "aaaaaa3"), ("culprit", "aaaaaa4", "")]


def test_a_revert_that_cannot_be_measured_leaves_its_slip_in_doubt() -> None:
    found = told(chain(5, 5, 0, 5, reverts={3: 1}), silent={"aaaaaa3"})
    assert ("doubtful", "aaaaaa1", "aaaaaa3") in found
    assert not [one for one in found if one[:2] == ("culprit", "aaaaaa1")]


def test_an_improvement_that_takes_as_much_back() -> None:
    """It does not say whose: what is of its size is told with it, and what came between is found."""
    assert told(chain(10, 13, 3)) == [
        ("culprit", "aaaaaa1", "aaaaaa3"),
        ("culprit", "aaaaaa2", ""),
        ("faster", "aaaaaa3", ""),
    ]
    assert told(chain(5, 10.5, 3)) == [
        ("doubtful", "aaaaaa1", "aaaaaa3"),
        ("doubtful", "aaaaaa2", "aaaaaa3"),
        ("faster", "aaaaaa3", ""),
    ]


# ---------------------------------------------------------------- merges


def test_a_merge_that_takes_a_slow_kernel_from_a_branch_older_than_the_good_end() -> None:
    commits: dict[str, Known] = {
        "a": (("g",), 0, ()),
        "b": (("old",), 10, ()),
        "m": (("a", "b"), 10, ()),
    }
    assert told(commits, old=10) == [("doubtful", "m", "")]


def test_a_merge_that_is_slower_than_its_branch_made_it() -> None:
    commits: dict[str, Known] = {"a": (("g",), 0, ()), "b": (("g",), 3, ()), "m": (("a", "b"), 8, ())}
    assert told(commits) == [("culprit", "b", ""), ("doubtful", "m", "")]
    assert told({**commits, "m": (("a", "b"), 3, ())}) == [("culprit", "b", "")]


def test_a_slip_before_a_revert_on_a_branch_that_was_merged_later() -> None:
    """The search goes along another branch: what the revert hides on its own is looked for all the same."""
    commits: dict[str, Known] = {
        "c1": (("g",), 5, ()),
        "c2": (("c1",), 8, ()),
        "c3": (("g",), 3, ()),
        "c4": (("c2",), 3, ("c1",)),
        "c5": (("g",), 3, ()),
        "c6": (("c1",), 8, ()),
        "c7": (("c6", "c3"), 11, ()),
        "c8": (("c4", "c5"), 6, ()),
        "c9": (("c7", "c8"), 12, ()),
    }
    found = told(commits)
    assert {commit for kind, commit, undone in found if kind == "culprit" and not undone} == {"c2", "c3", "c5", "c6"}
    assert ("culprit", "c1", "c4") in found


def test_a_range_names_what_a_merge_in_it_brought_in() -> None:
    commits: dict[str, Known] = {
        "a": (("g",), 0, ()),
        "b": (("g",), 3, ()),
        "m": (("a", "b"), 3, ()),
        "x": (("m",), 3, ()),
    }
    links = {commit: Link(commit, parents, "") for commit, (parents, _, _) in commits.items()}
    levels = {"g": 0.0, **{commit: level / 100 for commit, (_, level, _) in commits.items()}}
    (finding,) = World(History("g", links, {}), levels, {"m"}).findings("x")
    assert (finding.kind, finding.commits) == ("range", ("b", "m", "x"))


def test_a_slower_end_of_which_nothing_is_found_is_told_as_open() -> None:
    """Two steps below what is looked for: each answer is right, and none is a culprit."""

    class Deaf(World):
        def answer(self, ask: Ask) -> Answer:
            if ask.question == "revert" and ask.base == "c4":
                return Answer(said="above", theta=0.03, low=0.03, high=0.03)
            return super().answer(ask)

    world, bad = line([0.03, 0.0, 0.0, 0.0])
    links = {**world.history.links, "c4": Link("c4", ("c3",), "Revert", ("c1",))}
    found = Deaf(History("c0", links, world.history.holds), world.levels).findings(bad)
    assert [one.kind for one in found] == ["culprit", "open"]


# ---------------------------------------------------------------- whatever the history


def grown(data: st.DataObject, *, merges: bool) -> tuple[World, str, Set[str]]:
    """Commits that slip, or take back what one before them did and say so, on branches that are merged at last. A commit's
    level is the sum of the slips that it has. Also the last one, and what it is slow by."""
    names, heads = ["a000000"], ["a000000"]
    has: dict[str, Set[str]] = {"a000000": frozenset()}
    back: dict[str, Set[str]] = {"a000000": frozenset()}  # slips that were taken back
    size, links = dict[str, float](), dict[str, Link]()

    def add(parents: tuple[str, ...], own: Set[str], taken: Set[str], reverts: tuple[str, ...] = ()) -> None:
        links[name] = Link(name, parents, "", reverts)
        has[name] = own.union(*(has[one] for one in parents))
        back[name] = taken.union(*(back[one] for one in parents))
        names.append(name)
        heads[:] = [*(head for head in heads if head not in parents), name]

    for number in range(1, data.draw(st.integers(1, 9)) + 1):
        name = f"a{number:06x}"
        if merges and len(heads) > 1 and data.draw(st.booleans()):
            add((heads[-1], heads[0]), frozenset(), frozenset())
            continue
        parent = data.draw(st.sampled_from([heads[-1], *names])) if merges else heads[-1]
        what = data.draw(st.sampled_from(["slip", "slip", "revert", "idle"]))
        live = sorted(has[parent] - back[parent])
        if what == "revert" and live:
            slip = data.draw(st.sampled_from(live))
            add((parent,), frozenset(), {slip}, (slip,))
        elif what == "slip":
            size[name] = math.log1p(data.draw(st.sampled_from([3, 5, 10])) / 100)
            add((parent,), {name}, frozenset())
        else:
            add((parent,), frozenset(), frozenset())
    while len(heads) > 1:
        name = f"a{len(names):06x}"
        add((heads[0], heads[1]), frozenset(), frozenset())
    live_in = {commit: has[commit] - back[commit] for commit in names}
    levels = {commit: sum(size[slip] for slip in live_in[commit]) for commit in names}
    holds = {commit: repr(sorted(live_in[commit])) for commit in names}
    return World(History(names[0], links, holds), levels), heads[0], live_in[heads[0]]


def named(found: Sequence[Finding]) -> set[str]:
    """What is told and uncertain."""
    return {commit for one in found if one.kind in {"range", "doubtful", "open"} for commit in one.commits}


@settings(max_examples=300, derandomize=True)
@given(st.data(), st.booleans())
def test_all_that_the_bad_end_is_slow_by_is_told(data: st.DataObject, merges: bool) -> None:
    world, bad, live = grown(data, merges=merges)
    inner = [commit for commit in world.levels if commit not in {world.history.good, bad}]
    if inner and data.draw(st.booleans()):
        world.silent = data.draw(st.sets(st.sampled_from(inner), max_size=3))
    found = world.findings(bad)
    assert set(culprits(found)) <= live
    if world.levels[bad] > THRESHOLD:
        assert live <= set(culprits(found)) | named(found)


@settings(max_examples=300, derandomize=True)
@given(st.lists(st.sampled_from([0.0, 3.0, 5.0, 10.0, -3.0, -5.0, -10.0]), min_size=1, max_size=12))
def test_between_what_is_told_nothing_is_left(steps: list[float]) -> None:
    """Slips and improvements that say nothing of each other: what lies between two commits that are told adds up to less than is
    looked for. What cancels there is not seen, as docs/BISECT.md says."""
    world, bad = line([math.copysign(math.log1p(abs(step) / 100), step) for step in steps])
    found = world.findings(bad)
    if world.levels[bad] <= THRESHOLD:
        assert found == ()
        return
    uncertain = {commit for one in found for commit in one.commits if len(one.commits) > 1}
    places = sorted(int(one.commits[-1][1:]) for one in found)
    for after, before in pairwise([0, *places, len(steps) + 1]):
        between = world.levels[f"c{before - 1}"] - world.levels[f"c{after}"]
        assert abs(between) <= THRESHOLD or f"c{before - 1}" in uncertain
