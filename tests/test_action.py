"""action.yml, the GitHub Action: a runner without containers executes its `run` steps as they stand."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.simulated.lab import ROOT, Lab
from tests.simulated.scenario import Scenario, Time, Workload

CONTENT = yaml.safe_load((ROOT / "action.yml").read_text())


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    load = Workload(kernel="ffa", presets={"default": {"n": [1, 2]}})
    times = [Time(ns=20e6), Time(factor=1.3, cell="*n=2*", side="target")]
    return Lab(tmp_path_factory.mktemp("action"), Scenario(workloads={"dense": load}, times=times))


def value(expression: str, contexts: Any) -> Any:
    """Evaluate what our action.yml has: names of contexts, texts in quotes, `||`, `==`, `!=` and `always()`."""
    first, either, rest = expression.partition("||")
    if either:
        return value(first, contexts) or value(rest, contexts)
    if compared := re.fullmatch(r"(.*?)([!=]=)(.*)", expression):
        return (value(compared[1], contexts) == value(compared[3], contexts)) == (compared[2] == "==")
    word = expression.strip()
    if word == "always()" or word.startswith("'"):
        return word.strip("'")
    for name in word.split("."):
        contexts = contexts.get(name, "") if isinstance(contexts, dict) else ""
    return contexts


def text(template: str, contexts: Any) -> str:
    return re.sub(r"\$\{\{(.*?)\}\}", lambda found: str(value(found[1], contexts)), template)


def run(lab: Lab, folder: Path, github: dict[str, Any], **inputs: str) -> dict[str, str]:
    """Execute the steps in an empty workspace, and return the outputs. Stand-ins do what other people's actions do."""
    work, temp = folder / "workspace", folder / "temp"
    work.mkdir(parents=True)
    temp.mkdir()
    declared = {name: one["default"] for name, one in CONTENT["inputs"].items()}
    contexts = {"github": {"job": "kernels", "action_path": str(ROOT), **github}, "inputs": {**declared, **inputs},
                "strategy": {"job-index": 0}, "runner": {"temp": str(temp)}, "steps": {}}  # fmt: skip
    failed = False
    for number, step in enumerate(CONTENT["runs"]["steps"]):
        when = step.get("if", "always()")
        if not value(when, contexts) or (failed and step.get("if") != "always()"):
            continue
        given = {key: text(str(one), contexts) for key, one in (step.get("with") or step.get("env") or {}).items()}
        if step.get("uses", "").startswith("actions/checkout@"):
            assert (given["fetch-depth"], given["persist-credentials"]) == ("0", "False")
            for words in (("clone", "-q", str(lab.repo.path), "."), ("checkout", "-q", "--detach", given["ref"])):
                subprocess.run(["git", *words], cwd=work, check=True)
        elif "uses" in step:
            assert step["uses"].startswith("actions/upload-artifact@")
            shutil.copytree(given["path"], folder / given["name"])
        else:
            script, output = temp / f"{number}.sh", temp / f"{number}.out"
            script.write_text(step["run"])
            output.touch()
            files = {"GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(temp / "summary.md")}
            own = {"CI": "true", "RUNNER_TEMP": str(temp), "ABPROF_DEVICE": "simulated"}
            # pip builds with the hatchling, and finds the dependencies, that are here
            pip = {"PIP_NO_BUILD_ISOLATION": "false", "PIP_NO_DEPS": "true"}
            line = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", str(script)]
            env = os.environ | lab.environment() | pip | own | files | given
            failed |= subprocess.run(line, cwd=work, env=env, check=False).returncode != 0
            lines = output.read_text().splitlines()
            contexts["steps"][step.get("id")] = {"outputs": dict(line.split("=", 1) for line in lines)}
    made = {name: text(one["value"], contexts) for name, one in CONTENT["outputs"].items()}
    assert failed == (made["exit-code"] != "0"), "the step ends as abprof does"
    return made


@pytest.mark.slow
def test_a_pull_request_is_measured_with_what_the_action_installs(lab: Lab, tmp_path: Path) -> None:
    """abprof is built from the action's folder into an environment that has torch."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (site / "all.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    base, head = (lab.repo.git("rev-parse", name).strip() for name in ("main", "fast"))
    github = {"event": {"pull_request": {"head": {"sha": head}, "base": {"sha": base}}}, "sha": "f" * 40}
    python = str(tmp_path / "venv" / "bin" / "python")
    result = json.loads(run(lab, tmp_path, github, python=python, arguments="--only n=1 --epochs 4")["result"])
    assert [(row["cell"], row["verdict"]) for row in result["rows"]] == [("dense/n=1", "same")]
    assert (tmp_path / "temp" / "summary.md").read_text().startswith("**abprof: ")
    kept = json.loads((tmp_path / "abprof-kernels-0" / Path(result["run_dir"]).name / "run.json").read_text())
    assert [side["commit"] for side in kept["sides"]] == [base, head]
    assert (site / "abprof" / "_bundled" / "templates").is_dir()


@pytest.mark.slow
def test_a_push_is_compared_with_the_commit_before_and_a_slow_down_fails_the_step(lab: Lab, tmp_path: Path) -> None:
    own, sha = {"python": sys.executable, "abprof": "none"}, lab.repo.git("rev-parse", "fast").strip()
    made = run(lab, tmp_path / "a", {"sha": sha}, **own, arguments="--only dense/* --epochs 4 --fail-on slower")
    # 4, not 1: a slow-down may fail only a machine that passed a selfcheck, which simulated workers do not.
    assert made["exit-code"] == "4"
    assert [row["verdict"] for row in json.loads(made["result"])["rows"]] == ["slower", "same"]
    assert (tmp_path / "a" / "abprof-kernels-0").is_dir(), "the artifact of a failed step is kept, too"
    made = run(lab, tmp_path / "b", {"sha": "main"}, **own, base="no-such-ref")
    assert made["exit-code"] == "2"
    assert json.loads(made["result"])["error"]["what"] == "unknown ref 'no-such-ref'"


def test_linters_find_nothing_in_the_action_and_its_actions_are_pinned(tmp_path: Path) -> None:
    tools = Path(sys.executable).parent
    subprocess.run([tools / "zizmor", "--offline", "--no-progress", ROOT / "action.yml"], check=True)
    for step in CONTENT["runs"]["steps"]:
        assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", step.get("uses", "actions/run@" + "0" * 40))
        assert "${{" not in step.get("run", ""), "values travel as variables"
        (tmp_path / "script.sh").write_text("#!/bin/bash\n" + step.get("run", ""))
        subprocess.run([tools / "shellcheck", tmp_path / "script.sh"], check=True)
