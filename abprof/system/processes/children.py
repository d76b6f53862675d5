"""Start child processes, kill them with all processes that they started, and log their output."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import signal
import subprocess
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

import psutil

from abprof.records.messages import MARK
from abprof.system import doorway

_PARENT_EVERY = 0.2  # seconds between checks whether the parent lives
_PR_SET_PDEATHSIG = 1
_ORDERLY = 20.0  # seconds between SIGTERM and SIGKILL
_PR_SET_CHILD_SUBREAPER = 36
LOG_LIMIT = 16 << 20  # bytes of a child's output to keep; further output is read and dropped


class WorkerDied(Exception):
    """The child ended, or its answer could not be read. `reason`: the cause in one line, for the user."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class WorkerHung(WorkerDied):
    """The child did not answer in time."""


class WorkerFault(Exception):
    """The child answered with a failure, and keeps running."""

    def __init__(self, status: str, reason: str, at: str = "") -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.at = at  # function and file of the workload that raised the failure; "" for other failures


def how_ended(code: int) -> str:
    """Return a text for an exit code (negative: a signal), such as `killed by SIGKILL` or `ended with exit code 1`."""
    if code >= 0:
        return f"ended with exit code {code}"
    return f"killed by {signal.Signals(-code).name}" if -code in set(signal.Signals) else f"killed by signal {-code}"


def new_mark() -> str:
    """Return a unique mark for a child: the mark of this process with a random part appended."""
    outer = os.environ.get(MARK, "")
    return f"{outer}/{os.getpid()}.{secrets.token_hex(8)}".lstrip("/")


def start(
    argv: Sequence[str], env: Mapping[str, str], *, cwd: Path | None = None, log: Path | None = None, **how: Any
) -> tuple[subprocess.Popen[bytes], str]:
    """Start a child in its own session, with a new mark and empty standard input. Return the child and its mark. The
    child's output is appended to `log`, if given. `how`: more arguments of Popen. Raises WorkerDied on failure."""
    mark = new_mark()
    how = {"stdin": subprocess.DEVNULL, "start_new_session": True, **how}
    try:
        with contextlib.ExitStack() as opened:
            if log is not None:
                file = opened.enter_context(doorway.appended(log))
                how = {"stdout": file, "stderr": file, **how}
            return subprocess.Popen(list(argv), env={**env, MARK: mark}, cwd=cwd, **how), mark
    except (OSError, ValueError) as error:  # ValueError: a NUL in an argument
        why = error.strerror if isinstance(error, OSError) else error
        raise WorkerDied(f"{argv[0]} could not be started: {why}") from error


def kill_strays(*marks: str) -> None:
    """Kill every process of this user whose mark begins with one of `marks`."""
    needles = tuple(f"{MARK}={mark}{end}".encode() for mark in marks for end in ("\0", "/"))
    for _ in range(5):
        found = False
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # the process ended, or belongs to another user
                variables = b"\0" + (folder / "environ").read_bytes() + b"\0"
                if any(b"\0" + needle in variables for needle in needles):
                    os.kill(int(folder.name), signal.SIGKILL)
                    found = True
        if not found:
            return


def end_tree(child: Any, mark: str) -> None:
    """Kill `child` (a Popen or Forked), its process group, its descendants, and every process with the child's `mark`."""
    # Kill descendants first: after the child's end they have another parent.
    own = _descendants(child.pid) if child.poll() is None else []
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)  # a child in the foreground has no group
    child.kill()
    _kill(own)
    kill_strays(mark)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(timeout=10)


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.Error:
        return []


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(processes, timeout=5)


def dies_with(parent: int) -> None:
    """Watch the parent process in a thread: once it is gone, end this process by SIGTERM, and then by SIGKILL."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)  # a stopped process must continue to end

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_EVERY)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_ORDERLY)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def no_orphans() -> Iterator[None]:
    """When the block ends, kill every process that was started in the block and still runs."""
    known = {process.pid for process in _descendants(os.getpid())}
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        _kill([process for process in _descendants(os.getpid()) if process.pid not in known])


@contextlib.contextmanager
def signals() -> Iterator[None]:
    """While the block runs, SIGTERM and SIGHUP raise KeyboardInterrupt, unless they were ignored before (nohup). Python
    has handlers in its main thread only: elsewhere nothing changes."""

    def stop(_number: int, _frame: types.FrameType | None) -> None:
        raise KeyboardInterrupt

    main = threading.current_thread() is threading.main_thread()
    handled = [n for n in (signal.SIGTERM, signal.SIGHUP) if main and signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Log:
    """Copies a child's output to a file, up to LOG_LIMIT bytes, and passes each line to `on_line`."""

    def __init__(self, path: Path, on_line: Callable[[str], None] | None = None) -> None:
        self.path = path
        self.on_line = on_line
        self.dropped = 0
        self.last_line = ""
        self._size = 0

    def drain(self, fd: int) -> None:
        """Copy all output from the descriptor `fd` to the log, until end of file. Ignores a full disk."""
        rest = b""
        with self._open() as out:
            self._size = out.tell()
            while chunk := os.read(fd, 1 << 16):
                self._keep(out, chunk)
                *lines, rest = (rest + chunk).split(b"\n")
                rest = rest[-4096:]
                for line in lines:
                    self._line(line)
        if rest:
            self._line(rest)

    def _open(self) -> FileIO:
        try:
            return doorway.appended(self.path)
        except OSError:  # unread output would block the child
            return open(os.devnull, "ab", buffering=0)

    def _keep(self, out: FileIO, chunk: bytes) -> None:
        room = max(0, LOG_LIMIT - self._size)
        self._size += len(chunk)
        with contextlib.suppress(OSError):  # a full disk must not stop the reading
            out.write(chunk[:room])
            if len(chunk) > room and not self.dropped:
                out.write(b"\n[abprof: more output than is kept; the rest was thrown away]\n")
        self.dropped += max(0, len(chunk) - room)

    def _line(self, raw: bytes) -> None:
        text = raw.decode(errors="replace").rstrip("\r")
        if text.strip():
            self.last_line = text[-400:]
        if self.on_line and not self.dropped:
            self.on_line(text)


def inside(outer: int) -> tuple[int, ...]:
    """Return the process ids of a sandbox's first process and of the command in it, or fewer if they have not started.
    `outer`: process id of bubblewrap, which starts both."""
    found = [outer]
    with contextlib.suppress(OSError, IndexError):
        for _ in range(2):
            found.append(int(Path(f"/proc/{found[-1]}/task/{found[-1]}/children").read_text().split()[0]))
    return tuple(found[1:])


def await_end(pid: int, seconds: float) -> None:
    """Wait up to `seconds` for a process to end. The process need not be a child of this one."""
    deadline = time.monotonic() + seconds
    with contextlib.suppress(psutil.NoSuchProcess):
        while time.monotonic() < deadline and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            time.sleep(0.002)
