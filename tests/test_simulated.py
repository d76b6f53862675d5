"""What the simulated worker pretends: scenarios are read as they were written, strictly, and their numbers are exact."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.simulated.client import SCENARIO
from tests.simulated.scenario import Fault, Noise, Scenario, Time


def test_scenario_round_trip() -> None:
    full = replace(
        SCENARIO,
        noise=[Noise(turn=0.01, cell="w/*")],
        times=[Time(ns=5.0), Time(factor=1.1, side="target")],
        faults=[Fault("exit:3", "open", epoch=2)],
    )
    assert Scenario.from_json(full.to_json()) == full


@pytest.mark.parametrize(
    "spoil",
    [
        lambda loose: loose.update(surprise=1),
        lambda loose: loose["workloads"]["w"].update(surprise=1),
        lambda loose: loose["faults"].append({"do": "hang", "verb": "turn", "surprise": 1}),
        lambda loose: loose["times"].append({"surprise": 1}),
    ],
)
def test_scenario_refuses_unknown_keys(spoil: Callable[[dict[str, Any]], None]) -> None:
    loose = json.loads(SCENARIO.to_json())
    spoil(loose)
    with pytest.raises(TypeError, match="surprise"):
        Scenario.from_json(json.dumps(loose))


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
