"""How long each cell is taken to be: by earlier runs where they know it, else by its work in their scale."""

from __future__ import annotations

import pytest

from abprof.fleet import expected
from abprof.fleet.schedule import ASSUMED, SEEN_BEFORE
from abprof.measure import estimate, turns
from abprof.measure.allocation import Scatter
from abprof.records import Arm, Run
from tests import runs

ARMS = tuple(Arm(id=side, side=side) for side in ("base", "target"))


def planned(**settings: object) -> Run:
    of = runs.run()
    machine = runs.changed(of.machine, kind="cuda")
    return runs.changed(of, machine=machine, settings=runs.changed(of.settings, epochs=None, **settings))


def scatter(epochs: int, *, within: float = 1e-4, between: float = 0.0) -> Scatter:
    return Scatter(within=within, between=between, round_seconds=0.01, epoch_seconds=2.0, epochs=epochs)


def test_a_cell_takes_what_it_took() -> None:
    run = planned()
    first, second = run.cells[:2]
    known = {first.id: scatter(4), second.id: scatter(8, between=1e-6)}
    found, error = expected.tasks(run, {first.id: ARMS, second.id: ARMS}, known)
    usual = turns.epoch_cost("cuda", 2)[1]  # 0.7 s of turns
    # Where epochs scatter the next run's rounds follow from it: sqrt(2 / 0.01 * 1e-4 / 1e-6) = 142 of 10 ms.
    assert [task.seconds for task in found] == [pytest.approx(4 * (2 + usual)), pytest.approx(8 * (2 + 1.42))]
    assert [(task.cell, task.kernel) for task in found] == [(cell.id, cell.kernel) for cell in (first, second)]
    assert error == SEEN_BEFORE


def test_long_rounds_are_no_fewer_than_ever() -> None:
    run = planned()
    cell = run.cells[0]
    for seconds, fewest in ((1.0, 1), (0.2, 2), (0.09, 4)):  # of two calls
        slow = runs.changed(scatter(4, between=1e-2), round_seconds=seconds)
        (task,), _ = expected.tasks(run, {cell.id: ARMS}, {cell.id: slow})
        assert task.seconds == pytest.approx(4 * (2 + fewest * seconds))


def test_no_more_rounds_than_settle_an_epoch() -> None:
    """A variance of 1e-6 a round is (0.5 % / 8)^2 after three."""
    run = planned()
    cell = run.cells[0]
    assert run.settings.margin == 0.5
    quiet = runs.changed(scatter(4, between=1e-12), within=1e-6, round_seconds=0.2)
    (task,), _ = expected.tasks(run, {cell.id: ARMS}, {cell.id: quiet})
    assert task.seconds == pytest.approx(4 * (2 + 3 * 0.2))
    loud = runs.changed(quiet, within=4e-6)
    (task,), _ = expected.tasks(run, {cell.id: ARMS}, {cell.id: loud})
    assert task.seconds == pytest.approx(4 * (2 + 11 * 0.2))


def test_checks_and_profiled_passes_count_once_and_rounds_as_they_were() -> None:
    run = planned()
    cell = run.cells[0]
    seen = runs.changed(scatter(4), once=3.0, inside_seconds=0.1)
    (task,), _ = expected.tasks(run, {cell.id: ARMS}, {cell.id: seen})
    assert task.seconds == pytest.approx(3 + 4 * (2 + 0.1))


@pytest.mark.parametrize("field", ["epoch_seconds", "once", "round_seconds"])
@pytest.mark.parametrize("value", [-1e6, 1e308])
def test_what_no_run_can_have_learnt_is_not_known(field: str, value: float) -> None:
    """The state folder is anybody's: a schedule takes no seconds below zero, nor without an end."""
    run = planned()
    cell = run.cells[0]
    strange = runs.changed(scatter(4), **{field: value})
    assert expected.tasks(run, {cell.id: ARMS}, {cell.id: strange}) == expected.tasks(run, {cell.id: ARMS}, {})


def test_a_scatter_without_an_end_takes_what_rounds_there_may_be() -> None:
    run = planned()
    cell = run.cells[0]
    strange = runs.changed(scatter(4, between=1e-6), within=1e308)
    (task,), _ = expected.tasks(run, {cell.id: ARMS}, {cell.id: strange})
    assert task.seconds == pytest.approx(4 * (2 + turns.MOST * 0.01))


def test_a_cell_that_is_new_goes_by_its_work_in_the_scale_of_those_that_are_known() -> None:
    run = planned()
    arms = {cell.id: ARMS for cell in run.cells[:3]}
    new, error = expected.tasks(run, arms, {})
    assert [t.seconds for t in new] == [
        pytest.approx(4 * estimate.cell_seconds(run, cell, 2)[1]) for cell in run.cells[:3]
    ]
    assert error == ASSUMED
    one, error = expected.tasks(run, arms, {run.cells[0].id: scatter(4)})
    scale = one[0].seconds / new[0].seconds
    assert [task.seconds for task in one[1:]] == [pytest.approx(scale * task.seconds) for task in new[1:]]
    assert error == ASSUMED
    assert expected.tasks(run, arms, {cell.id: scatter(4) for cell in run.cells[:2]})[1] == SEEN_BEFORE


def test_what_was_asked_for_decides_the_epochs() -> None:
    cell = runs.run().cells[0]
    for settings, epochs in (({"quick": True}, 1), ({"epochs": 12}, 12)):
        of = runs.run()
        run = runs.changed(planned(), settings=runs.changed(of.settings, **settings))
        (task,), _ = expected.tasks(run, {cell.id: ARMS}, {cell.id: scatter(6)})
        assert task.seconds == pytest.approx(epochs * (2 + turns.epoch_cost("cuda", 2)[1]))


def test_cells_without_arms_are_no_tasks() -> None:
    run = planned()
    assert expected.tasks(run, {}, {}) == ([], ASSUMED)
