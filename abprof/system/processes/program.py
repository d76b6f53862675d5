"""A child that tells news on its standard output, a line each, while others are listened to as well."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from abprof.system.processes.faults import WorkerDied
from abprof.system.processes.strays import MARK, end_tree, new_mark

_CHUNK = 1 << 20
_STOPPED = 30.0  # seconds that a program may be stopped (SIGSTOP): nobody says whether it will ever go on
_LOOK = 1.0  # seconds between two looks, at most: what is more is time in which this process was stopped as well


class Program:
    """Started at once, in a session of its own. Nothing of it outlives `end`."""

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], log: Path, listens: bool = False) -> None:
        """What it says on standard error goes to `log`. One that `listens` is told more by `say`. Raises WorkerDied when it
        cannot be started."""
        self._mark = new_mark()
        self._buffer = b""
        self._open = True
        self._stopped, self._looked = 0.0, time.monotonic()
        try:
            with log.open("ab") as errors:
                self._child = subprocess.Popen(
                    list(argv),
                    env={**env, MARK: self._mark},
                    stdin=subprocess.PIPE if listens else subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    start_new_session=True,
                )
        except OSError as error:
            raise WorkerDied(f"{argv[0]} could not be started: {error.strerror}") from error
        assert self._child.stdout
        os.set_blocking(self._child.stdout.fileno(), False)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._child.pid

    def fileno(self) -> int:
        """Of its standard output, to wait for."""
        assert self._child.stdout
        return self._child.stdout.fileno()

    def lines(self) -> list[bytes]:
        """Whole lines that have come since, without waiting. What is torn at the end is dropped."""
        while self._open:
            try:
                chunk = os.read(self.fileno(), _CHUNK)
            except BlockingIOError:
                break
            self._open = bool(chunk)
            self._buffer += chunk
        *whole, self._buffer = self._buffer.split(b"\n")
        return whole

    @property
    def gone(self) -> str | None:
        """How it ended, once it did; None while it lives. A process that it left holds its output open, so that says nothing.
        One that was stopped for long is given up: `end` ends it."""
        code = self._child.poll()
        if code is None:
            return f"stopped for {_STOPPED:.0f} s" if self._stopped_for() > _STOPPED else None
        if code < 0:
            return f"killed by {signal.Signals(-code).name}" if -code in set(signal.Signals) else f"signal {-code}"
        return f"ended with exit code {code}"

    def _stopped_for(self) -> float:
        """Seconds of looking at a stopped process in a row."""
        passed, self._looked = min(time.monotonic() - self._looked, _LOOK), time.monotonic()
        try:
            stat = Path(f"/proc/{self._child.pid}/stat").read_text()
        except OSError:
            return 0.0
        stopped = stat.rpartition(")")[2].split()[0] == "T"
        self._stopped = self._stopped + passed if stopped else 0.0
        return self._stopped

    @property
    def killed(self) -> bool:
        """Whether a signal ended it: then it put nothing away."""
        return (self._child.poll() or 0) < 0

    def say(self, line: bytes) -> None:
        """A line to its standard input. One that is gone does not hear it."""
        assert self._child.stdin
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.write(line + b"\n")
            self._child.stdin.flush()

    def ask_to_end(self) -> None:
        """SIGTERM: it puts away what it has begun."""
        with contextlib.suppress(ProcessLookupError):
            self._child.terminate()

    def end(self, grace: float = 0.0) -> None:
        """Wait so long for its end, then kill it with all that it started. Safe to call twice."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(timeout=grace)
        end_tree(self._child, self._mark)
        for pipe in (self._child.stdout, self._child.stdin):
            if pipe:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
