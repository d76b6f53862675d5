"""Sustained runs, without pauses and at the power limit: their cells, and verdicts that they overrule."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from abprof.records import SUSTAINED
from tests.gitrepo import make_repo
from tests.simulated.planted import NewLab, broken, load, new_lab, planted, times
from tests.simulated.scenario import Fault, Scenario, Time

__all__ = ["new_lab"]

POWER = Scenario(
    workloads={"w": load(["agrees", "reversed", "same"])},
    times=times(
        planted("agrees", 1.15),
        planted("reversed", 1.15),
        Time(factor=0.8, cell="*case=reversed", side="target", timer="sustained"),
    ),
)


def test_a_change_that_is_reversed_at_the_power_limit_is_no_answer(new_lab: NewLab) -> None:
    result = new_lab(POWER).abprof("main", "fast", "--sustained")
    agrees, turned, same = (result.row(f"w/case={name}") for name in ("agrees", "reversed", "same"))
    assert (agrees.verdict, agrees.sustained_pct) == ("slower", pytest.approx(15.0))
    assert (turned.verdict, turned.reasons) == ("unclear", ("power",))
    assert (turned.pct, turned.sustained_pct) == (pytest.approx(15.0), pytest.approx(-8.0))
    assert (same.verdict, same.sustained_pct) == ("same", pytest.approx(0.0))
    said = [warning for warning in result.run.warnings if warning.kind == "power"]
    assert [warning.cells for warning in said] == [("w/case=reversed",)]
    assert "15.00 % slower in turns, 8.00 % faster without a pause" in said[0].text
    seen = {o.arm: o.metrics.get(SUSTAINED) for o in result.run.observations if o.cell == "w/case=agrees"}
    base, target = seen["base"], seen["target"]
    assert base is not None
    assert target is not None
    assert target.value / base.value == pytest.approx(1.15)


def test_without_the_option_cells_are_measured_in_turns_alone(new_lab: NewLab) -> None:
    result = new_lab(POWER).abprof("main", "fast")
    assert result.table() == {"w/case=agrees": "slower", "w/case=reversed": "slower", "w/case=same": "same"}
    assert all(row.sustained_pct is None for row in result.run.comparisons)


def test_slices_that_fail_leave_the_verdict_of_the_turns(new_lab: NewLab) -> None:
    late = [broken("crash_status", "agrees", verb="turn", epoch=epoch) for epoch in (5, 6, 7, 8)]
    result = new_lab(replace(POWER, faults=late)).abprof("main", "fast", "--sustained")
    row = result.row("w/case=agrees")
    assert (row.verdict, row.sustained_pct) == ("slower", None)
    assert result.row("w/case=reversed").reasons == ("power",)


def test_a_side_that_did_not_build_and_a_cell_that_is_left_out_have_no_slices(new_lab: NewLab) -> None:
    """The run continues: the failure has a status, and the other cells have verdicts."""
    two = {"w": load(["agrees", "same"], skips={"w/case=same": "too large"}), "other": load(["agrees"], kernel="j")}
    faults = [Fault(do="crash_status", verb="build", side="target", cell="*", text="no compiler")]
    scenario = Scenario(workloads=two, times=times(planted("agrees", 1.15)), faults=faults)
    result = new_lab(scenario).abprof("main", "fast", "--sustained")
    assert "Traceback" not in result.err
    assert result.code == 1, "broken on the target"
    assert {result.status(f"{name}/case=agrees", "target")[0] for name in two} == {"build_failed"}
    assert all(row.sustained_pct is None for row in result.run.comparisons)


@pytest.mark.slow
def test_one_branchs_variants_have_slices_too_and_one_that_does_not_run_costs_the_others_nothing(
    new_lab: NewLab,
) -> None:
    """The pipelined variant wins turn by turn and loses at the power limit: that is no answer. `absent` cannot run here."""
    steps = ["ws", "pipelined", "absent"]
    scenario = Scenario(
        workloads={"w": load(["a"], variants=steps, ladder=steps[:2]), "plain": load(["a"], kernel="j")},
        times=times(Time(factor=1 / 1.08, arm="pipelined"), Time(factor=1.3, arm="pipelined", timer="sustained")),
        faults=[Fault("unsupported", "open", arm="absent")],
    )
    result = new_lab(scenario).abprof("run", "main", "--sustained")
    rows = {row.to: row for row in result.run.within}
    assert (rows["base:pipelined"].verdict, rows["base:pipelined"].reasons) == ("unclear", ("power",))
    assert rows["base:pipelined"].pct == pytest.approx(100 / 1.08 - 100)
    assert rows["base:pipelined"].sustained_pct == pytest.approx(130 / 1.08 - 100)
    assert rows["base:absent"].reasons == ("second_unsupported",)
    assert result.folder is not None
    lines = (result.folder / "rounds.jsonl").read_text().splitlines()
    assert {json.loads(line)["cell"] for line in lines if SUSTAINED in line} == {"w/case=a"}


def test_slices_are_measured_once_in_a_run(new_lab: NewLab) -> None:
    lab = new_lab(POWER)
    first = lab.abprof("main", "fast", "--sustained")
    assert first.folder is not None
    lines = (first.folder / "rounds.jsonl").read_text().count(f'"metric":"{SUSTAINED}"')
    again = lab.command("rerun", str(first.folder), "--only", "*case=agrees", "--repo", str(lab.repo.path))
    assert (first.folder / "rounds.jsonl").read_text().count(f'"metric":"{SUSTAINED}"') == lines == 12, again.err


def test_a_cpu_has_no_sustained_mode(tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "repo")
    repo.commit("First", {"a": "a"})
    command = [sys.executable, "-m", "abprof", "run", "HEAD", "--repo", str(repo.path), "--device", "cpu"]
    done = subprocess.run([*command, "--sustained"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "the sustained mode times a GPU at its power limit" in done.stderr
