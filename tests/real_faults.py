"""Faults at random with real torch workers and a C kernel, on a CPU: what a round's number stands for, played, and which of the
promises (tests/simulated/promises.py) it broke. Times are real, so that no verdict is known beforehand: what is asked is
that all is there once, rests on complete evidence, and that nothing stays.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.simulated import promises
from tests.simulated.campaign import finished, grew, kept_rounds
from tests.simulated.lab import Lab, Result
from tests.simulated.trouble import TROUBLES, Moment
from tests.tinyrepo import PACKAGE, source, tiny_repo

CELLS = ("tiny/n=4096", "tiny/n=8192")
_LIMIT = "30s"  # of a call and of a build: torch's import, on a crowded machine, takes a part of it
_COMMAND = ("main", "fast", "--preset", "two", "--no-peers", "--threshold", "15", "--margin", "15", "--epochs", "4",
            "--timeout", _LIMIT, "--build-timeout", _LIMIT)  # fmt: skip
_LONGEST = 900.0  # seconds that a run of a round may take: all of its time limits together are fewer
_MOST_WORKERS = 14  # that an undisturbed round begins, about
ENDS = ("SIGKILL", "child SIGKILL", "child SIGSEGV", "child SIGSTOP", "child memory", "SIGKILL", "memory", "SIGINT",
        "disk full", "SIGTERM", "disk filled", "read-only", "stopped", "none", "spoilt cache")  # fmt: skip
_DEEDS = {
    "crash": "ctypes.string_at(0)",
    "kill": "os.kill(os.getpid(), signal.SIGKILL)",
    "stop": "os.kill(os.getpid(), signal.SIGSTOP)",
    "exit": "os._exit(3)",
    "hang": "time.sleep(3600)",
    "raise": "raise RuntimeError('planted')",
    "eat": "eat()",
    "fork": "leave()",
}
# What chance decides is the process's number: no process knows what others did.
_PLANTED = """
import resource, signal, time

def eat():
    mine = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mine + (256 << 20),) * 2)
    kept = []
    while True:
        kept.append(torch.ones(1 << 22))

def leave():
    if not os.fork():
        time.sleep(600)
        os._exit(0)

calls = 0
def strike():
    if os.getpid() %% %(chance)d == 0:
        %(deed)s

whole_double, whole_build = double, build

def double(x):
    global calls
    calls += 1
    if calls == %(call)d:
        strike()
    return whole_double(x)

def build(*, verbose):
    if %(in_build)s:
        strike()
    whole_build(verbose=verbose)
"""


@dataclass(frozen=True)
class Planted:
    """What one side's kernel does: at its call of that number in a process (0: while it is built), in one process of `chance`."""

    side: str
    deed: str
    call: int
    chance: int

    @property
    def code(self) -> str:
        """Of the kernel package."""
        what = {"chance": self.chance, "deed": _DEEDS[self.deed], "call": self.call, "in_build": self.call == 0}
        return PACKAGE + _PLANTED % what


@dataclass(frozen=True)
class RealRound:
    """What a number stands for."""

    number: int
    planted: Planted | None
    end: str  # of TROUBLES
    moment: Moment
    again: Moment | None = None  # when it is killed once more while it goes on

    @property
    def told(self) -> str:
        """In a line, for a report."""
        what = "no fault"
        if made := self.planted:
            where = f"call {made.call}" if made.call else "build"
            what = f"{made.deed} at {where} of {made.side}, one process in {made.chance}"
        return f"{what}; {self.end}"


def drawn(number: int) -> RealRound:
    """The round of that number: always the same one, but for what processes are numbered and how fast the machine is."""
    rng = random.Random(f"real {number}")
    planted = None
    if rng.random() < 0.5:
        deed = rng.choice(sorted(_DEEDS))
        planted = Planted(
            rng.choice(("base", "target")), deed, rng.choice((0, 1, 2, 3, 20, 200)), rng.choice((1, 2, 4))
        )
    end = ENDS[number % len(ENDS)]
    again = _moment(rng) if end == "SIGKILL" and rng.random() < 0.5 else None
    return RealRound(number, planted, end, _moment(rng), again)


def _moment(rng: random.Random) -> Moment:
    return Moment(rng.randrange(_MOST_WORKERS), rng.uniform(0, 3))


