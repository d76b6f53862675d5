"""A command that is run for what it prints."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from abprof.system.processes.faults import WorkerDied, WorkerHung
from abprof.system.processes.log import Log
from abprof.system.processes.strays import MARK, end_group, new_mark


def printing(
    argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, out: Path, log: Path, timeout: float
) -> tuple[int, str]:
    """Run a command to its end: what it prints is added to `out`, its standard error to `log`, as much as a `Log` keeps.
    Its exit code, negative for a signal, and the last line that it said on standard error, or else at all.

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
        said = error.strerror if isinstance(error, OSError) else error
        raise WorkerDied(f"{argv[0]} could not be started: {said}") from error
