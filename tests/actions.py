"""A runner of composite GitHub Actions without containers: it executes the `run` steps of an action.yml as they stand.

What other people's actions do is done by stand-ins, named by the action. Expressions are those that action.yml uses:
names of contexts, texts in quotes, `||`, `==`, `!=` and `always()`.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

Does = Callable[[dict[str, str]], None]  # a stand-in: takes the step's `with`


@dataclass
class Job:
    """One job in a workspace, in which an action runs. `failed`: a step has failed, and the rest is skipped."""

    workspace: Path
    temp: Path
    contexts: dict[str, Any]
    environment: Mapping[str, str]
    stand_ins: Mapping[str, Does]
    failed: bool = False
    log: list[str] = field(default_factory=list)
    outputs: dict[str, str] = field(default_factory=dict)

    def run(self, action: Path, **inputs: str) -> None:
        """Execute the steps of an action with these inputs, and read its outputs."""
        content = yaml.safe_load(action.read_text())
        declared = {name: one.get("default", "") for name, one in content["inputs"].items()}
        assert set(inputs) <= set(declared)
        github = {**self.contexts["github"], "action_path": str(action.parent)}
        self.contexts |= {"inputs": {**declared, **inputs}, "steps": {}, "github": github}
        assert content["runs"]["using"] == "composite"
        for number, step in enumerate(content["runs"]["steps"]):
            if self.value(step.get("if", f"!{self.failed}")):
                self._step(step, self.temp / f"step-{number}", action.parent)
        self.outputs = {name: self.text(one["value"]) for name, one in content["outputs"].items()}

    def _step(self, step: dict[str, Any], place: Path, action: Path) -> None:
        if "uses" in step:
            name, _, version = step["uses"].partition("@")
            assert re.fullmatch("[0-9a-f]{40}", version), "pinned"
            self.stand_ins[name]({key: self.text(str(value)) for key, value in step["with"].items()})
            return
        assert step["shell"] == "bash"
        assert "${{" not in step["run"], "values travel as variables"
        place.mkdir(parents=True)
        (place / "script.sh").write_text(step["run"])
        named = {"GITHUB_OUTPUT": str(place / "output"), "GITHUB_STEP_SUMMARY": str(self.temp / "summary.md")}
        own = {key: self.text(value) for key, value in step.get("env", {}).items()}
        always = {"CI": "true", "RUNNER_TEMP": str(self.temp), "GITHUB_ACTION_PATH": str(action)}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", str(place / "script.sh")],
            cwd=self.workspace,
            env={**os.environ, **self.environment, **always, **named, **own},
            capture_output=True,
            text=True,
            check=False,
        )
        self.log.append(f"{done.stdout}\n{done.stderr}")
        self.failed |= done.returncode != 0
        lines = (place / "output").read_text().splitlines() if (place / "output").exists() else []
        if "id" in step:
            self.contexts["steps"][step["id"]] = {"outputs": dict(line.split("=", 1) for line in lines)}

    def text(self, text: str) -> str:
        """Replace each ${{ expression }} in a text."""
        return re.sub(r"\$\{\{(.*?)\}\}", lambda found: str(self.value(found[1])), text)

    def value(self, expression: str) -> Any:
        """Evaluate an expression."""
        if "||" in expression:
            first, rest = expression.split("||", 1)
            return self.value(first) or self.value(rest)
        if compared := re.fullmatch(r"(.*?)([!=]=)(.*)", expression):
            return (self.value(compared[1]) == self.value(compared[3])) == (compared[2] == "==")
        word = expression.strip()
        if word in {"always()", "!False", "!True"}:
            return word != "!True"
        if word.startswith("'"):
            return word.strip("'")
        found: Any = self.contexts
        for name in word.split("."):
            found = found.get(name, "") if isinstance(found, dict) else ""
        return found
