"""Without a pause, at the power limit: what is measured so, and what it may overrule (abprof/measure/sustained.py)."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from abprof.measure.sustained import most_cells
from abprof.records import POWER_CAP, SUSTAINED, Block, MachineState, Outcome, Status, Turn
from abprof.verdict.judge import power_bound
from tests.blocks import block, head, side
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
    result = new_lab(POWER).abprof("main", "fast", "--sustained", "always")
    agrees, turned, same = (result.row(f"w/case={name}") for name in ("agrees", "reversed", "same"))
    assert (agrees.verdict, agrees.sustained_pct) == ("slower", pytest.approx(15.0))
    assert (turned.verdict, turned.reasons) == ("unclear", ("power",))
    assert (turned.pct, turned.sustained_pct) == (pytest.approx(15.0), pytest.approx(-8.0))
    assert (same.verdict, same.sustained_pct) == ("same", pytest.approx(0.0))
    said = [warning for warning in result.run.warnings if warning.kind == "power"]
    assert [warning.cells for warning in said] == [("w/case=reversed",)]
    assert "+15.00 % of time in turns, -8.00 % without a pause" in said[0].text
    seen = {o.arm: o.metrics.get(SUSTAINED) for o in result.run.observations if o.cell == "w/case=agrees"}
    base, target = seen["base"], seen["target"]
    assert base is not None
    assert target is not None
    assert target.value / base.value == pytest.approx(1.15)


def test_what_is_not_power_bound_is_measured_in_turns_alone(new_lab: NewLab) -> None:
    result = new_lab(POWER).abprof("main", "fast")
    assert result.table() == {"w/case=agrees": "slower", "w/case=reversed": "slower", "w/case=same": "same"}
    assert all(row.sustained_pct is None for row in result.run.comparisons)


def test_slices_that_fail_leave_the_verdict_of_the_turns(new_lab: NewLab) -> None:
    late = [broken("crash_status", "agrees", verb="turn", epoch=epoch) for epoch in (5, 6, 7, 8)]
    result = new_lab(replace(POWER, faults=late)).abprof("main", "fast", "--sustained", "always")
    row = result.row("w/case=agrees")
    assert (row.verdict, row.sustained_pct) == ("slower", None)
    assert result.row("w/case=reversed").reasons == ("power",)


def capped(cell: str, ratio: float, *throttle: str) -> list[Block]:
    ratios = {"base": 1.0, "target": ratio}
    return [block(epoch, ratios, cell=cell, state=MachineState(throttle=throttle)) for epoch in range(1, 5)]


def test_power_bound_are_the_changed_cells_that_the_limit_held_back() -> None:
    blocks = [
        *capped("dense/n=0", 1.02, POWER_CAP),
        *capped("dense/n=1", 0.9, POWER_CAP, "hardware slowdown"),
        *capped("dense/n=2", 1.0, POWER_CAP),
        *capped("dense/n=3", 1.5),
    ]
    assert power_bound(head(4), blocks) == ("dense/n=1", "dense/n=0")


def wandering(epochs: int, *, status: Status = "ok") -> list[Block]:
    """At the power limit, each turn at a clock of its own, the target's 3 % lower: the same work at one clock."""
    chance, ratios, made = random.Random(3), {"base": 1.0, "target": 1.0}, []
    for epoch in range(1, epochs + 1):
        rows = []
        for _ in range(12):
            clocks = [chance.uniform(1400, 1800), 0.97 * chance.uniform(1400, 1800)]
            spans = [1.6e9 / mhz * chance.lognormvariate(0, 1e-4) for mhz in clocks]
            rows.append(tuple(Turn(i, 0, 1, spans[i], spans[i], 0.0, clocks[i]) for i in (0, 1)))
        whole = block(epoch, ratios, state=MachineState(throttle=(POWER_CAP,)))
        outcomes = {arm: Outcome(status=status) for arm in ratios}
        made.append(msgspec.structs.replace(whole, rounds=tuple(rows), outcomes=outcomes))
    return made


def test_clocks_that_wander_are_looked_into_only_where_the_code_differs_and_there_is_a_verdict() -> None:
    assert len(power_bound(head(), wandering(4))) == 1
    assert power_bound(head(), wandering(3)) == (), "no look has come"
    assert power_bound(head(), wandering(4, status="identical")) == ()


@pytest.mark.parametrize(("budget", "arms", "cells"), [(600.0, 2, 9), (600.0, 4, 4), (60.0, 2, 0)])
def test_slices_take_no_more_than_a_quarter_of_the_budget(budget: float, arms: int, cells: int) -> None:
    assert most_cells(budget, arms) == cells


def test_a_side_that_did_not_build_and_a_cell_that_is_left_out_have_no_slices(new_lab: NewLab) -> None:
    """Nor is the run lost: what failed is typed, and the rest has its verdicts."""
    two = {"w": load(["agrees", "same"], skips={"w/case=same": "too large"}), "other": load(["agrees"], kernel="j")}
    faults = [Fault(do="crash_status", verb="build", side="target", cell="*", text="no compiler")]
    scenario = Scenario(workloads=two, times=times(planted("agrees", 1.15)), faults=faults)
    result = new_lab(scenario).abprof("main", "fast", "--sustained", "always")
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
    result = new_lab(scenario).abprof("run", "main", "--sustained", "always")
    rows = {row.to: row for row in result.run.within}
    assert (rows["base:pipelined"].verdict, rows["base:pipelined"].reasons) == ("unclear", ("power",))
    assert rows["base:pipelined"].pct == pytest.approx(100 / 1.08 - 100)
    assert rows["base:pipelined"].sustained_pct == pytest.approx(130 / 1.08 - 100)
    assert rows["base:absent"].reasons == ("second_unsupported",)
    assert result.folder is not None
    lines = (result.folder / "rounds.jsonl").read_text().splitlines()
    assert {json.loads(line)["cell"] for line in lines if SUSTAINED in line} == {"w/case=a"}


def test_of_one_branch_those_are_power_bound_whose_variants_differ() -> None:
    run = head(2, variants=("ws", "pipelined"), sides=[side("base")])
    run = msgspec.structs.replace(
        run, workloads=(msgspec.structs.replace(run.workloads[0], ladder=("ws", "pipelined")),)
    )
    held = MachineState(throttle=(POWER_CAP,))
    blocks = [
        block(epoch, {"base:ws": 1.0, "base:pipelined": ratio}, cell=cell, state=held)
        for cell, ratio in (("dense/n=0", 1.0), ("dense/n=1", 0.9))
        for epoch in range(1, 5)
    ]
    assert power_bound(run, blocks) == ("dense/n=1",)


def test_slices_are_measured_once_in_a_run(new_lab: NewLab) -> None:
    lab = new_lab(POWER)
    first = lab.abprof("main", "fast", "--sustained", "always")
    assert first.folder is not None
    lines = (first.folder / "rounds.jsonl").read_text().count(f'"metric":"{SUSTAINED}"')
    again = lab.command("rerun", str(first.folder), "--only", "*case=agrees", "--repo", str(lab.repo.path))
    assert (first.folder / "rounds.jsonl").read_text().count(f'"metric":"{SUSTAINED}"') == lines == 12, again.err


def test_a_cpu_has_no_sustained_mode(tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "repo")
    repo.commit("First", {"a": "a"})
    command = [sys.executable, "-m", "abprof", "run", "HEAD", "--repo", str(repo.path), "--device", "cpu"]
    done = subprocess.run([*command, "--sustained", "always"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "the sustained mode times a GPU at its power limit" in done.stderr
