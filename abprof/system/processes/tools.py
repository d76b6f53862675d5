"""Run other programs: for their output, in the foreground, with a log, or in the background."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from abprof.system import doorway
from abprof.system.processes.children import LOG_LIMIT, WorkerDied, WorkerHung, end_tree, how_ended, start

_READY_WITHIN = 20.0  # seconds that a tool may take to become ready, and to end


def tried(
    argv: Sequence[str], *, timeout: float = 10.0, env: Mapping[str, str] | None = None, cwd: str | None = None
) -> tuple[bool, str]:
    """Run a short command. Return (True, standard output), or on failure (False, last line of standard error)."""
    try:
        done = subprocess.run(list(argv), capture_output=True, text=True, timeout=timeout, check=False,
                              stdin=subprocess.DEVNULL, env=env, cwd=cwd)  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return False, str(error)
    return done.returncode == 0, (done.stderr.strip().splitlines() or [""])[-1] if done.returncode else done.stdout


def output(
    argv: Sequence[str], *, timeout: float = 10.0, env: Mapping[str, str] | None = None, cwd: str | None = None
) -> str | None:
    """Return the standard output of a short command, such as a compiler's --version; None if the command fails."""
    answered, text = tried(argv, timeout=timeout, env=env, cwd=cwd)
    return text if answered else None


def output_lines(argv: Sequence[str], *, timeout: float, env: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines that a tool prints as it prints them, because all of them may not fit into memory.

    Raises WorkerDied if the tool cannot start or fails, WorkerHung after `timeout` seconds.
    """
    name = Path(argv[0]).name
    child, mark = start(argv, env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace")
    late, end = threading.Timer(timeout, end_tree, (child, mark)), time.monotonic() + timeout
    late.start()
    printed: Any = child.stdout
    try:
        with printed:
            yield from printed
        code = child.wait()
        if code and time.monotonic() >= end:
            raise WorkerHung(f"{name} took more than {timeout:g} s")
        if code:
            raise WorkerDied(f"{name} {how_ended(code)}")
    finally:
        late.cancel()
        end_tree(child, mark)


def cuda_tool(name: str, env: Mapping[str, str] = os.environ) -> str:
    """Find a CUDA toolkit program on PATH, in $CUDA_HOME or /usr/local/cuda. Return its path, or "" if not found."""
    folders = env.get("PATH", os.defpath), f"{env.get('CUDA_HOME') or '/usr/local/cuda'}/bin"
    return shutil.which(name, path=os.pathsep.join(folders)) or ""


def foreground(argv: Sequence[str], *, env: Mapping[str, str], cwd: Path) -> int:
    """Run a child on this process's standard input and output. Return the child's exit code (negative: a signal).
    Raises WorkerDied if the child cannot be started."""
    child, mark = start(argv, env, cwd=cwd, stdin=None, start_new_session=False)
    try:
        return child.wait()
    finally:
        end_tree(child, mark)


def logged(
    argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path, timeout: float, out: IO[bytes] | None = None
) -> int:
    """Run a tool, append its output to `log`, and return its exit code (negative: a signal). `out`: file for standard
    output. Raises WorkerDied if the tool cannot start, WorkerHung after `timeout` seconds."""
    child, mark = start(argv, env, cwd=cwd, log=log, **({"stdout": out} if out else {}))
    try:
        return child.wait(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise WorkerHung(f"no end in {timeout:g} s") from None
    finally:
        end_tree(child, mark)


@contextlib.contextmanager
def watching(
    argv: Sequence[str], *, env: Mapping[str, str], log: Path, ready: Callable[[], bool], why: Callable[[str], str]
) -> Iterator[None]:
    """Run a tool, such as a sampling profiler, during the block, and stop the tool by SIGINT when the block ends. The
    block begins when `ready()` is true. If the tool never gets ready, raises WorkerDied with `why(text of the log)`."""
    log.unlink(missing_ok=True)
    child, mark = start(argv, env, log=log)
    try:
        end = time.monotonic() + _READY_WITHIN
        while not ready():
            if child.poll() is not None or time.monotonic() > end:
                raise WorkerDied(why(doorway.tail(log, LOG_LIMIT).decode(errors="replace")))
            time.sleep(0.02)
        yield
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            child.send_signal(signal.SIGINT)
            child.wait(timeout=_READY_WITHIN)
    finally:
        end_tree(child, mark)


@contextlib.contextmanager
def guarded(argv: Sequence[str], env: Mapping[str, str]) -> Iterator[None]:
    """Run the block beside a process that cleans up once its standard input ends, after the block or this process.
    Raises WorkerDied if the process ends before it prints `ready`."""
    child = subprocess.Popen(
        argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    with child:  # closes the pipes and waits
        last = b""
        for line in child.stdout or ():
            if line == b"ready\n":
                break
            last = line
        else:
            raise WorkerDied(last.decode(errors="replace").strip() or how_ended(child.wait()))
        yield


class Program:
    """A background program, whose output is appended to `log`. `end` kills the program and its processes."""

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], log: Path) -> None:
        self._child, self._mark = start(argv, env, log=log)

    @property
    def gone(self) -> str | None:
        """Return how the program ended; None while the program runs."""
        code = self._child.poll()
        return None if code is None else how_ended(code)

    def end(self, grace: float = 0.0) -> None:
        """Wait up to `grace` seconds for the program to end, then kill its processes. Safe to call twice."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(timeout=grace)
        end_tree(self._child, self._mark)
