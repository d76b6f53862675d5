"""The simulated worker: scenarios survive a write and a strict read, and their numbers are exact."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulated.client import SCENARIO
from tests.simulated.scenario import Noise, Time


def test_times_rules() -> None:
    rules = [
        Time(ns=100.0),
        Time(ns=200.0, cell="w/n=2*"),
        Time(factor=1.5, side="target"),
        Time(factor=2, arm="peer:*"),
        Time(factor=3, side="base", cell="z/*"),
    ]
    scenario = replace(SCENARIO, times=rules)
    assert scenario.ns("base", "w/n=1", "") == 100
    assert scenario.ns("target", "w/n=2", "") == 300
    assert scenario.ns("base", "w/n=2", "peer:lib") == 400
    assert scenario.ns("control", "z/n=1", "") == 300
    with pytest.raises(ValueError, match="no time"):
        replace(SCENARIO, times=[]).ns("base", "w/n=1", "")


def test_a_value_depends_on_the_seed_and_on_what_it_belongs_to() -> None:
    noisy = replace(SCENARIO, noise=[Noise(turn=0.01, common=0.01, epoch=0.01)])
    values = [noisy.noisy("base", 2, "w/n=1", "", turn) for turn in range(30)]
    assert values == [noisy.noisy("base", 2, "w/n=1", "", turn) for turn in range(30)]
    assert not set(values) & {noisy.noisy("base", 3, "w/n=1", "", turn) for turn in range(30)}
    assert values[0] != replace(noisy, seed=1).noisy("base", 2, "w/n=1", "", 0)
