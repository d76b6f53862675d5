"""What change detection finds, what it leaves alone, and how often it errs: on nights whose truth is known."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from abprof.extras.history.changes import Change, find
from abprof.extras.history.index import Question, opened
from abprof.extras.history.series import trends
from abprof.extras.history.trend import Trend
from tests.nights import Nights
from tests.simulations.nights import fleet


def confirmed(trends: list[Trend]) -> list[Change]:
    return [change for change in find(trends)[0] if change.state == "confirmed"]


def waits(trends: list[Trend], truth: int) -> np.ndarray:
    """Nights from the first at the new level (which is night 1) to the first confirmation, cell by cell."""
    first: dict[str, int] = {}
    for change in confirmed(trends):
        if change.found >= truth:
            first.setdefault(change.trend, change.found - truth + 1)
    return np.array([first.get(trend.name, 10**6) for trend in trends])


def one(values: list[float], machine: list[str] | None = None, numbers: list[int] | None = None) -> Trend:
    """A trend without noise beyond what is given: the base is what the head was the night before."""
    head = np.array(values)
    base = np.concatenate([[np.nan], head[:-1]])
    with np.errstate(invalid="ignore"):
        ratio = np.log(head / base)
    return Trend("cell", tuple(numbers or range(1, len(values) + 1)), base, head, ratio,
                 (False, *[True] * (len(values) - 1)), tuple(machine or ["m"] * len(values)))  # fmt: skip


def wobble(count: int, seed: int = 0, size: float = 0.005) -> list[float]:
    return [100 * math.exp(x) for x in np.random.default_rng(seed).normal(0, size, count)]


# ---------------------------------------------------------------- error rates (docs/NIGHTLY.md has the table)


def test_false_alarms_of_500_cells_at_one_per_cent_of_noise() -> None:
    nights = 120
    assert len(confirmed(fleet(500, nights, 0.01, seed=1))) / nights <= 0.1


def test_a_step_of_five_per_cent_is_confirmed_within_three_nights() -> None:
    found = waits(fleet(200, 45, 0.01, seed=2, step=(41, 0.05)), 41)
    assert np.mean(found <= 3) >= 0.98
    assert (found <= 5).all()


def test_a_drift_is_confirmed_before_it_sums_to_five_per_cent() -> None:
    found = waits(fleet(200, 62, 0.01, seed=3, drift=(41, 0.003)), 41)
    assert np.mean(found <= 16) >= 0.98


def test_wild_nights_among_others_are_no_change() -> None:
    late = [change for change in confirmed(fleet(60, 120, 0.005, seed=1, law="spikes")) if change.found > 40]
    assert len(late) / 80 * 500 / 60 <= 0.7  # by medians it was 3.4


@pytest.mark.slow
def test_false_alarms_over_a_long_time_and_with_heavy_tails() -> None:
    assert len(confirmed(fleet(500, 400, 0.01, seed=4))) / 400 <= 0.1
    late = [change for change in confirmed(fleet(500, 200, 0.005, seed=5, law="t3")) if change.found > 60]
    assert len(late) / 140 <= 0.3


# ---------------------------------------------------------------- single trends


def test_a_step_has_its_night_size_and_direction() -> None:
    low, high = wobble(20), [1.08 * x for x in wobble(6, 1)]
    (change,) = confirmed([one(low + high)])
    assert (change.night, change.found, change.kind, change.because) == (21, 23, "step", "code")
    assert change.pct == pytest.approx(8, abs=1)
    (change,) = confirmed([one(high[:1] * 0 + [1.08 * x for x in low] + wobble(6, 1))])
    assert change.pct == pytest.approx(-7.4, abs=1)


def test_a_step_is_suspected_on_its_first_and_second_night() -> None:
    values = wobble(20) + [1.08 * x for x in wobble(2, 1)]
    for nights in (21, 22):
        (change,) = find([one(values[:nights])])[0]
        assert (change.state, change.night, change.found) == ("suspected", 21, nights)


def test_one_bad_night_is_suspected_and_forgotten() -> None:
    values = [*wobble(20), 115.0]
    assert [change.state for change in find([one(values)])[0]] == ["suspected"]
    assert find([one(values + wobble(5, 1))])[0] == []


def test_two_steps_are_two_changes() -> None:
    values = wobble(20) + [1.1 * x for x in wobble(20, 1)] + wobble(20, 2)
    assert [(change.night, round(change.pct / 10)) for change in confirmed([one(values)])] == [(21, 1), (41, -1)]


def test_a_drift_is_named_so_and_begins_where_it_began() -> None:
    values = wobble(30, size=0.002) + [
        100 * math.exp(0.004 * i) * x / 100 for i, x in enumerate(wobble(12, 1, 0.002), 1)
    ]
    change = confirmed([one(values)])[0]
    assert change.kind == "drift"
    assert 29 <= change.night <= 33
    assert change.because == "code"


def test_what_is_true_of_a_night_needs_no_later_night() -> None:
    trend = fleet(1, 60, 0.01, seed=6, step=(30, 0.06))[0]
    whole = confirmed([trend])
    fields = ("numbers", "base", "head", "ratio", "measured", "machine")
    for night in range(25, 60):
        cut = replace(trend, **{name: getattr(trend, name)[:night] for name in fields})
        assert confirmed([cut]) == [change for change in whole if change.found <= night]


def test_a_new_machine_begins_a_new_stretch() -> None:
    values = wobble(20) + [1.3 * x for x in wobble(20, 1)]
    trend = one(values, ["old"] * 20 + ["new"] * 20)
    trend.base[20] = trend.head[19] * 1.3  # the same commit, on the new machine
    trend.ratio[20] = math.log(trend.head[20] / trend.base[20])
    assert find([trend]) == ([], [])


def test_a_step_on_the_night_of_a_new_machine_is_seen_by_its_ratio() -> None:
    values = wobble(20, size=0.002) + [1.3 * 1.06 * x for x in wobble(20, 1, 0.002)]
    trend = one(values, ["old"] * 20 + ["new"] * 20)
    trend.base[20] = trend.head[19] * 1.3
    trend.ratio[20] = math.log(trend.head[20] / trend.base[20])
    (change,) = confirmed([trend])
    assert (change.night, change.because) == (21, "code")
    assert change.pct == pytest.approx(6, abs=1)


def test_a_gap_is_no_night() -> None:
    values = wobble(20) + [1.08 * x for x in wobble(6, 1)]
    numbers = [*range(1, 11), *range(18, 34)]  # nights 11 to 17 were missed
    (change,) = confirmed([one(values, numbers=numbers)])
    assert (change.night, change.found) == (28, 30)


def test_all_cells_together_are_the_machine() -> None:
    changes, shifts = find(fleet(30, 60, 0.01, seed=7, shift=(40, 0.08)))
    assert [shift.night for shift in shifts] == [40]
    assert shifts[0].pct == pytest.approx(8, abs=1)
    assert [change for change in changes if change.because != "machine" and change.night >= 38] == []


def test_all_cells_together_by_their_code_are_not_the_machine() -> None:
    changes, shifts = find(fleet(30, 60, 0.01, seed=8, step=(40, 0.08)))
    assert shifts == []
    assert len({change.trend for change in changes if change.state == "confirmed" and change.because == "code"}) >= 28


def test_a_machine_that_gets_slower_night_by_night_is_not_the_code() -> None:
    fleet_ = fleet(40, 80, 0.005, seed=9)
    rise = np.exp(np.maximum(0, np.arange(1, 81) - 40) * 0.003)
    drifting = [replace(trend, base=trend.base * rise, head=trend.head * rise) for trend in fleet_]
    found = [change for change in find(drifting)[0] if change.found > 45]
    assert found
    assert "code" not in {change.because for change in found}
    assert sum(change.because == "machine" for change in found) >= 0.8 * len(found)


def test_nights_of_identical_code_are_no_news() -> None:
    trend = fleet(1, 60, 0.01, seed=10)[0]
    same = np.arange(60) % 2 == 1
    head, ratio = np.where(same, np.nan, trend.head), np.where(same, 0.0, trend.ratio)
    still = replace(
        trend,
        head=head,
        base=np.where(same, np.nan, trend.base),
        ratio=ratio,
        measured=tuple(bool(not it) for it in same),
    )
    assert confirmed([still]) == []


def test_empty_and_short_trends() -> None:
    assert find([]) == ([], [])
    for count in range(1, 8):
        assert confirmed([one(wobble(count))]) == []
    nothing = one(wobble(3))
    nothing.head[:] = np.nan
    nothing.base[:] = np.nan
    assert find([nothing]) == ([], [])


def test_trends_come_from_the_index(tmp_path: object) -> None:
    nights = Nights(tmp_path / "runs")  # type: ignore[operator]
    nights.series_of("w/n=1", [1.0, 1.1, 1.2])
    with opened(nights.runs_dir) as index:
        (trend,) = trends(index.values(Question()))
    assert trend.numbers == (1, 2, 3)
    assert trend.head.tolist() == [1.0, 1.1, 1.2]
    assert trend.base[1:].tolist() == [1.0, 1.1]
    assert np.exp(trend.ratio[1:]).tolist() == pytest.approx([1.1, 1.2 / 1.1])


def test_workloads_that_were_edited_under_the_same_ids_are_neither_the_machine_nor_a_change(tmp_path: Path) -> None:
    """From night 21 on every cell does 20 % more work: its time begins anew, and is compared with nothing before."""
    nights, cells = Nights(tmp_path / "runs"), [f"w/n={number}" for number in range(5)]
    for night in range(1, 41):
        time, asked = (1.2e6, "edited") if night >= 21 else (1e6, "matrix")
        kind = "first" if night == 1 else "step"
        nights.add(dict.fromkeys(cells, (None if night == 1 else time, time)), kind=kind, asked=asked)
    with opened(nights.runs_dir) as index:
        assert find(list(trends(index.values(Question())))) == ([], [])
