"""The device's mean clock in a turn, of what each multiprocessor wrote before and after it."""

from __future__ import annotations

import pytest
import torch

from abprof.worker.clocks import stamps as code

FAST, SLOW, NONE = (1_600_000, 1_000_000), (1_590_000, 1_000_000), (0, 0)
Told = tuple[list[list[int]], list[list[int]]]


def stamps(*took: tuple[int, int], turn: int = 5, began: int = 5) -> Told:
    """Of multiprocessors whose turn `took` (cycles, ns); each has counted from another beginning."""
    begun = [[900 * place, 70, began] for place, _ in enumerate(took)]
    return begun, [[900 * place + cycles, 70 + ns, turn] for place, (cycles, ns) in enumerate(took)]


@pytest.mark.parametrize(
    ("told", "mhz"),
    [
        (stamps(FAST, SLOW), {0: 1600.0, 1: 1590.0}),
        (stamps(FAST, NONE, SLOW, (5, 0), (0, 5)), {0: 1600.0, 2: 1590.0}),  # ids without one; clocks that stood still
        (stamps(FAST, SLOW, began=4), {}),  # what an earlier turn wrote is no beginning of this one
        (stamps(FAST, SLOW, turn=4), {}),
        (stamps(FAST, turn=4, began=4), {}),
        (([], []), {}),
    ],
)
def test_a_multiprocessors_clock_is_of_both_stamps_of_the_turn(told: Told, mhz: dict[int, float]) -> None:
    assert code.clocks(*told, 5) == pytest.approx(mhz)


@pytest.mark.parametrize(("took", "mhz"), [((FAST, SLOW), 1595.0), ((FAST, NONE), 1600.0), ((NONE,), 0.0)])
def test_a_turns_clock_is_the_mean_of_all_that_have_one(took: tuple[tuple[int, int], ...], mhz: float) -> None:
    """Here no driver writes them."""
    one = object.__new__(code.Stamps)
    one._written, one._turn = torch.tensor(stamps(*took)), 5
    assert one.mhz() == pytest.approx(mhz)


def test_each_turn_has_a_number_of_its_own() -> None:
    """Which both its stamps write: a multiprocessor that was not reached has that of a turn before."""
    one, wrote = object.__new__(code.Stamps), list[tuple[int, int]]()
    one._turn = 0
    one._launch = lambda which: wrote.append((which, one._turn))  # type: ignore[method-assign]
    for _ in range(2):
        one.begin()
        one.end()
    one.begin()  # the host was late, and the call is made again
    assert wrote == [(0, 1), (1, 1), (0, 2), (1, 2), (0, 3)]
