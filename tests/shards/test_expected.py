"""How long each cell is taken to be: by its work."""

from __future__ import annotations

import pytest

from abprof.fleet import expected
from abprof.fleet.schedule import ASSUMED
from abprof.measure import estimate
from abprof.records import Arm
from tests import runs

ARMS = tuple(Arm(id=side, side=side) for side in ("base", "target"))


@pytest.mark.parametrize(("settings", "epochs"), [({}, 4), ({"epochs": 8}, 8), ({"quick": True}, 1)])
def test_cells_are_estimated_by_their_work(settings: dict[str, object], epochs: int) -> None:
    of = runs.run()
    run = runs.changed(of, settings=runs.changed(of.settings, **{"epochs": None, **settings}))
    first, second = run.cells[:2]
    found, error = expected.tasks(run, {first.id: ARMS, second.id: ARMS})
    assert [task.seconds for task in found] == [
        pytest.approx(epochs * estimate.cell_seconds(run, cell, 2)[1]) for cell in (first, second)
    ]
    assert error == ASSUMED
