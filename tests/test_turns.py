"""Rules fixed beforehand: turn length, rounds, order."""

import math
import random
from collections import Counter

import msgspec
import pytest

from abprof.measure import turns
from abprof.records import Options, Turn

SETTINGS = Options(threshold=1.5, margin=0.5)
QUICK = Options(threshold=1.5, margin=0.5, quick=True)


def test_a_long_call_is_a_turn_of_its_own_and_short_calls_share_one() -> None:
    assert turns.pace("cuda", [3.6e6, 3.6e6], [1e6, 1e6], SETTINGS).calls == 1
    assert turns.pace("cuda", [20_000.0, 30_000.0], [1e6, 1e6], SETTINGS).calls == 15
    assert turns.pace("cpu", [0.3e6, 0.4e6], [1e6, 1e6], SETTINGS).calls == 4


def test_untrusted_calls_share_longer_turns() -> None:
    """The parent's clock then reads abprof's own work between calls with them."""
    untrusted = msgspec.structs.replace(SETTINGS, untrusted=True)
    alone, shared = (turns.pace("cuda", [1.25e6] * 3, [1e6] * 3, how) for how in (SETTINGS, untrusted))
    assert (alone.calls, shared.calls) == (1, 16)
    assert alone.empties == shared.empties == 0
    assert turns.pace("cuda", [45_000.0] * 3, [1e6] * 3, untrusted).empties == 7


def test_rounds_are_even_bounded_and_fewer_for_slow_calls() -> None:
    many = turns.pace("cuda", [3e5] * 2, [1.0] * 2, SETTINGS).rounds
    few = turns.pace("cuda", [3e9] * 2, [1.0] * 2, SETTINGS).rounds
    assert many > few == 1, "from epoch to epoch such calls differ by as much as from round to round"
    assert turns.pace("cpu", [3e9] * 2, [1.0] * 2, SETTINGS).rounds == turns.FEWEST
    assert turns.pace("cuda", [3e9] * 2, [1.0] * 2, QUICK).rounds == 4, "a single epoch shows its own scatter"
    assert many % 2 == 0
    quick, usual = (turns.pace("cuda", [3.6e6] * 2, [1.0] * 2, how).rounds for how in (QUICK, SETTINGS))
    assert quick > usual, "a single epoch shows its own scatter"


@pytest.mark.parametrize(("kind", "call", "made"), [("cuda", 2e5, 2e6), ("cuda", 8e6, 2e6), ("cpu", 2e7, 1e6)])
def test_the_first_rounds_see_four_placements_where_these_cost_no_more_than_the_turns(
    kind: str, call: float, made: float
) -> None:
    cheap, dear = (turns.pace(kind, [call] * 2, [ns] * 2, SETTINGS) for ns in (made, 3e8))
    assert [[pace.moves(number) for number in (2, 4, 6)] for pace in (cheap, dear)] == [[True] * 3, [False] * 3]


def test_a_gpus_epoch_ends_when_its_time_on_the_wall_is_over() -> None:
    """Turns of short calls take several times the sum of the calls; a cell's known times raise the limit."""
    pace = turns.pace("cuda", [45_000.0] * 3, [1e6] * 3, SETTINGS)
    assert pace.rounds * 45e-6 * pace.calls * 3 < 1.01 * pace.seconds, "by the calls' own time all rounds fit in"
    assert [pace.over(rounds, pace.seconds) for rounds in (6, 7, 8, 9, 10)] == [False, False, True, False, True]
    assert not pace.over(100, 0.99 * pace.seconds)
    others = [turns.pace(kind, [45_000.0] * 3, [1e6] * 3, SETTINGS) for kind in ("simulated", "cpu")]
    assert [pace.seconds for pace in others] == [math.inf] * 2


def test_an_epoch_on_a_noisy_cpu_is_longer_as_far_as_the_budget_has_room() -> None:
    quiet, noisy = rounds_of(0.02, 20), rounds_of(0.5, 320)
    wide = msgspec.structs.replace(SETTINGS, margin=5.0)
    paces = [turns.pace("cpu", [2.5e6] * 2, [1e6] * 2, wide, room=room) for room in (0.0, 0.9, 99.0)]
    assert [(pace.rounds, pace.most) for pace in paces] == [(20, 40), (20, 180), (20, 320)]
    assert all(pace.enough(quiet) and not pace.enough(noisy) for pace in paces)
    assert turns.pace("cuda", [2.5e6] * 2, [1e6] * 2, wide, room=99.0).most == 20


@pytest.mark.parametrize("arms", [2, 3, 4])
def test_every_arm_has_every_place_as_often(arms: int) -> None:
    """Long calls have one pair of rounds an epoch: the two in the middle are neighbours, and the outer ones are not."""
    for begin in (1, 1 + 2 * arms, 1 + 8 * arms):
        first = [turns.orders(arms, 2, "0/cell", epoch)[0] for epoch in range(begin, begin + 2 * arms)]
        for place in range(arms):
            assert Counter(order[place] for order in first) == dict.fromkeys(range(arms), 2)
        for one, two in zip(first[::2], first[1::2], strict=True):
            assert (one.index(0), one.index(1)) == (two.index(1), two.index(0)), "base and target at every second"
    pairs = turns.orders(arms, 4 * arms, "0/cell", 1)[::2]
    assert Counter(order[0] for order in pairs) == dict.fromkeys(range(arms), 2), "and in as many pairs of an epoch"


