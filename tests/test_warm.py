"""The parents that tests of simulated runs fork: they answer as fresh ones do, and none outlives its time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.simulated import warm
from tests.simulated.client import SCENARIO
from tests.simulated.lab import Lab
from tests.simulated.processes import alive, noted
from tests.simulated.scenario import Fault, Scenario


def test_it_answers_as_a_fresh_process(tmp_path: Path) -> None:
    lab = Lab(tmp_path, SCENARIO)
    for words in (("main", "fast", "--threshold", "much"), ("main", "nosuch"), ("main", "fast", "--dry-run", "--json")):
        forked, fresh = lab.abprof(*words), lab.finish(lab.start(*words))
        assert (forked.code, forked.err) == (fresh.code, fresh.err)
        assert (forked.code, bool(forked.out)) == (fresh.code, bool(fresh.out))


def test_one_that_does_not_end_in_time_is_killed_with_its_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time is over once it has workers, however long it took to start them."""
    hangs = Scenario(workloads=SCENARIO.workloads, faults=[Fault("hang", "describe")])
    lab = Lab(tmp_path, hangs)
    monkeypatch.setattr(warm, "time", SimpleNamespace(monotonic=lambda: 4.0 if noted(lab.scenario) else 0.0))
    with pytest.raises(AssertionError, match="did not end in 1 s"):
        warm.abprof(lab._placed(["main", "fast"]), lab.environment(), lab.folder, 1)
    pids = noted(lab.scenario)
    assert pids
    assert not [pid for pid in pids if alive(pid, wait=60)]
