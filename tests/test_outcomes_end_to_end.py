"""Whole runs whose arms are not ok, or are many: outcomes, variants, peers, targets, parts of a run and reruns."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulated.lab import Result
from tests.simulated.planted import (
    EXPECTED,
    FASTER,
    NOISE,
    SLOWER,
    SPEEDS,
    NewLab,
    broken,
    load,
    new_lab,
    planted,
    times,
)
from tests.simulated.scenario import Fault, Scenario, Time

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


@pytest.mark.slow
def test_a_wrong_answer_is_shown_only_when_asked_for(new_lab: NewLab) -> None:
    scenario = Scenario(
        workloads={"w": load(["a"])},
        times=times(planted("a", FASTER)),
        faults=[broken("wrong", "a", "target", "check")],
    )
    result = new_lab(scenario).abprof("main", "fast", "--allow-wrong")
    assert result.table() == {"w/case=a": "broken"}
    assert result.status("w/case=a", "target")[0] == "wrong"
    assert {warning.kind for warning in result.run.warnings} >= {"wrong_shown"}
    assert result.code == 1


@pytest.mark.slow
def test_skipped_cells_are_unsupported_on_every_arm(new_lab: NewLab) -> None:
    scenario = Scenario(
        workloads={"w": load(["a", "b"], skips={"*case=a": "too large for this device"})}, times=times()
    )
    result = new_lab(scenario).abprof()
    assert result.table() == {"w/case=a": "unclear", "w/case=b": "same"}
    assert result.status("w/case=a", "base") == ("unsupported", "too large for this device")
    assert result.code == 0
    assert result.run.header is not None
    assert result.run.header.counts["unsupported"] == 1


def test_nothing_measured_exits_2(new_lab: NewLab) -> None:
    scenario = Scenario(workloads={"w": load(["a"], skips={"*": "not here"})}, times=times())
    result = new_lab(scenario).abprof()
    assert result.code == 2
    assert result.run.builds == (), "nothing is built that nothing is measured with"


@pytest.mark.slow
def test_every_cell_broken_on_base_is_not_a_pass(new_lab: NewLab) -> None:
    scenario = Scenario(workloads={"w": load(["a", "b"])}, times=times(), faults=[Fault("oom", "open", side="base")])
    result = new_lab(scenario).abprof()
    assert set(result.table().values()) == {"unclear"}
    assert result.code != 0


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


@pytest.mark.slow
def test_variants_are_found_at_build_time_when_the_workload_names_none(new_lab: NewLab) -> None:
    scenario = Scenario(workloads={"w": load(["a"])}, times=times(), variants={"*": ["x", "y"]})
    result = new_lab(scenario).abprof()
    assert {row.to for row in result.run.comparisons} == {"target:x", "target:y"}
    assert {row.verdict for row in result.run.comparisons} == {"same"}


@pytest.mark.slow
def test_peers(new_lab: NewLab) -> None:
    """A peer twice as slow as both sides; it never decides the exit code."""
    scenario = Scenario(workloads={"w": load(["a"], peers=["lib"])}, times=times(Time(factor=2.0, arm="peer:lib")))
    result = new_lab(scenario).abprof()
    rows = {(row.from_, row.to): row for row in result.run.comparisons}
    for side in ("base", "target"):
        assert rows["peer:lib", side].pct == pytest.approx(-50)
    assert rows["base", "target"].verdict == "same"
    assert result.code == 0


@pytest.mark.slow
def test_a_broken_peer_is_nobodys_fault(new_lab: NewLab) -> None:
    scenario = Scenario(
        workloads={"w": load(["a"], peers=["lib"])},
        times=times(),
        faults=[Fault("oom", "open", arm="peer:lib")],
    )
    result = new_lab(scenario).abprof()
    assert result.verdict("w/case=a") == "same"
    assert result.status("w/case=a", "peer:lib")[0] == "oom"
    assert result.code == 0


@pytest.mark.slow
def test_several_targets(new_lab: NewLab) -> None:
    lab = new_lab(Scenario(workloads={"w": load(["a"])}, times=times(Time(factor=SLOWER, side="target2"))))
    lab.repo.git("checkout", "--quiet", "-b", "slow", "fast")
    lab.repo.commit("Slower", {"kernels/k/__init__.py": "WHO = 'slow'\n"})
    result = lab.abprof("main", "fast", "slow")
    assert (result.verdict("w/case=a", "target"), result.verdict("w/case=a", "target2")) == ("same", "slower")
    assert result.code == 1


def test_one_branch_alone(new_lab: NewLab) -> None:
    result = new_lab(SPEEDS).abprof("run", "main")
    assert result.code == 0
    assert result.run.comparisons == ()
    values = [item.metrics for item in result.run.observations]
    assert len(values) == 5
    assert all(metrics for metrics in values)


def rows_of(result: Result) -> int:
    return len(result.run.comparisons)


@pytest.mark.slow
def test_only_and_set(new_lab: NewLab) -> None:
    lab = new_lab(SPEEDS)
    assert lab.abprof("main", "fast", "--only", "case=slower,same").table() == {
        "w/case=slower": "slower",
        "w/case=same": "same",
    }
    assert rows_of(lab.abprof("main", "fast", "--set", "case=slower")) == 1


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
def test_a_rerun_of_a_quick_run_gives_verdicts_and_ends_with_the_planned_epochs(new_lab: NewLab) -> None:
    lab = new_lab(Scenario(workloads={"w": load(["slower"])}, times=[*times(), Time(factor=1.2, side="target")]))
    first = lab.abprof("main", "fast", "--quick")
    assert first.folder
    assert first.row("w/case=slower").verdict != "slower"
    command = ("rerun", str(first.folder), "--repo", str(lab.repo.path))
    for epochs in (4, 8, 12, 16):
        again = lab.command(*command)
        assert (again.row("w/case=slower").verdict, again.row("w/case=slower").epochs) == ("slower", epochs)
        assert "next planned look" not in again.err
    again = lab.command(*command)
    assert again.row("w/case=slower").epochs == 16
    assert "1 of 1 cells: the epochs added do not reach the next planned look" in again.err
    for _ in range(3):
        lab.command(*command)
    rounds = (first.folder / "rounds.jsonl").read_bytes()
    done = lab.command(*command)
    assert "nothing to measure: all 32 planned epochs are there" in done.err
    assert done.code == 1
    assert (first.folder / "rounds.jsonl").read_bytes() == rounds


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