def test_places_by_turns() -> None:
    assert ["".join(turns.ranked("btc", number)) for number in range(7)] == [
        "btc", "tbc", "tcb", "bct", "cbt", "ctb", "btc",
    ]  # fmt: skip
    assert ["".join(turns.ranked("bt", number)) for number in range(5)] == ["bt", "tb", "tb", "bt", "bt"]
    assert [turns.ranked("b", 3), turns.ranked((), 5)] == [["b"], []]


def rounds_of(sd: float, count: int) -> list[list[float]]:
    rng = random.Random(5)
    return [[1e6, 1e6 * math.exp(rng.gauss(0.2, sd))] for _ in range(count)]


def test_an_epoch_ends_when_its_median_is_known_well_enough() -> None:
    wanted = turns.pace("cuda", [3.6e6] * 2, [1e6] * 2, SETTINGS).wanted
    assert wanted == 0.005 / 8
    assert turns.settled(rounds_of(0.0, 8), wanted)
    assert not turns.settled(rounds_of(0.0, 6), wanted)
    assert not turns.settled(rounds_of(0.01, 100), wanted)  # needs about (1.25 * 0.01 / wanted) ** 2 = 400
    assert turns.settled(rounds_of(0.01, 900), wanted)
    tight = msgspec.structs.replace(SETTINGS, precision=0.1)
    assert turns.pace("cuda", [3.6e6] * 2, [1e6] * 2, tight).wanted == 0.001 / 8


def test_two_mirrored_pairs_of_a_middling_call_tell_whether_they_will_do() -> None:
    """From 10 ms up, on a GPU. Four ratios that lie close by chance do not end an epoch: their own deviation counts."""
    middling = turns.pace("cuda", [15e6] * 2, [1e6] * 2, SETTINGS)
    assert (middling.fewest, middling.rounds) == (4, 4)
    fewest = {9e6: turns.FEWEST, 1e7: 4, 4.9e7: 4, 5e7: 2, 1.29e8: 2, 1.3e8: 1}
    assert {ns: turns.fewest_rounds("cuda", ns) for ns in fewest} == fewest
    assert turns.fewest_rounds("cpu", 1e9) == turns.FEWEST
    assert turns.pace("cuda", [15e6] * 2, [1e6] * 2, QUICK).fewest == 4
    quiet = [[1e7, 1e7 * math.exp(each)] for each in (0.001, 0.0018, 0.0012, 0.0016)]
    assert [turns.settled(quiet[:count], 0.0005, 4) for count in (2, 3, 4)] == [False, False, True]
    assert not turns.settled(quiet, 0.0005), "of other calls no fewer than ever"
    stray = [*quiet[:3], [1e7, 1e7 * math.exp(0.02)]]
    assert turns.spread([math.log(b / a) for a, b in stray]) < 0.001
    assert not turns.settled(stray, 0.0005, 4)


@pytest.mark.parametrize("arms", [2, 3, 4, 5])
def test_of_any_two_arms_each_is_first_in_every_second_single_round(arms: int) -> None:
    """The later of two long calls takes up to 1 % longer under a power limit."""
    for seed in range(50):
        alone = [turns.orders(arms, 1, seed, epoch) for epoch in range(1, 9)]
        assert all(len(of_one) == 1 for of_one in alone)
        rounds = [order for ((*order,),) in alone]
        assert all(mirror == order[::-1] for order, mirror in zip(rounds[::2], rounds[1::2], strict=True))
        assert len({tuple(order) for order in rounds}) > 1
        assert rounds[:2] == turns.orders(arms, 2, seed, 1), "as the rounds of an epoch that takes two"


def test_a_change_however_large_does_not_end_an_epoch_sooner() -> None:
    quiet, noisy = rounds_of(0.001, 20), rounds_of(0.02, 20)
    for factor in (0.5, 1.0, 2.0):
        assert turns.settled([[a, b * factor] for a, b in quiet], 0.001)
        assert not turns.settled([[a, b * factor] for a, b in noisy], 0.001)


def test_what_a_launch_costs_in_its_process_is_taken_out_of_a_round() -> None:
    """A kernel of 10 us on both sides, read by a process whose launches cost 3.1 us and one whose launches cost 3.4."""
    row = [Turn(0, 0, 1, 13_100.0, 20_000.0, 3_100.0), Turn(1, 2, 3, 13_400.0, 20_000.0, 3_400.0)]
    assert [(turn.arm, turn.value, turn.empty) for turn in turns.levelled(row)] == [
        (0, 13_250.0, 3_100.0),
        (1, 13_250.0, 3_400.0),
    ]


def test_whole_rounds_are_dropped_by_the_timer_and_by_the_devices_bad_times() -> None:
    def turn(arm: int, at: int, value: float = 5.0) -> Turn:
        return Turn(arm, at, at + 10, value, 6.0)

    rounds = [[turn(0, 0), turn(1, 20)], [turn(0, 100), turn(1, 120, 0.0)], [turn(0, 200), turn(1, 220)]]
    bad = [
        (1215, 1218, "hot"),
        (1130, 1200, "cold"),
    ]  # between the two turns of the last round; at the ends of two rounds
    assert turns.rejected(rounds, 1000, bad) == {1: "the timer read zero or less", 2: "hot"}
    assert turns.rejected(rounds, 1000, []) == {1: "the timer read zero or less"}
    assert turns.rejected([], 1000, bad) == {}
    absurd = [[turn(0, 0, 1e308)], [Turn(0, 0, 10, 5.0, 2e18)], [turn(0, 0, 1e18)]]
    assert turns.rejected(absurd, 1000, []) == dict.fromkeys((0, 1), "the timer read more than thirty years")
