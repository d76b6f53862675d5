"""Tools: short questions, programs in the foreground, programs with a log, and those that look on."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from abprof.system.processes.faults import WorkerDied, WorkerHung
from abprof.system.processes.strays import MARK, end_group, kill_strays, new_mark

_LOOKS_ON_WITHIN = 20.0  # seconds a tool may take until it looks on, and to end


def output(argv: Sequence[str], *, timeout: float = 10.0, env: Mapping[str, str] | None = None) -> str | None:
    """The standard output of a short question to a tool (a compiler's version), or None when it cannot be had."""
    try:
        done = subprocess.run(
            list(argv), capture_output=True, text=True, timeout=timeout, check=False, stdin=subprocess.DEVNULL, env=env
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def tried(argv: Sequence[str], *, timeout: float = 10.0) -> tuple[bool, str]:
    """Whether a tool does a short thing and ends with 0; with it the last line that it says of trouble."""
    try:
        done = subprocess.run(
            list(argv), capture_output=True, text=True, timeout=timeout, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return False, str(error)
    return done.returncode == 0, (done.stderr.strip().splitlines() or [""])[-1]


def foreground(argv: Sequence[str], *, env: Mapping[str, str], cwd: Path) -> int:
    """Run a child with this process's own input and output until it ends. Its exit code, negative for a signal.

    Raises WorkerDied when it cannot be started. Nothing goes on in this process meanwhile.
    """
    mark = new_mark()
    try:
        child = subprocess.Popen(list(argv), env={**env, MARK: mark}, cwd=cwd)
    except OSError as error:
        raise WorkerDied(f"{argv[0]} could not be started: {error.strerror}") from error
    try:
        return child.wait()
    finally:
        child.kill()
        kill_strays(mark)


def _tool(
    argv: Sequence[str], *, env: Mapping[str, str], cwd: Path | None, log: Path, mode: Literal["ab", "wb"]
) -> subprocess.Popen[bytes]:
    """A tool with nothing to read, in a session of its own, that prints to `log`. Raises WorkerDied."""
    try:
        with log.open(mode) as out:
            return subprocess.Popen(
                list(argv), env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
    except OSError as error:
        raise WorkerDied(f"{argv[0]} could not be started: {error.strerror}") from error


def logged(argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path, timeout: float) -> int:
    """Run a tool to its end with what it prints added to `log`. Its exit code, negative for a signal.

    Raises WorkerDied when it cannot be started, WorkerHung when it takes longer than `timeout` seconds.
    """
    mark = new_mark()
    child = _tool(argv, env={**env, MARK: mark}, cwd=cwd, log=log, mode="ab")
    try:
        return child.wait(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise WorkerHung(f"{Path(argv[0]).name} did not end in {timeout:.0f} s") from None
    finally:
        end_group(child, mark)


class Watching:
    """A tool that looks on while a block runs: it is started before, and told to end (SIGINT) after it.

    Entering raises WorkerDied when it cannot be started, or ends before `ready()`; `why` makes the reason of what it said.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        log: Path,
        ready: Callable[[], bool],
        why: Callable[[str], str],
    ) -> None:
        self._argv, self._env, self._log, self._ready, self._why = list(argv), env, log, ready, why
        self._mark = new_mark()

    def __enter__(self) -> None:
        self._child = _tool(self._argv, env={**self._env, MARK: self._mark}, cwd=None, log=self._log, mode="wb")
        end = time.monotonic() + _LOOKS_ON_WITHIN
        while not self._ready():
            if self._child.poll() is not None or time.monotonic() > end:
                end_group(self._child, self._mark)
                raise WorkerDied(self._why(self._log.read_text(errors="replace")))
            time.sleep(0.02)

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            self._child.send_signal(signal.SIGINT)
            self._child.wait(timeout=_LOOKS_ON_WITHIN)
        end_group(self._child, self._mark)
