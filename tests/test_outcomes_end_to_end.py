"""Whole runs whose arms are not ok, or are variants that one side alone has."""

from __future__ import annotations

import re

from tests.simulated.planted import SLOWER, NewLab, broken, load, new_lab, times
from tests.simulated.scenario import Scenario, Time

__all__ = ["new_lab"]


FAILURES = {
    "wrong": ("wrong", "check"),
    "unsupported": ("unsupported", "open"),
    "oom": ("oom", "open"),
    "missing": ("missing", "open"),
    "crash": ("crash_status", "open"),
}


def test_outputs_that_timed_calls_spoil_are_wrong(new_lab: NewLab) -> None:
    """The check before the turns passes, the check after them does not."""
    fault = broken("wrong", "late", "target", "check", text="stale", after=2)
    result = new_lab(Scenario(workloads={"w": load(["late", "fine"])}, times=times(), faults=[fault])).abprof()
    assert result.table() == {"w/case=late": "broken", "w/case=fine": "same"}
    (late,) = (seen for seen in result.run.observations if seen.status == "wrong")
    assert re.fullmatch(r"after \d+ timed calls: stale", late.reason)
    assert result.code == 1


def test_outcomes(new_lab: NewLab) -> None:
    """Each outcome once on the target, once on the base, once on both, and one cell that is fine, all in one run."""
    faults = [
        broken(do, f"{status}-{where}", side, verb, text="as planted")
        for status, (do, verb) in FAILURES.items()
        for where, side in (("target", "target"), ("base", "base"), ("both", "*"))
    ]
    cases = [f"{status}-{where}" for status in FAILURES for where in ("target", "base", "both")]
    result = new_lab(Scenario(workloads={"w": load([*cases, "fine"])}, times=times(), faults=faults)).abprof()
    table = result.table()
    assert table.pop("w/case=fine") == "same"
    for status in FAILURES:
        apart = status in {"unsupported", "missing"}  # on both sides: not the target's fault
        verdicts = [table[f"w/case={status}-{where}"] for where in ("target", "base", "both")]
        assert verdicts == ["broken", "unclear", "unclear" if apart else "broken"], status
        assert result.row(f"w/case={status}-base").reasons[0] == f"base_{status}"
        assert result.row(f"w/case={status}-both").reasons[0] == (status if apart else "both")
        assert result.status(f"w/case={status}-target", "target") == (status, "as planted")
        assert result.status(f"w/case={status}-target", "base")[0] == "ok"
        assert result.status(f"w/case={status}-base", "base") == (status, "as planted")
    assert result.code == 1
    assert not any(item.metrics for item in result.run.observations if item.status != "ok")


def test_variants(new_lab: NewLab) -> None:
    """Each variant is an arm on each side; one that only one side has is missing on the other."""
    scenario = Scenario(
        workloads={"w": load(["a"], variants=["old", "both", "new"])},
        times=times(Time(factor=SLOWER, side="target", arm="both")),
        variants={"base": ["old", "both"], "target": ["both", "new"]},
    )
    result = new_lab(scenario).abprof()
    assert result.verdict("w/case=a", "target:both") == "slower"
    assert result.verdict("w/case=a", "target:old") == "broken"
    assert result.verdict("w/case=a", "target:new") == "unclear"
    assert result.row("w/case=a", "target:new").reasons[0] == "base_missing"
    assert result.status("w/case=a", "target:old")[0] == "missing"
    assert result.code == 1
