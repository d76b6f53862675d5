"""action.yml, the GitHub Action: its steps are executed as they stand, and linted."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import yaml

from tests.actions import Job
from tests.simulated.lab import ROOT, Lab
from tests.simulated.scenario import Scenario, Time, Workload

ACTION = ROOT / "action.yml"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    load = Workload(kernel="ffa", presets={"default": {"n": [1, 2]}})
    times = [Time(ns=20e6), Time(factor=1.3, cell="*n=2*", side="target")]
    return Lab(tmp_path_factory.mktemp("action"), Scenario(workloads={"dense": load}, times=times))


def job(lab: Lab, folder: Path, event: dict[str, object]) -> Job:
    """A job of this event in an empty workspace."""
    workspace, temp = folder / "workspace", folder / "temp"
    workspace.mkdir()
    temp.mkdir()

    def checkout(given: dict[str, str]) -> None:
        assert (given["fetch-depth"], given["persist-credentials"]) == ("0", "False")
        for words in (("clone", "-q", str(lab.repo.path), "."), ("checkout", "-q", "--detach", given["ref"])):
            subprocess.run(["git", *words], cwd=workspace, check=True)

    def upload(given: dict[str, str]) -> None:
        if Path(given["path"]).exists():
            shutil.copytree(given["path"], folder / given["name"])

    return Job(
        workspace,
        temp,
        {"github": {"job": "kernels", **event}, "strategy": {"job-index": 0}, "runner": {"temp": str(temp)}},
        # pip builds with the hatchling, and finds the dependencies, that are here
        {**lab.environment(), "ABPROF_DEVICE": "simulated", "PIP_NO_BUILD_ISOLATION": "false", "PIP_NO_DEPS": "true"},
        {"actions/checkout": checkout, "actions/upload-artifact": upload},
    )


@pytest.mark.slow
def test_a_pull_request_is_measured_with_what_the_action_installs(lab: Lab, tmp_path: Path) -> None:
    """abprof is built from the action's folder into an environment that has torch, but no abprof."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    python, site = (tmp_path / "venv" / part for part in ("bin/python", Path("lib") / f"python{sys.version[:4]}"))
    (site / "site-packages" / "all.pth").write_text(
        f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    )
    base, head = (lab.repo.git("rev-parse", name).strip() for name in ("main", "fast"))
    pull = {"event": {"pull_request": {"head": {"sha": head}, "base": {"sha": base}}}, "sha": "f" * 40}
    one = job(lab, tmp_path, pull)
    one.run(ACTION, python=str(python), arguments="--only n=1 --epochs 4")
    assert (one.failed, one.outputs["exit-code"]) == (False, "0"), one.log
    result = json.loads(one.outputs["result"])
    assert [(row["cell"], row["verdict"]) for row in result["rows"]] == [("dense/n=1", "same")]
    assert (tmp_path / "temp" / "summary.md").read_text().startswith("**abprof: ")
    folder = Path(result["run_dir"])
    kept = json.loads((tmp_path / "abprof-kernels-0" / folder.name / "run.json").read_text())
    assert [side["commit"] for side in kept["sides"]] == [base, head]
    assert (site / "site-packages" / "abprof" / "_bundled" / "templates").is_dir()
    assert (
        subprocess.run(["git", "status", "--porcelain"], cwd=one.workspace, capture_output=True, check=True).stdout
        == b""
    )


@pytest.mark.slow
def test_a_push_is_compared_with_the_commit_before_and_a_slow_down_fails_the_step(lab: Lab, tmp_path: Path) -> None:
    one = job(lab, tmp_path, {"event": {}, "sha": lab.repo.git("rev-parse", "fast").strip()})
    one.run(ACTION, python=sys.executable, abprof="none", arguments="--only dense/* --epochs 4 --fail-on slower")
    result = json.loads(one.outputs["result"])
    # A slow-down may fail only a machine that passed a selfcheck, which simulated workers do not.
    assert (one.failed, one.outputs["exit-code"], result["exit_code"]) == (True, "4", 4), one.log
    assert [row["verdict"] for row in result["rows"]] == ["slower", "same"]
    assert (tmp_path / "abprof-kernels-0").is_dir(), "the artifact is kept of a failed step, too"
    refused = tmp_path / "refused"
    refused.mkdir()
    other = job(lab, refused, {"event": {}, "sha": "main"})
    other.run(ACTION, python=sys.executable, abprof="none", base="no-such-ref")
    assert (other.failed, other.outputs["exit-code"]) == (True, "2")
    assert json.loads(other.outputs["result"])["error"]["what"] == "unknown ref 'no-such-ref'"


def test_linters_find_nothing_in_the_action(tmp_path: Path) -> None:
    tools = Path(sys.executable).parent
    done = subprocess.run(
        [tools / "zizmor", "--offline", "--no-progress", ACTION], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for step in yaml.safe_load(ACTION.read_text())["runs"]["steps"]:
        (tmp_path / "script.sh").write_text("#!/bin/bash\n" + step.get("run", ""))
        subprocess.run([tools / "shellcheck", tmp_path / "script.sh"], check=True)
