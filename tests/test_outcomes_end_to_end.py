"""Whole runs whose arms are not ok, or are many: outcomes, variants, peers, targets, parts of a run and reruns."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulated.planted import (
    EXPECTED,
    NOISE,
    SLOWER,
    SPEEDS,
    NewLab,
    broken,
    load,
    new_lab,
    times,
)
from tests.simulated.scenario import Scenario, Time

__all__ = ["new_lab"]


# ---------------------------------------------------------------- outcomes that are not ok

FAILURES = {
    "wrong": ("wrong", "check"),
    "unsupported": ("unsupported", "open"),
    "oom": ("oom", "open"),
    "missing": ("missing", "open"),
    "crash": ("crash_status", "open"),
}


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
        apart = status in {"unsupported", "missing"}  # on both sides: nobody's fault
        verdicts = [table[f"w/case={status}-{where}"] for where in ("target", "base", "both")]
        assert verdicts == ["broken", "unclear", "unclear" if apart else "broken"], status
        assert result.row(f"w/case={status}-base").reasons[0] == f"base_{status}"
        assert result.row(f"w/case={status}-both").reasons[0] == (status if apart else "both")
        assert result.status(f"w/case={status}-target", "target") == (status, "as planted")
        assert result.status(f"w/case={status}-target", "base")[0] == "ok"
        assert result.status(f"w/case={status}-base", "base") == (status, "as planted")
    assert result.code == 1
    assert not any(item.metrics for item in result.run.observations if item.status != "ok")


# ---------------------------------------------------------------- variants, peers, targets


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


def test_one_branch_alone(new_lab: NewLab) -> None:
    result = new_lab(SPEEDS).abprof("run", "main")
    assert result.code == 0
    assert result.run.comparisons == ()
    values = [item.metrics for item in result.run.observations]
    assert len(values) == 5
    assert all(metrics for metrics in values)


@pytest.mark.slow
def test_a_rerun_adds_fresh_epochs_and_replaces_nothing(new_lab: NewLab) -> None:
    lab = new_lab(SPEEDS)
    first = lab.abprof()
    assert first.folder
    before = (first.folder / "rounds.jsonl").read_bytes()
    again = lab.command("rerun", str(first.folder), "--only", "slower", "--repo", str(lab.repo.path))
    assert again.code == 1
    assert again.table() == EXPECTED
    assert {cell: again.row(cell).epochs for cell in ("w/case=slower", "w/case=same")} == {
        "w/case=slower": 8,
        "w/case=same": 4,
    }
    assert (first.folder / "rounds.jsonl").read_bytes().startswith(before)


@pytest.mark.slow
def test_a_rerun_with_another_build_is_refused(new_lab: NewLab) -> None:
    lab = new_lab(Scenario(workloads={"w": load(["slower"])}, times=times()))
    folder = lab.abprof().folder
    assert folder
    file = folder / "run.json"
    lab.repo.write({"abprof.toml": '[kernels.k]\nenv = {FLAG = "1"}\n'})
    before = file.read_bytes()
    again = lab.command("rerun", str(folder), "--repo", str(lab.repo.path))
    assert again.code == 2
    assert "is not the run's" in again.err
    assert file.read_bytes() == before


@pytest.mark.slow
def test_judging_again_from_the_rounds_gives_the_same_run(new_lab: NewLab) -> None:
    lab = new_lab(replace(SPEEDS, noise=[NOISE]))
    first = lab.abprof()
    assert first.folder
    again = lab.command("report", str(first.folder))
    assert again.code == 0
    assert (again.run.comparisons, again.run.observations) == (first.run.comparisons, first.run.observations)
    assert (again.run.header, again.run.controls) == (first.run.header, first.run.controls)
