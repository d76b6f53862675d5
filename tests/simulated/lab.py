"""A laboratory: a real git repository, a scenario, and the real `abprof` command run on them with simulated workers.

Everything but the workers is real: refs, worktrees, builds, processes, pipes, verdicts, files. The repository's
kernel packages and workloads are empty files, for the scenario says what they do.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from abprof.records import Comparison, Run
from tests.gitrepo import ENVIRONMENT, GitRepo, make_repo
from tests.simulated import warm
from tests.simulated.client import WORKER
from tests.simulated.processes import alive, noted, show, thread_states
from tests.simulated.scenario import Scenario

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 600.0


@dataclass(frozen=True)
class Result:
    """The result of one command."""

    code: int
    out: str
    err: str
    folder: Path | None  # the newest run folder, if there is one

    @property
    def run(self) -> Run:
        assert self.folder, f"no run folder; exit {self.code}: {self.err}"
        assert (self.folder / "run.json").exists(), f"no run.json in {self.folder}; exit {self.code}: {self.err}"
        return msgspec.json.decode((self.folder / "run.json").read_bytes(), type=Run)

    def verdict(self, cell: str, to: str = "target") -> str:
        """The verdict on the comparison of base with `to` in this cell."""
        return self.row(cell, to).verdict

    def row(self, cell: str, to: str = "target") -> Comparison:
        rows = [row for row in self.run.comparisons if row.cell == cell and row.to == to and "peer" not in row.from_]
        assert len(rows) == 1, (cell, to, self.run.comparisons)
        return rows[0]

    def table(self, to: str = "target") -> dict[str, str]:
        """cell -> verdict."""
        return {row.cell: row.verdict for row in self.run.comparisons if row.to == to and "peer" not in row.from_}

    def status(self, cell: str, arm: str) -> tuple[str, str]:
        """(status, reason) of an arm."""
        seen = [item for item in self.run.observations if (item.cell, item.arm) == (cell, arm)]
        assert len(seen) == 1, (cell, arm, self.run.observations)
        return seen[0].status, seen[0].reason


class Lab:
    """One repository with branches main and fast, abprof's folders, and the scenario of the next run."""

    worker = str(WORKER)  # a part of the command line of every worker and builder

    def __init__(self, folder: Path, scenario: Scenario) -> None:
        self.folder = folder
        self.repo = make_repo(folder / "repo")
        self.cache, self.state, self.runs = folder / "cache", folder / "state", folder / "runs"
        self.scenario = folder / "scenario.json"
        self.more: dict[str, str | None] = {}  # variables beside `environment`'s own; None: without it
        self.set(scenario)
        for load in scenario.workloads.values():
            self.repo.write({f"kernels/{load.kernel}/__init__.py": "WHO = 'main'\n"})
        self.repo.write({f"workloads/{name}.py": "# simulated\n" for name in scenario.workloads})
        self.repo.commit("First")
        self.repo.branch("fast")
        self.repo.commit("Faster", {f"kernels/{kernel}/__init__.py": "WHO = 'fast'\n" for kernel in self.kernels})
        self.repo.checkout("main")

    @property
    def kernels(self) -> list[str]:
        return list(dict.fromkeys(load.kernel for load in self.now.workloads.values()))

    def set(self, scenario: Scenario) -> None:
        """The scenario of the next run."""
        self.now = scenario
        scenario.write(self.scenario)

    def environment(self) -> dict[str, str]:
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        own = {
            **ENVIRONMENT,
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "ABPROF_WORKER": json.dumps([sys.executable, "-P", str(WORKER)]),
            "ABPROF_SIMULATED": str(self.scenario),
            "ABPROF_CACHE_DIR": str(self.cache),
            "ABPROF_STATE_DIR": str(self.state),
            "PYTHONPATH": f"{ROOT}:{Path(__file__).parent / 'site'}",
        }
        return {name: value for name, value in (own | self.more).items() if value is not None}

    def start(
        self, *args: str, program: Sequence[str] = ("-P", "-m", "abprof"), env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start `abprof ARGS --repo ... --device simulated` without waiting; `program`: the interpreter's arguments for it."""
        return subprocess.Popen(
            [sys.executable, *program, *self._placed(args)], env={**self.environment(), **(env or {})},
            cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip

    def _placed(self, args: Sequence[str]) -> list[str]:
        device = [] if "--device" in args else ["--device", "simulated"]
        places = [*device, "--runs-dir", str(self.runs)] if "--resume" not in args else []
        return [*args, "--repo", str(self.repo.path), *places]

    def abprof(self, *args: str, seconds: float = TIMEOUT) -> Result:
        """Run it to its end."""
        return self.command(*self._placed(args or ("main", "fast")), seconds=seconds)

    def command(self, *args: str, seconds: float = TIMEOUT) -> Result:
        """Another verb than run, which needs no repository. One that does not end in time fails the test."""
        done = warm.abprof(args, self.environment(), self.folder, seconds)
        return Result(done.code, done.out, done.err, self.newest())

    def finish(self, process: subprocess.Popen[str], seconds: float = TIMEOUT) -> Result:
        """Wait for an invocation. One that does not end in time fails the test, and is killed."""
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            threads = thread_states(process.pid)
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            raise AssertionError(f"abprof did not end in {seconds} s\n{threads}\n{out}\n{err}") from None
        words = process.args if isinstance(process.args, list) else [str(process.args)]
        show([str(word) for word in words[1:]], process.returncode, out, err)
        return Result(process.returncode, out, err, self.newest())

    def newest(self) -> Path | None:
        folders = sorted((p for p in self.runs.glob("*") if p.is_dir()), key=lambda p: p.stat().st_mtime)
        return folders[-1] if folders else None

    # ------------------------------------------------------------ nothing left behind

    def begun(self, process: subprocess.Popen[str]) -> int:
        """How many workers and builders have begun in this run, or in the one that it goes on with."""
        del process
        return len(noted(self.scenario, "worker"))

    def left_behind(self) -> list[str]:
        """Return leftovers of a run: living processes, worktrees, and entries in the user's .git."""
        left = [f"process {pid}" for pid in noted(self.scenario) if alive(pid, wait=60)]
        trees = self.cache / "worktrees"
        left += [str(path) for path in (trees.iterdir() if trees.exists() else []) if path.is_dir()]
        left += [str(p) for p in (self.repo.path / ".git" / "worktrees").glob("*")]
        return left

    def fingerprint(self) -> dict[str, str]:
        """path -> type, mode and content of everything in the user's repository, .git included."""
        return {str(p.relative_to(self.repo.path)): _print(p) for p in sorted(self.repo.path.rglob("*"))}


def _print(path: Path) -> str:
    facts = path.lstat()
    content = str(path.readlink()) if path.is_symlink() else ""
    if path.is_file() and not path.is_symlink():
        content = hashlib.sha256(path.read_bytes()).hexdigest()
    return f"{facts.st_mode:o} {content}"


def loose(result: Result) -> dict[str, Any]:
    """Standard output as the JSON object it must be."""
    message = json.loads(result.out)
    assert isinstance(message, dict)
    return message


__all__ = ["ROOT", "GitRepo", "Lab", "Result", "loose"]
