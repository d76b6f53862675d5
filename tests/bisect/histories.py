"""Real repositories of which each commit's speed is known, for bisections on simulated workers."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.gitrepo import ENVIRONMENT
from tests.simulated.lab import Lab, Result, loose
from tests.simulated.planted import LONG, NOISE, load
from tests.simulated.scenario import Scenario, Time

SCENARIO = Scenario(workloads={"w": load(["a"])}, times=[Time(ns=LONG)], noise=[NOISE])
KERNEL = "kernels/k/simulated.json"


class Story:
    """Commits written by git's fast-import, on branch story: sixty of them take no longer than one."""

    def __init__(self, folder: Path, scenario: Scenario = SCENARIO) -> None:
        self.lab = Lab(folder, scenario)
        self.count = 0
        self.began = int(self.lab.repo.git("show", "-s", "--format=%ct", "main"))  # commits are not older than parents
        self.stream: list[bytes] = []
        self.hashes: dict[int, str] = {}

    def commit(self, *parents: int, message: str = "", **own: Any) -> int:
        """A commit after `parents`, by number (none: after main). Its package's file says `own` of itself: `factor` of all
        times or `factors` by cell, how its `build` fails, `content` (without it: as no other commit); with nothing the commit
        leaves the package alone."""
        self.count += 1
        first, *others = [f":{parent}" for parent in parents] or ["refs/heads/main^0"]
        when = f"committer A <a@example.org> {self.began + self.count} +0000"
        self._say("commit refs/heads/story", f"mark :{self.count}", when)
        self._data(message or f"Commit {self.count}")
        self._say(f"from {first}", *(f"merge {other}" for other in others))
        if own:
            factor = own.pop("factor", None)
            own |= {} if factor is None else {"factors": {"*": factor}}
            self._file(KERNEL, json.dumps({"content": self.count, **own}))
        else:
            self._file("NEWS", f"{self.count}\n")
        return self.count

    def line(self, factors: list[float], after: int = 0, broken: frozenset[int] = frozenset()) -> list[int]:
        """Commits one after the other, with these factors of the package's time; those of `broken` (from 0) do not build."""
        made: list[int] = []
        for place, factor in enumerate(factors):
            own: dict[str, Any] = {"factor": factor} | ({"build": "no such header"} if place in broken else {})
            last = made[-1] if made else after
            made.append(self.commit(*([last] if last else []), **own))
        return made

    def written(self) -> Story:
        """Write all commits; branch `story` is at the last."""
        marks = self.lab.folder / "marks"
        command = ["git", "fast-import", "--quiet", "--force", f"--export-marks={marks}"]
        environment = {"PATH": os.environ["PATH"], **ENVIRONMENT}
        subprocess.run(command, cwd=self.lab.repo.path, env=environment, input=b"".join(self.stream), check=True)
        self.hashes = {int(mark[1:]): commit for mark, commit in map(str.split, marks.read_text().splitlines())}
        return self

    def bisect(self, good: int, bad: int, *options: str) -> Result:
        return self.lab.abprof("bisect", self.hashes[good], self.hashes[bad], *options)

    def culprits(self, result: Result) -> list[int]:
        """Their numbers, of a bisection with --json."""
        numbers = {commit: number for number, commit in self.hashes.items()}
        return [numbers[commit] for commit in loose(result)["culprits"]]

    def _say(self, *lines: str) -> None:
        self.stream += [f"{line}\n".encode() for line in lines]

    def _data(self, text: str) -> None:
        self.stream.append(b"data %d\n%b\n" % (len(text.encode()), text.encode()))

    def _file(self, name: str, text: str) -> None:
        self._say(f"M 100644 inline {name}")
        self._data(text)
