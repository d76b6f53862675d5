"""Which cells make a shard, and which shard is next: exact, on a few cells whose seconds are given."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abprof.fleet.schedule import Error, Queue, StartUp, Task, seconds, shards

EXACT = Error(0.0, 0.0)
FREE = StartUp(0.0, 0.0)


def tasks(*times: float, kernel: str = "k") -> list[Task]:
    return [Task(f"{kernel}{i}", kernel, time) for i, time in enumerate(times)]


def queue(of: list[Task], slots: int, start_up: StartUp = FREE, most: float = 900.0, error: Error = EXACT) -> Queue:
    return Queue(of, {f"s{i}": 1.0 for i in range(slots)}, start_up, most=most, error=error)


def times(shard: tuple[Task, ...]) -> list[float]:
    return [task.seconds for task in shard]


def test_slots_end_together_and_the_longest_cell_goes_first() -> None:
    waiting = queue(tasks(1, 2, 3, 4, 5, 6, 7, 8), 2)  # 36 s: 18 each
    assert times(waiting.take("s0", 0.0)) == [8, 7, 3]
    assert times(waiting.take("s1", 0.0)) == [6, 5, 4, 2, 1]
    assert waiting.take("s0", 18.0) == ()
    assert len(waiting) == 0
    assert waiting.seconds == 0.0


def test_a_cell_longer_than_its_slots_part_goes_alone_and_the_others_share_the_rest() -> None:
    waiting = queue(tasks(100, 3, 3, 3, 3), 3)
    assert times(waiting.take("s0", 0.0)) == [100]
    assert times(waiting.take("s1", 0.0)) == [3, 3]
    assert times(waiting.take("s2", 0.0)) == [3, 3]


def test_what_a_slot_takes_depends_on_when_the_others_will_be_free() -> None:
    waiting = queue(tasks(*[10] * 9), 2, most=30.0)
    assert len(waiting.take("s0", 0.0)) == 3  # until 30
    assert len(waiting.take("s1", 10.0)) == 3  # late: until 40
    assert len(waiting.take("s0", 30.0)) == 2  # 30 s of work are left, and both slots end at 50
    assert len(waiting.take("s1", 40.0)) == 1


def test_cells_that_come_later_are_shared_by_who_is_free_then() -> None:
    waiting = queue(tasks(40, 40), 2)
    assert (times(waiting.take("s0", 0.0)), times(waiting.take("s1", 0.0))) == ([40], [40])
    assert waiting.take("s0", 5.0) == ()  # sooner than was thought: free from then on
    waiting.more(tasks(4, 4, 4, 4, kernel="late"))
    assert waiting.seconds == 16.0
    assert times(waiting.take("s1", 6.0)) == [4, 4]
    assert times(waiting.take("s0", 6.0)) == [4, 4]
    assert len(waiting) == 0


def test_a_slot_of_twice_the_speed_takes_twice_the_work() -> None:
    waiting = Queue(tasks(*[6] * 9), {"fast": 2.0, "slow": 1.0}, FREE, error=EXACT)
    assert (len(waiting.take("fast", 0.0)), len(waiting.take("slow", 0.0))) == (6, 3)


def test_packages_stay_together_unless_the_balance_asks_for_another() -> None:
    start_up = StartUp(10.0, 2.0)
    of = tasks(*[10] * 6, kernel="a") + tasks(*[9] * 6, kernel="b")  # 114 s: 57 each
    waiting = queue(of, 2, start_up)
    first, second = waiting.take("s0", 0.0), waiting.take("s1", 0.0)
    assert [task.kernel for task in first] == ["a"] * 6  # 60: the nearest
    assert [task.kernel for task in second] == ["b"] * 6
    waiting = queue(tasks(*[10] * 3, kernel="a") + tasks(*[9] * 6, kernel="b"), 1, start_up)
    assert [task.kernel for task in waiting.take("s0", 0.0)] == ["a"] * 3 + ["b"] * 6


def test_another_package_joins_only_where_its_start_up_fits_in() -> None:
    of = [Task("a", "a", 50.0), Task("b1", "b", 30.0), Task("b2", "b", 8.0), Task("c", "c", 30.0)]  # 118 s: 59 each
    cheap = queue(of, 2, StartUp(10.0, 1.0)).take("s0", 0.0)
    dear = queue(of, 2, StartUp(10.0, 5.0)).take("s0", 0.0)
    assert [task.cell for task in cheap] == ["a", "b2"]  # 50 + 1 + 8
    assert [task.cell for task in dear] == ["a"]


def test_no_shard_of_several_cells_is_longer_than_a_loss_may_be() -> None:
    waiting = queue(tasks(50, *[9] * 20), 1, most=30.0)
    found = [waiting.take("s0", float(i)) for i in range(20)]
    assert times(found[0]) == [50]
    assert [len(shard) for shard in found[1:8]] == [3, 3, 3, 3, 3, 3, 2]
    assert not any(found[8:])


def test_estimates_that_may_be_wrong_leave_work_for_a_later_shard() -> None:
    of, start_up = tasks(*[1] * 1000), StartUp(10.0, 0.0)
    sizes = [len(shard) for shard in shards(of, {"a": 1.0, "b": 1.0}, start_up, error=Error(0.0, 0.3))]
    # Two slots: late = 0.3 sqrt(2 ln 2) = 0.353 of a shard, and 500 / 1.353 = 369. The second slot knows that the first ends
    # a start-up later: (500 + 5) / 1.353 = 373. And so on, until what may be late is less than a start-up: then all is taken.
    assert sizes == [369, 373, 96, 97, 25, 25, 10, 5]
    assert [len(shard) for shard in shards(of, {"a": 1.0, "b": 1.0}, start_up, error=EXACT)] == [500, 500]


def test_errors_of_single_cells_even_out_over_a_shard() -> None:
    of, start_up = tasks(*[1] * 1000), StartUp(10.0, 0.0)
    sizes = [len(shard) for shard in shards(of, {"a": 1.0, "b": 1.0}, start_up, error=Error(0.3, 0.0))]
    assert sizes == [500, 500]  # 0.3 / sqrt(500) of 500 s: 8 s late, less than a start-up


def test_a_lost_shard_comes_back_in_smaller_ones_and_then_cell_by_cell() -> None:
    waiting = queue(tasks(*[1] * 100), 1)
    lost = waiting.take("s0", 0.0)
    waiting.back(lost)
    second = waiting.take("s0", 1.0)
    assert (len(lost), len(second), {task.attempt for task in second}) == (100, 10, {2})
    waiting.back(second)
    rest = []
    while len(waiting):
        rest.append(waiting.take("s0", 2.0))
    assert sorted(len(shard) for shard in rest) == [1] * 10 + [10] * 9
    assert {shard[0].attempt for shard in rest if len(shard) == 1} == {3}
    assert len({task.cell for shard in rest for task in shard}) == 100


def test_a_slot_that_is_gone_has_no_part_any_more() -> None:
    waiting = queue(tasks(*[1] * 90), 3)
    assert len(waiting.take("s0", 0.0)) == 30
    waiting.gone("s1")
    assert len(waiting.take("s2", 0.0)) == 45  # 60 s are left, and s0 is taken until 30: both end at 45
    assert len(waiting.take("s0", 30.0)) == 15
    with pytest.raises(KeyError, match="s1"):
        waiting.take("s1", 0.0)


def test_a_slot_that_joins_has_its_part_from_then_on() -> None:
    waiting = queue(tasks(*[1] * 90), 1, most=30.0)
    assert len(waiting.take("s0", 0.0)) == 30
    waiting.joined("new")
    assert len(waiting.take("new", 30.0)) == 30
    assert len(waiting.take("s0", 30.0)) == 30
    with pytest.raises(ValueError, match="above zero"):
        waiting.joined("other", 0.0)


def test_where_starting_takes_long_a_loss_may_cost_more() -> None:
    of = tasks(*[10] * 1000)
    assert [len(Queue(of, {"a": 1.0}, StartUp(s, 0.0), error=EXACT).take("a", 0.0)) for s in (3.0, 20.0)] == [90, 200]


def test_estimates_are_corrected_by_what_shards_took() -> None:
    waiting = queue(tasks(*[1] * 90, kernel="a") + tasks(*[1] * 90, kernel="b"), 2, most=10.0)
    first = waiting.take("s0", 0.0)
    assert (len(first), {task.kernel for task in first}, waiting.seconds) == (10, {"b"}, 170.0)
    waiting.took(first, 20.0)
    assert waiting.seconds == 2 * 80 + 90
    second = waiting.take("s0", 20.0)
    assert (len(second), {task.kernel for task in second}) == (5, {"b"})  # 10 s of cells that take 2
    waiting.took(second, 5.0)  # half as long as the first said: 25 s of 15 in all
    assert waiting.seconds == pytest.approx(25 / 15 * 75 + 90)


def test_a_shard_of_several_packages_teaches_nothing() -> None:
    waiting = queue(tasks(1, 2, kernel="a") + tasks(3, kernel="b"), 1)
    both = waiting.take("s0", 0.0)
    waiting.back(both)
    waiting.took(both, 60.0)
    assert waiting.seconds == 6.0


def test_a_shard_takes_cells_of_like_length_whatever_their_order() -> None:
    """Estimates that are too long are not all in one shard: the first takes of all, but begins with the longest."""
    of = tasks(*[1 + i / 100 for i in range(100)])
    first = queue(of, 1, most=20.0).take("s0", 0.0)
    assert first[0].seconds == 1.99
    assert min(times(first)) < 1.3
    far = queue([*of, *tasks(*[10.0] * 10, kernel="long")], 1, most=60.0).take("s0", 0.0)
    assert times(far) == [10.0] * 6  # but a cell of another length waits for its turn


def light(of: list[Task], slots: int) -> Queue:
    return Queue(of, {f"s{i}": 1.0 for i in range(slots)}, FREE, error=EXACT, light=2)


def test_every_slot_has_light_cells_where_its_others_are_dear() -> None:
    """Of 60 s in all: without, the first slot had none but the long ones."""
    of = tasks(20, 10, 9, 9, 8, 1, 1, 1, 1)
    assert times(queue(of, 2).take("s0", 0.0)) == [20, 10]
    waiting = light(of, 2)
    first, second = waiting.take("s0", 0.0), waiting.take("s1", 0.0)
    assert (times(first)[:3], times(second)[:3]) == ([20, 1, 1], [10, 1, 1])
    assert sorted(times(first) + times(second)) == sorted(times(tuple(of)))
    assert abs(sum(times(first)) - sum(times(second))) <= 2


def test_a_slots_later_shards_need_none() -> None:
    waiting = light(tasks(*[20] * 4, *[1] * 8), 1)
    waiting._most = 20.0
    found = [times(waiting.take("s0", float(i))) for i in range(6)]
    assert found == [[20, 1, 1], [20], [20], [20], [1] * 6, []]


def test_no_cell_is_light_where_all_are_alike() -> None:
    assert times(light(tasks(*[9, 8, 7, 6, 5, 4, 3]), 2).take("s0", 0.0)) == [9, 8, 4]
    assert times(light(tasks(40, 3, 30, 30), 3).take("s0", 0.0)) == [40, 3], "one that there is"


def test_what_is_no_schedule_is_refused() -> None:
    with pytest.raises(ValueError, match="needs slots"):
        Queue([], {}, FREE)
    with pytest.raises(ValueError, match="above zero"):
        Queue([], {"a": 0.0}, FREE)
    for wrong in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="seconds must be"):
            Queue([Task("a", "k", wrong)], {"a": 1.0}, FREE)


@given(
    of=st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 500)), max_size=60),
    slots=st.integers(1, 9),
    start_up=st.floats(0, 20),
    error=st.floats(0, 1),
    most=st.floats(1, 400),
)
def test_every_cell_goes_out_once_and_within_the_bounds(
    of: list[tuple[str, float]], slots: int, start_up: float, error: float, most: float
) -> None:
    given = [Task(f"{kernel}{i}", kernel, time) for i, (kernel, time) in enumerate(of)]
    names = {f"s{i}": 1.0 for i in range(slots)}
    found = shards(given, names, StartUp(start_up, start_up / 2), most=most, error=Error(error, error))
    assert sorted(task.cell for shard in found for task in shard) == sorted(task.cell for task in given)
    for shard in found:
        assert shard[0].seconds == max(times(shard))
        assert len(shard) == 1 or math.fsum(times(shard)) <= 1.5 * max(most, times(shard)[0])
    assert all(seconds(shard, FREE) == pytest.approx(math.fsum(times(shard))) for shard in found)
