"""A continued run sets up its workers as before, in any environment of the rerun."""

from dataclasses import replace
from pathlib import Path

import pytest

from abprof.store import runfolder
from abprof.verdict import stats
from tests.simulated.lab import Lab
from tests.simulated.planted import SPEEDS, load
from tests.simulated.scenario import Fault, Scenario

TWO = replace(SPEEDS, workloads={"w": load(["slower", "same"])})
OPTIONS = ("--env", "clean", "--autotune", "each-epoch", "--workloads-from", "target")
LIMITS = ("--timeout", "5s", "--build-timeout", "2m")


def test_a_rerun_adds_fresh_epochs_and_replaces_nothing(tmp_path: Path) -> None:
    lab = Lab(tmp_path, TWO)
    first = lab.abprof("main", "fast", "--quick", "--margin", "1.5")
    assert first.table() == dict.fromkeys(("w/case=slower", "w/case=same"), "unclear"), "one epoch"
    before, again = (
        (first.folder / "rounds.jsonl").read_bytes(),
        ("rerun", str(first.folder), "--repo", str(lab.repo.path)),
    )
    refused = lab.command(*again, "--only", "faster")
    assert (refused.code, "no cell has the verdict faster" in refused.err) == (2, True)
    done = lab.command(*again, "--only", "unclear")
    assert done.table() == {"w/case=slower": "slower", "w/case=same": "same"}
    assert (first.folder / "rounds.jsonl").read_bytes().startswith(before)
    blocks = runfolder.read(first.folder)[1]
    epochs = [block.epoch for block in blocks if block.rounds and block.cell == "w/case=slower"]
    assert len(epochs) == len(set(epochs)) > 4
    assert done.row("w/case=slower").epochs == stats.last_look(len(epochs))
    assert {build.side: build.cached for build in done.run.builds} == {
        "base": True, "target": True, "control": False,
    }, "the quick epoch had no control"  # fmt: skip


@pytest.mark.slow
def test_a_rerun_is_set_up_as_the_run_was(tmp_path: Path) -> None:
    """Without --autotune the rerun's builds would have other keys; without --workloads-from another judge."""
    lab = Lab(tmp_path, TWO)
    lab.repo.checkout("fast")
    lab.repo.commit("Another judge", {"workloads/w.py": "# simulated, and stricter\n"})
    lab.repo.checkout("main")
    first = lab.abprof("main", "fast", *OPTIONS, *LIMITS)
    setup = first.run.options
    assert (setup.env, setup.autotune, setup.workloads_from) == ("clean", "each-epoch", "target")
    assert (setup.timeout, setup.build_timeout, set(setup.python)) == (5.0, 120.0, {"base", "target"})
    before = runfolder.read(first.folder)[1]
    lab.set(replace(TWO, faults=[Fault("hang", "turn", cell="*slower*", side="target")]))
    again = lab.command("rerun", str(first.folder), "--only", "slower", "--repo", str(lab.repo.path))
    assert again.code == 1, again.err
    after = runfolder.read(first.folder)[1]
    added = after[len(before) :]
    assert {block.cell for block in added} == {"w/case=slower"}
    asked = [block for block in added if "target" in block.outcomes]
    reasons = {block.outcomes["target"].reason for block in asked}  # in two epochs: a third time it is not asked
    assert reasons == {"no answer for 5 s"}
    assert again.run.options == setup


def test_a_rerun_whose_builds_are_others_says_in_what(tmp_path: Path) -> None:
    lab = Lab(tmp_path, Scenario(workloads={"w": load(["same"])}))
    folder = lab.abprof("main", "fast", "--quick").folder
    again = ("rerun", str(folder), "--repo", str(lab.repo.path))
    lab.more = {"RMS_UNROLL": "8"}
    said = lab.command(*again)
    assert said.code == 2
    assert said.err.splitlines()[-1] == (
        "abprof: side base: the build of k is not the run's (other than then: variable RMS_UNROLL) "
        "(make it as it was, or start a new run)"
    )
    run, _, _ = runfolder.read(folder)
    for build in run.builds:
        (lab.cache / "builds" / build.key / "published.json").unlink()
    assert "(sources, toolchain or environment differ)" in lab.command(*again).err
