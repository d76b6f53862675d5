"""The processes behind a wall (abprof/builds/sandbox.py), seen from outside it."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path


def inside(outer: int) -> tuple[int, ...]:
    """Process ids, as seen from here, of what bubblewrap `outer` has started: the first process of the new space, with which the
    kernel ends all others there, and the command. () or one where they are not there yet."""
    found: list[int] = []
    for _ in range(2):
        parent = found[-1] if found else outer
        try:
            children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        except OSError:
            break
        if not children:
            break
        found.append(int(children[0]))
    return tuple(found)


def await_end(pid: int, seconds: float) -> None:
    """Until the process has ended: an orphan that came to this process is reaped, others are left to who has them."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return
        if state in "ZX":
            return
        time.sleep(0.002)