class RealLab(Lab):
    """A laboratory with real workers: branches main and fast of a tiny C kernel, of which one may have something planted."""

    def __init__(self, folder: Path, planted: Planted | None) -> None:
        self.folder = folder
        self.repo = tiny_repo(folder / "repo")
        self.cache, self.state, self.runs = folder / "cache", folder / "state", folder / "runs"
        self.scenario = folder / "none"
        self.worker = str(self.cache / "harness")
        if planted and planted.side == "base":
            self.repo.commit("planted", {"kernels/tiny/__init__.py": planted.code})
        self.repo.branch("fast")
        files = {"kernels/tiny/tiny.c": source(90)}
        if planted:
            files["kernels/tiny/__init__.py"] = planted.code if planted.side == "target" else PACKAGE
        self.repo.commit("faster", files)
        self.repo.checkout("main")
        self._seen: dict[int, set[int]] = {}  # process of abprof -> workers of its

    def environment(self) -> dict[str, str]:
        return {name: value for name, value in super().environment().items() if not name.startswith("ABPROF_")} | {
            "ABPROF_CACHE_DIR": str(self.cache),
            "ABPROF_STATE_DIR": str(self.state),
        }

    def _placed(self, args: Sequence[str]) -> list[str]:
        return super()._placed(args if "--resume" in args else (*args, "--device", "cpu"))

    def begun(self, process: subprocess.Popen[str]) -> int:
        """How many were seen in this run: /proc is looked through."""
        seen = self._seen.setdefault(process.pid, set())
        try:
            seen |= {child.pid for child in psutil.Process(process.pid).children(recursive=True) if self._works(child)}
        except psutil.Error:
            pass
        return len(seen)

    def _works(self, process: psutil.Process) -> bool:
        try:
            return any(word.startswith(self.worker) for word in process.cmdline())
        except psutil.Error:
            return False

    def command(self, *args: str, seconds: float = _LONGEST) -> Result:
        return super().command(*args, seconds=max(seconds, _LONGEST))

    def finish(self, process: subprocess.Popen[str], seconds: float = _LONGEST) -> Result:
        return super().finish(process, max(seconds, _LONGEST))


def play(round_: RealRound, folder: Path) -> list[str]:
    """Play the round in a fresh laboratory. The promises that were broken, each in a line. Raises CannotPlay."""
    lab = RealLab(folder, round_.planted)
    return promises.of_a_round(lab, _played(lab, round_), f"real round {round_.number}: {round_.told}")


def _played(lab: RealLab, round_: RealRound) -> Iterator[str]:
    try:
        result = TROUBLES[round_.end](lab, _COMMAND, round_.moment, random.Random(round_.number))
        died = result.code < 0 and round_.end in ("SIGKILL", "SIGTERM", "SIGINT")
        if round_.end == "memory":  # none was left to say so in
            died = result.code not in promises.CODES and "Traceback" not in result.err
        if not died:
            yield from promises.of_a_record(result, CELLS)
        if died or (result.code in (2, 130) and not finished(result)):
            yield from _goes_on(lab, round_)
    except AssertionError as endless:
        yield " | ".join(str(endless).splitlines())


def _goes_on(lab: RealLab, round_: RealRound) -> Iterator[str]:
    """What was interrupted is continued, with what is planted in its kernel: once more killed, or to its end."""
    for again in (round_.again, None) if round_.again else (None,):
        kept = kept_rounds(lab)
        result = _resumed(lab, again)
        yield from (f"then: {line}" for line in grew(lab, kept))
        if result.code >= 0 or not again:
            yield from (f"then: {line}" for line in promises.of_a_record(result, CELLS))
    if not finished(result) or (round_.planted is None and result.code not in (0, 1, 4)):
        yield f"then: exit code {result.code}, and the run has not come to its end: {result.err[-300:]}"


def _resumed(lab: RealLab, kill: Moment | None) -> Result:
    folder = lab.newest()
    begun = folder is not None and (folder / "run.json").exists()
    command = ("run", "--resume", str(folder)) if begun else _COMMAND
    if kill is None:
        return lab.abprof(*command)
    return TROUBLES["SIGKILL"](lab, command, kill, random.Random(0))
