"""The device's mean clock in a turn, of what each multiprocessor wrote before and after it."""

from __future__ import annotations

import pytest

from abprof.worker.clocks.stamps import mean_mhz

FAST, SLOW, NONE = (1_600_000, 1_000_000), (1_590_000, 1_000_000), (0, 0)


def stamps(*took: tuple[int, int], turn: int = 5, began: int = 5) -> tuple[list[list[int]], list[list[int]]]:
    """Of multiprocessors whose turn `took` (cycles, ns); each has counted from another beginning."""
    begun = [[900 * place, 70, began] for place, _ in enumerate(took)]
    return begun, [[900 * place + cycles, 70 + ns, turn] for place, (cycles, ns) in enumerate(took)]


@pytest.mark.parametrize(
    ("told", "mhz"),
    [
        (stamps(FAST), 1600.0),
        (stamps(FAST, SLOW), 1595.0),
        (stamps(FAST, NONE, SLOW, (5, 0), (0, 5)), 1595.0),  # ids without a multiprocessor; a clock that stood still
        (stamps(FAST, SLOW, began=4), 0.0),  # what an earlier turn wrote is no beginning of this one
        (stamps(FAST, SLOW, turn=4), 0.0),
        (stamps(FAST, turn=4, began=4), 0.0),
        (([], []), 0.0),
    ],
)
def test_the_mean_is_over_those_with_both_stamps_of_the_turn(
    told: tuple[list[list[int]], list[list[int]]], mhz: float
) -> None:
    assert mean_mhz(*told, 5) == pytest.approx(mhz)
