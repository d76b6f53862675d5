"""Whatever a child forks dies with it: it is found by a mark in its environment, or because it came to this process."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

MARK = "ABPROF_CHILD"  # environment variable: whose descendant a process is
_PARENT_EVERY = 0.2  # seconds between looks whether the parent lives
_PR_SET_PDEATHSIG = 1
_ORDERLY = 20.0  # seconds for an orderly end
_PR_SET_CHILD_SUBREAPER = 36


def new_mark() -> str:
    """A mark that no other child bears. Within a child it begins with that one's, so that it is the outer one's too."""
    outer = os.environ.get(MARK, "")
    return f"{outer}/{os.getpid()}.{secrets.token_hex(8)}".lstrip("/")


def kill_strays(mark: str) -> None:
    """Kill every process of this user whose environment bears the mark, or one within it; again while there are any: they may
    fork."""
    needle = f"{MARK}={mark}".encode()
    for _ in range(5):
        found = False
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it ended, or is another user's
                if any(_bears(entry, needle) for entry in (folder / "environ").read_bytes().split(b"\0")):
                    os.kill(int(folder.name), signal.SIGKILL)
                    found = True
        if not found:
            return


def _bears(entry: bytes, needle: bytes) -> bool:
    return entry == needle or entry.startswith(needle + b"/")


def end_tree(child: subprocess.Popen[bytes], mark: str) -> None:
    """Kill a child that starts others in sessions of their own, with all of them."""
    own = _descendants(child.pid)  # before it is gone: then they are somebody else's
    end_group(child, mark)
    _kill(own)
    kill_strays(mark)
    psutil.wait_procs(own, timeout=5)


def end_group(child: subprocess.Popen[bytes], mark: str) -> None:
    """Kill a child that leads a process group, with the group and whatever left it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    kill_strays(mark)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(timeout=10)


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.Error:
        return []


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()


def dies_with(parent: int) -> None:
    """This process ends in an orderly way (SIGTERM) once process `parent`, which started it, is gone, however that ended; and
    is killed if it does not within some seconds. One that was stopped goes on for that."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_EVERY)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_ORDERLY)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def no_orphans() -> Iterator[None]:
    """At the end of the block nothing that was started in it lives on: orphans come to this process, and are killed."""
    known = {process.pid for process in _descendants(os.getpid())}
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        left = [process for process in _descendants(os.getpid()) if process.pid not in known]
        _kill(left)
        psutil.wait_procs(left, timeout=5)
