"""Change detection on nights with known changes: found changes, ignored noise, and error rates."""

import math
from dataclasses import replace

import numpy as np
import pytest

from abprof.extras.nightly.changes import Change, Trend, find_changes
from tests.simulations.nights import fleet


def changes(trends: list[Trend]) -> list[Change]:
    return find_changes(trends)[0]


def waits(trends: list[Trend], truth: int) -> np.ndarray:
    """Nights from the first at the new level (which is night 1) to the first confirmation, cell by cell."""
    first: dict[str, int] = {}
    for change in changes(trends):
        if change.found >= truth:
            first.setdefault(change.trend, change.found - truth + 1)
    return np.array([first.get(trend.name, 10**6) for trend in trends])


def one(values: list[float], machine: list[str] | None = None, numbers: list[int] | None = None) -> Trend:
    """A trend with the given noise only; base is the head of the night before."""
    head = np.array(values)
    base = np.concatenate([[np.nan], head[:-1]])
    with np.errstate(invalid="ignore"):
        ratio = np.log(head / base)
    places = tuple(numbers or range(1, len(values) + 1))
    return Trend("cell", places, base, head, ratio, tuple(machine or ["m"] * len(values)))


def wobble(count: int, seed: int = 0, size: float = 0.005) -> list[float]:
    return [100 * math.exp(x) for x in np.random.default_rng(seed).normal(0, size, count)]


def test_false_alarms_of_500_cells_at_one_per_cent_of_noise() -> None:
    assert len(changes(fleet(500, 120, 0.01, seed=1))) / 120 <= 0.1


def test_a_step_of_five_per_cent_is_confirmed_within_three_nights() -> None:
    found = waits(fleet(200, 45, 0.01, seed=2, step=(41, 0.05)), 41)
    assert np.mean(found <= 3) >= 0.98
    assert (found <= 5).all()


def test_a_drift_is_confirmed_before_it_sums_to_five_per_cent() -> None:
    assert np.mean(waits(fleet(200, 62, 0.01, seed=3, drift=(41, 0.003)), 41) <= 16) >= 0.98


def test_outliers_are_no_change() -> None:
    late = [change for change in changes(fleet(60, 120, 0.005, seed=1, law="spikes")) if change.found > 40]
    assert len(late) / 80 * 500 / 60 <= 0.7  # by medians it was 3.4


def test_a_step_has_its_night_size_and_direction() -> None:
    low, high = wobble(20), [1.08 * x for x in wobble(6, 1)]
    (change,) = changes([one(low + high)])
    assert (change.night, change.found, change.because) == (21, 23, "code")
    assert change.pct == pytest.approx(8, abs=1)
    (change,) = changes([one([1.08 * x for x in low] + wobble(6, 1))])
    assert change.pct == pytest.approx(-7.4, abs=1)
    values = low + [1.1 * x for x in wobble(20, 1)] + wobble(20, 2)
    assert [(change.night, round(change.pct / 10)) for change in changes([one(values)])] == [(21, 1), (41, -1)]


def test_fewer_than_three_nights_are_no_change() -> None:
    bad = [1.15 * x for x in wobble(2, 1)]
    for values in (bad[:1], bad, bad[:1] + wobble(5, 1)):
        assert changes([one(wobble(20) + values)]) == []


def test_all_cells_together_are_the_machine_unless_their_code_changed() -> None:
    found, shifts = find_changes(fleet(30, 60, 0.01, seed=7, shift=(40, 0.08)))
    assert [(shift.night, round(shift.pct)) for shift in shifts] == [(40, 8)]
    assert [change for change in found if change.because != "machine" and change.night >= 38] == []
    found, shifts = find_changes(fleet(30, 60, 0.01, seed=8, step=(40, 0.08)))
    assert shifts == []
    assert len({change.trend for change in found if change.because == "code"}) >= 28


def test_a_machine_that_gets_slower_night_by_night_is_not_the_code() -> None:
    rise = np.exp(np.maximum(0, np.arange(1, 81) - 40) * 0.003)
    drifting = [
        replace(trend, base=trend.base * rise, head=trend.head * rise) for trend in fleet(40, 80, 0.005, seed=9)
    ]
    found = [change.because for change in changes(drifting) if change.found > 45]
    assert "code" not in found
    assert found.count("machine") >= max(1, 0.8 * len(found))


def test_identical_code_and_short_and_empty_trends_have_no_change() -> None:
    trend, same = fleet(1, 60, 0.01, seed=10)[0], np.arange(60) % 2 == 1
    gone = {name: np.where(same, np.nan, getattr(trend, name)) for name in ("base", "head")}
    assert changes([replace(trend, ratio=np.where(same, 0.0, trend.ratio), **gone)]) == []
    assert find_changes([]) == ([], [])
    for count in range(1, 8):
        assert changes([one(wobble(count))]) == []
    nothing = one(wobble(3))
    nothing.head[:] = nothing.base[:] = np.nan
    assert find_changes([nothing]) == ([], [])
