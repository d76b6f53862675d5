"""Going on with a run: its workers are set up as they were, whatever the rerun's own surroundings."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from abprof.builds.worker_factory import command
from abprof.measure import continued
from abprof.records import SEED_METRIC
from abprof.store import runfolder
from abprof.system.console import View
from tests import runs
from tests.simulated.lab import Lab
from tests.simulated.planted import SPEEDS, load
from tests.simulated.scenario import Fault, Scenario

TWO = replace(SPEEDS, workloads={"w": load(["slower", "same"])})
OPTIONS = ("--env", "clean", "--autotune", "each-epoch", "--protocol", "seed", "--workloads-from", "target")
LIMITS = ("--timeout", "5s", "--build-timeout", "2m")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """abprof's own folders, for what is called in this process."""
    for name in ("CACHE", "STATE"):
        monkeypatch.setenv(f"ABPROF_{name}_DIR", str(tmp_path / name.lower()))
    return tmp_path


@pytest.mark.slow
def test_a_rerun_is_set_up_as_the_run_was(tmp_path: Path) -> None:
    """Without --autotune the rerun's builds would have other keys; without --workloads-from another judge."""
    lab = Lab(tmp_path, TWO)
    lab.repo.checkout("fast")
    lab.repo.commit("Another judge", {"workloads/w.py": "# simulated, and stricter\n"})
    lab.repo.checkout("main")
    first = lab.abprof("main", "fast", *OPTIONS, *LIMITS)
    assert first.folder
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
    asked = [block for block in added if block.metric != SEED_METRIC and "target" in block.outcomes]
    reasons = {block.outcomes["target"].reason for block in asked}  # in two epochs: a third time it is not asked
    assert reasons == {"no answer for 5 s"}
    assert again.run.options == setup


def test_a_rerun_leaves_what_was_timed_as_others_do(tmp_path: Path) -> None:
    """It adds epochs; only where the run has no reading, as when it was interrupted before, one is made."""
    lab = Lab(tmp_path, TWO)
    first = lab.abprof("main", "fast", "--quick", "--protocol", "seed")
    assert first.folder
    rounds = first.folder / "rounds.jsonl"
    lines = rounds.read_bytes().splitlines(keepends=True)
    [lost] = [line for line in lines if SEED_METRIC.encode() in line and b"w/case=same" in line]
    rounds.write_bytes(b"".join(line for line in lines if line != lost))
    before = runfolder.read(first.folder)[1]
    [kept] = [block for block in before if block.metric == SEED_METRIC]
    again = lab.command("rerun", str(first.folder), "--repo", str(lab.repo.path))
    assert again.code == 1, again.err
    added = list(runfolder.blocks(first.folder, []))[len(before) :]
    assert {block.cell for block in added if block.metric != SEED_METRIC} == {"w/case=slower", "w/case=same"}
    assert [block.cell for block in added if block.metric == SEED_METRIC] == ["w/case=same"]
    run, _, _ = runfolder.read(first.folder)
    shown = {seen.arm: seen.metrics for seen in run.observations if seen.cell == kept.cell}
    assert {arm: shown[arm][SEED_METRIC].value for arm in kept.arms} == {
        kept.arms[turn.arm]: turn.value for turn in kept.rounds[0]
    }
    assert "Timed as others do" in (first.folder / "report.md").read_text()


def test_the_interpreters_and_the_protocol_are_those_of_the_run(here: Path) -> None:
    lab = Lab(here, TWO)
    folder = lab.abprof("main", "fast", "--quick").folder
    assert folder
    run, _, _ = runfolder.read(folder)
    python = {"base": sys.executable, "target": str(here / "venv" / "bin" / "python")}
    (here / "venv" / "bin").mkdir(parents=True)
    Path(python["target"]).symlink_to(sys.executable)
    run = runs.changed(
        run,
        options=runs.changed(
            run.options,
            python=python,
            env="clean",
            autotune="each-epoch",
            workloads_from="base",
            timeout=7.0,
            protocol="seed",
        ),
    )
    place = continued.same_place(run, str(lab.repo.path), lab.runs, 60.0, View(quiet=True))
    assert {side: command(place.options, side, place.cache)[0] for side in python} == python
    config = place.options
    assert (config.env, config.autotune, config.protocol, config.timeout) == ("clean", "each-epoch", "seed", 7.0)
    assert config.workloads_from == "base"


def test_an_interpreter_is_found_from_where_the_command_was_given(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker starts in another folder."""
    lab = Lab(here, Scenario(workloads={"w": load(["same"])}))
    folder = lab.abprof("main", "fast", "--quick").folder
    assert folder
    run, _, _ = runfolder.read(folder)
    (here / "python").symlink_to(sys.executable)
    monkeypatch.chdir(here)
    run = msgspec.structs.replace(run, options=runs.changed(run.options, python={"": "./python"}))
    place = continued.same_place(run, str(lab.repo.path), lab.runs, 60.0, View(quiet=True))
    assert command(place.options, "base", place.cache)[0] == str(here / "python")


def test_a_rerun_whose_builds_are_others_says_in_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(tmp_path, Scenario(workloads={"w": load(["same"])}))
    folder = lab.abprof("main", "fast", "--quick").folder
    assert folder
    again = ("rerun", str(folder), "--repo", str(lab.repo.path))
    monkeypatch.setattr(lab, "environment", lambda: {**Lab.environment(lab), "RMS_UNROLL": "8"})
    said = lab.command(*again)
    assert said.code == 2
    assert said.err.splitlines()[-1] == (
        "abprof: side base: the build of k is not the run's (other than then: variable RMS_UNROLL) "
        "(make it as it was, or start a new run)"
    )
    run, _, _ = runfolder.read(folder)
    for build in run.builds:
        (lab.cache / "builds" / build.key / "made_of.json").unlink()
    assert "(sources, toolchain or environment differ)" in lab.command(*again).err
