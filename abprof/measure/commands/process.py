"""One process of the command on one side: started in its worktree, read when it has ended."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from abprof.builds.sandbox import Wall
from abprof.measure.commands.readings import Readings, read
from abprof.records import Status
from abprof.system import processes as proc
from abprof.system.processes import WorkerDied, WorkerHung


@dataclass(frozen=True)
class Stand:
    """Where the command runs on one side, with everything filled in."""

    side: str  # a side's id
    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path  # the side's worktree
    own: Path  # of its caches and builds
    wall: Wall | None = None  # what it is started behind
    unbuilt: str = ""  # why its build failed

    def started(self, argv: Sequence[str], *, network: bool) -> tuple[Sequence[str], Mapping[str, str]]:
        """A command of this side and its environment; behind the wall it writes to its worktree and its own folder."""
        if self.wall is None:
            return argv, self.env
        return self.wall.around(argv, self.env, own=self.own, writable=[self.cwd], network=network)


@dataclass(frozen=True)
class Ended:
    """How one process ended. `status` is ok, crash, timeout or build_failed; `began` and `ended` are time.monotonic_ns()."""

    status: Status
    reason: str
    readings: Readings
    began: int
    ended: int

    @property
    def seconds(self) -> float:
        return (self.ended - self.began) / 1e9


def run(stand: Stand, heading: str, log: Path, timeout: float) -> Ended:
    """Run the command to its end. What goes wrong is an outcome, in one line; all that it said is in `log`."""
    if stand.unbuilt:
        now = time.monotonic_ns()
        return Ended("build_failed", stand.unbuilt, Readings({}), now, now)
    _note(log, f"== {heading}\n")
    out = log.with_suffix(".out")
    out.unlink(missing_ok=True)
    began = time.monotonic_ns()
    try:
        argv, env = stand.started(stand.argv, network=False)
        code, last = proc.printing(argv, env=env, cwd=stand.cwd, out=out, log=log, timeout=timeout)
        ended = time.monotonic_ns()
    except WorkerDied as died:
        status: Status = "timeout" if isinstance(died, WorkerHung) else "crash"
        return Ended(status, died.reason, Readings({}), began, time.monotonic_ns())
    finally:
        said = _said(out)
        _note(log, said)
        out.unlink(missing_ok=True)
    if stand.wall is not None and code > 128:  # how bubblewrap tells of a signal
        code = 128 - code
    if code:
        return Ended("crash", f"{_ended(code)}{f': {last}' if last else ''}", Readings({}), began, ended)
    try:
        if len(said.encode()) >= proc.LOG_LIMIT:  # bytes, as the log that cut it counts
            raise ValueError(f"it printed more than {proc.LOG_LIMIT >> 20} MiB")
        return Ended("ok", "", read(said), began, ended)
    except ValueError as error:
        return Ended("crash", str(error), Readings({}), began, ended)


def _ended(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    return f"killed by {signal.Signals(-code).name if -code in set(signal.Signals) else f'signal {-code}'}"


def _said(out: Path) -> str:
    try:
        return out.read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _note(log: Path, text: str) -> None:
    try:
        with log.open("a", encoding="utf-8", errors="replace") as file:
            file.write(text)
    except OSError:
        return  # a full disk is told by who writes results
