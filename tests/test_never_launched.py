"""A call that launches nothing is no kernel's work: broken, however fast it is and however right its outputs are."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from abprof.measure.followup import NEVER_LAUNCHED
from tests import planted
from tests.gitrepo import make_repo
from tests.simulated.planted import NewLab, new_lab
from tests.simulated.scenario import Fault, Scenario, Time, Workload
from tests.tinyrepo import abprof

__all__ = ["new_lab"]

NOTHING = Fault("never_launched", "phases", side="target", cell="w/case=idle")


def scenario(*faults: Fault) -> Scenario:
    load = Workload(kernel="k", presets={"default": {"case": ["idle", "lazy", "busy"]}})
    times = [Time(ns=1e6), Time(factor=0.1, side="target", cell="w/case=idle")]
    return Scenario(workloads={"w": load}, times=times, faults=list(faults))


def test_ten_times_faster_is_broken_when_nothing_was_launched(new_lab: NewLab) -> None:
    """On the target; a base that launches nothing is no breakage of the target."""
    idle_base = dataclasses.replace(NOTHING, side="base", cell="w/case=lazy")
    result = new_lab(scenario(NOTHING, idle_base)).abprof()
    assert result.code == 1
    assert result.table() == {"w/case=idle": "broken", "w/case=lazy": "unclear", "w/case=busy": "same"}
    assert result.status("w/case=idle", "target") == ("wrong", NEVER_LAUNCHED)
    [seen] = [o for o in result.run.observations if (o.cell, o.arm) == ("w/case=idle", "target")]
    assert seen.metrics == {}, "a speed is never reported on it"


@pytest.mark.slow
def test_one_pass_that_saw_nothing_outweighs_the_epochs_that_did_not_look(new_lab: NewLab) -> None:
    """The pass follows the six epochs, as the seventh; no other says otherwise."""
    result = new_lab(scenario(dataclasses.replace(NOTHING, epoch=7))).abprof("main", "fast", "--epochs", "6")
    assert result.verdict("w/case=idle") == "broken"


@pytest.mark.gpu
@pytest.mark.alone
def test_a_kernel_that_remembers_its_answers_is_broken(tmp_path: Path) -> None:
    """On a GPU: the target returns its first result and launches nothing; its outputs stay right."""
    assert torch.cuda.is_available()
    repo = make_repo(tmp_path / "repo")
    files = planted.files() | {".gitignore": "runs/\n"}
    repo.commit("kernels", files)
    plain = files["kernels/planted/blocks.py"]
    launch = "    kernel[grid](*args, **options)\n"
    keeps = f"    if not hasattr(y, 'kept'):\n    {launch}    y.kept = True\n"
    assert launch in plain
    repo.branch("remembers")
    repo.commit("remembers", {"kernels/planted/blocks.py": plain.replace(launch, keeps)})
    done = abprof("main", "remembers", "--only", "part=blocks", "--no-peers", "--json", cwd=repo.path, home=tmp_path)
    rows = [row for row in done.run["comparisons"] if row["from"] == "base"]
    assert [row["verdict"] for row in rows] == ["broken"], json.dumps(rows)
    assert NEVER_LAUNCHED in [seen["reason"] for seen in done.run["observations"]]
