"""An added or saved pass is named by its range; a mark alone, or another name, is no cause."""

import dataclasses

import pytest

from abprof.records import Census, Comparison, Outcome, Range
from tests import blocks
from tests.planted import BRANCHES
from tests.why import cases

# The backward of a training step, in ns of one call of 1 ms; torch takes the rest.
BACKWARD = {"bwd_prepare": (1, 1e4), "bwd_run": (1, 9.5e5)}
Ranges = dict[str, tuple[int, float]]


def side(ranges: Ranges | None, total: float) -> Outcome:
    """An arm whose call goes through these ranges: name -> (times a call, ns)."""
    passes = None if ranges is None else tuple(Range(name=n, count=c, ns=ns) for n, (c, ns) in ranges.items())
    return Outcome(status="ok", census=Census(hidden_ns=0.0, ranges=passes), phases={"total": total})


def judged(before: Ranges | None, after: Ranges | None, pct: float) -> Comparison:
    status = {"base": side(before, 1e6), "target": side(after, 1e6 * (1 + pct / 100))}
    return cases.row_of(blocks.head(), pct, status)


def cause_texts(row: Comparison) -> list[str]:
    assert row.verdict in {"slower", "faster"}
    return [cause.text for cause in row.causes or ()]


AGAIN = BACKWARD | {"fwd_prepare": (1, 5e3), "fwd_run": (1, 3.9e5)}


def test_a_pass_that_was_added_is_named() -> None:
    assert cause_texts(judged(BACKWARD, AGAIN, 40.0)) == [
        "a part of the package runs more often: fwd_run 0 -> 1 times a call (390 µs)"
    ]


def test_a_pass_that_was_saved_is_named() -> None:
    assert cause_texts(judged({"run": (2, 9.6e5)}, {"run": (1, 4.9e5)}, -47.0)) == [
        "a part of the package runs less often: run 2 -> 1 times a call (480 µs)"
    ]


def test_times_that_say_otherwise_are_no_cause() -> None:
    assert cause_texts(judged(BACKWARD, AGAIN, -20.0)) == []  # it got faster, in spite of it
    assert cause_texts(judged(BACKWARD, BACKWARD | {"fwd_run": (1, 3e4)}, 40.0)) == []  # too short to be it


def test_a_mark_round_what_was_there_before_is_no_pass() -> None:
    assert cause_texts(judged({}, {"bwd_run": (1, 9.5e5)}, 10.0)) == []
    assert cause_texts(judged({"bwd": (1, 9.9e5)}, {"bwd": (1, 4e4), "bwd_run": (1, 1.05e6)}, 10.0)) == []


@pytest.mark.parametrize("pct", [-4.0, 4.0, 40.0])
def test_nothing_is_named_where_both_sides_go_through_the_same(pct: float) -> None:
    longer = {name: (count, ns * (1 + pct / 100)) for name, (count, ns) in BACKWARD.items()}
    assert cause_texts(judged(BACKWARD, longer, pct)) == []


def test_on_a_gpu_it_stands_before_the_launches_that_it_adds() -> None:
    """And in the place of the phase, which is slower because more runs in it."""
    before, after = (cases.recorded()["added_launch"][name] for name in ("base", "target"))
    marks = [cases.census(part, ns) for part, ns in ((before, 1e6), (after, 1.3e6))]
    for place, extra in enumerate([(), (Range(name="clamp_run", count=1, ns=6.5e5),)]):
        marks[place] = dataclasses.replace(
            marks[place], ranges=(Range(name="run", count=1, ns=6.5e5), *extra), on_device=True
        )
    phases = {"main": 4e5, "post": 6e5, "total": 1e6}, {"main": 4e5, "post": 1.2e6, "total": 1.6e6}
    row = cases.judged(before, after, 60.0, censuses=(marks[0], marks[1]), phases=phases)
    assert cases.kinds(row) == ["part", BRANCHES["added_launch"].kind]
