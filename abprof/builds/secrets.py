"""Secrets of this process's environment, kept from code under test that runs as the same user.

What a worker is not given it can still read in its parent: /proc/PID/environ shows the memory in which a process was handed its
variables, whatever it did with them later, and /proc/PID/mem all of it. So the values there are wiped once they are read, and
the kernel is told that nobody but root may look into this process (no core dumps and no debugger either, then).
A process that started this one, a shell or a timer, keeps its own copy.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Collection, Iterable
from pathlib import Path

from abprof.builds import environment

_PR_SET_DUMPABLE = 4
_ENV_START = 49  # place of env_start in /proc/PID/stat, from 0; env_end follows (proc_pid_stat(5))


def withheld(allow: Iterable[str] = ()) -> None:
    """Wipe what looks like a secret, as workers are not given it either. This process, and git, still have it."""
    wipe(environment.clean(os.environ, "user", allow)[1])


def wipe(names: Collection[str]) -> None:
    """Zeros in the place of these variables' values where /proc/PID/environ shows them. Nothing on a system without it."""
    with contextlib.suppress(OSError, AttributeError, ValueError, IndexError):
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
        stat = Path("/proc/self/stat").read_text()
        fields = ["", "", *stat.rpartition(")")[2].split()]
        start, end = int(fields[_ENV_START]), int(fields[_ENV_START + 1])
        if not 0 < start < end:
            return
        known = {os.fsencode(name) for name in names}
        place = start
        for entry in ctypes.string_at(start, end - start).split(b"\0"):
            name, _, value = entry.partition(b"=")
            if value and name in known:
                ctypes.memset(place + len(name) + 1, 0, len(value))
            place += len(entry) + 1
