"""Tools and programs: short questions, programs with a log, programs that look on, and those that report as they run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from abprof.system.processes.children import (
    MARK,
    Log,
    WorkerDied,
    WorkerHung,
    end_group,
    end_tree,
    how_ended,
    kill_strays,
    new_mark,
)

_CHUNK = 1 << 20
_STOPPED = 30.0  # seconds that a program may be stopped (SIGSTOP): it may never go on
_LOOK = 1.0  # seconds between two looks, at most: what is more is time in which this process was stopped as well
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
    """A tool that looks on while a block runs: it starts before, and gets SIGINT after it.

    Entering raises WorkerDied when it cannot be started, or ends before `ready()`; `why` makes the reason from its log.
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


def printing(
    argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, out: Path, log: Path, timeout: float
) -> tuple[int, str]:
    """Run a command to its end: what it prints is added to `out`, its standard error to `log`, as much as a `Log` keeps.
    Its exit code, negative for a signal, and its last line on standard error, or else on standard output.

    Raises WorkerDied when it cannot be started, WorkerHung when it takes longer than `timeout` seconds.
    """
    mark = new_mark()
    child = _start(argv, {**env, MARK: mark}, cwd)
    heard = Log(out), Log(log)
    pipes = [pipe for pipe in (child.stdout, child.stderr) if pipe is not None]
    drains = [
        threading.Thread(target=each.drain, args=(pipe.fileno(),), daemon=True)
        for each, pipe in zip(heard, pipes, strict=True)
    ]
    try:
        for drain in drains:
            drain.start()
        code = child.wait(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise WorkerHung(f"no end in {timeout:g} s") from None
    finally:
        end_group(child, mark)  # what it left running holds the pipes, too
        for drain, pipe in zip(drains, pipes, strict=True):
            drain.join(timeout=10)
            if not drain.is_alive():
                pipe.close()
    return code, heard[1].last_line or heard[0].last_line


def _start(argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> subprocess.Popen[bytes]:
    """The child, with nothing to read, in a session of its own. Raises WorkerDied."""
    try:
        return subprocess.Popen(
            list(argv),
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:  # ValueError: a NUL in an argument
        why = error.strerror if isinstance(error, OSError) else error
        raise WorkerDied(f"{argv[0]} could not be started: {why}") from error


class Program:
    """Started at once, in a session of its own. Nothing of it outlives `end`."""

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], log: Path, listens: bool = False) -> None:
        """Its standard error goes to `log`; if it `listens`, `say` writes to its standard input. Raises WorkerDied when it
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
        return how_ended(code)

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
