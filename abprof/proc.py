"""The one doorway to child processes: workers, builders, and nothing else starts one.

Every child leads its own process group (one in the foreground shares its parent's terminal) and bears a mark in its
environment, so that whatever it forks dies with it, also what has left the group. That it dies with its parent, also
when that one is killed with -9, it sees to itself (abprof/worker/main.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import psutil

from abprof import wire

MARK = "ABPROF_CHILD"  # environment variable: whose descendant a process is
ALIVE_EVERY = 0.2  # seconds between looks whether a silent child still lives
READ_REQUEST = 30.0  # seconds a child may take to read a request
_PR_SET_CHILD_SUBREAPER = 36
_LOOKS_ON_WITHIN = 20.0  # seconds a tool may take until it looks on, and to end
LOG_LIMIT = 16 << 20  # bytes of one child's output that are kept; the rest is counted, read and thrown away
REPLY_LIMIT = 64 << 20


class WorkerDied(Exception):
    """The child ended, or its answer could not be read. `reason` is one line for a person."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class WorkerHung(WorkerDied):
    """The child did not answer in time."""


class WorkerFault(Exception):
    """The child answered that it could not do it, and lives on."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class Log:
    """Keeps a child's output whole up to LOG_LIMIT bytes, and hands each line on as it comes."""

    def __init__(self, path: Path, on_line: Callable[[str], None] | None = None) -> None:
        self.path = path
        self.on_line = on_line
        self.dropped = 0
        self.last_line = ""
        self._size = 0

    def drain(self, fd: int) -> None:
        """Read `fd` until it closes. Runs in a thread of its own; never raises for a full disk."""
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

    def _open(self) -> Any:
        """The log, or nowhere: where it cannot be opened the child's output is still read, or it would die of it."""
        try:
            return open(self.path, "ab", buffering=0)
        except OSError:
            return open(os.devnull, "ab", buffering=0)

    def _keep(self, out: Any, chunk: bytes) -> None:
        room = max(0, LOG_LIMIT - self._size)
        if room:
            with contextlib.suppress(OSError):  # a full disk must not stop the reading: the child would block on it
                out.write(chunk[:room])
        self._size += len(chunk)
        if len(chunk) > room and not self.dropped:
            with contextlib.suppress(OSError):
                out.write(b"\n[abprof: more output than is kept; the rest was thrown away]\n")
        self.dropped += max(0, len(chunk) - room)

    def _line(self, raw: bytes) -> None:
        text = raw.decode(errors="replace").rstrip("\r")
        if text.strip():
            self.last_line = text[-400:]
        if self.on_line and not self.dropped:
            self.on_line(text)


class Worker:
    """A child that speaks abprof/wire.py. One request at a time; `call` blocks until its reply."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        log: Path,
        name: str,
        on_line: Callable[[str], None] | None = None,
    ) -> None:
        self.name = name
        self.log = Log(log, on_line)
        self._argv, self._env, self._cwd = tuple(argv), dict(env), cwd
        self._launch()

    def restart(self) -> None:
        """A new process in the place of this one, which is killed if it lives. Raises WorkerDied."""
        self.kill()
        self._launch()

    def _launch(self) -> None:
        self._next = 0
        self._buffer = bytearray()
        self._mark = f"{os.getpid()}.{secrets.token_hex(8)}"
        to_child, self._out = os.pipe()
        self._in, from_child = os.pipe()
        stdout_read, stdout_write = os.pipe()
        os.set_blocking(self._out, False)  # a child that stopped reading must not stop its parent
        try:
            self._child = subprocess.Popen(
                [*self._argv, "--in", str(to_child), "--out", str(from_child)],
                env={**self._env, MARK: self._mark},
                cwd=self._cwd,
                stdin=subprocess.DEVNULL,
                stdout=stdout_write,
                stderr=stdout_write,
                pass_fds=(to_child, from_child),
                start_new_session=True,
            )
        except OSError as error:
            for fd in (self._out, self._in, stdout_read):
                os.close(fd)
            self._in = self._out = -1
            raise WorkerDied(f"{self._argv[0]} could not be started: {error.strerror}") from error
        finally:
            for fd in (to_child, from_child, stdout_write):
                os.close(fd)
        self._drainer = threading.Thread(target=self._drain, args=(stdout_read,), daemon=True)
        self._drainer.start()

    def _drain(self, fd: int) -> None:
        try:
            self.log.drain(fd)
        finally:
            os.close(fd)

    @property
    def pid(self) -> int:
        """The child's process id, which is its process group's too."""
        return self._child.pid

    @property
    def alive(self) -> bool:
        """Whether it can still be asked."""
        return self._out >= 0 and self._child.poll() is None

    def call(self, request: Any, timeout: float) -> Any:
        """Send one request record and return its reply record.

        Raises WorkerFault (the worker lives on), WorkerHung or WorkerDied (it is killed).
        """
        self.send(request)
        return self.receive(request, timeout)

    def send(self, request: Any) -> None:
        """Send without waiting, so that several workers can start up, open or check at the same time."""
        if self._out < 0:
            raise WorkerDied("has ended")
        self._next += 1
        message = wire.dump({"id": self._next, "do": wire.NAMES[type(request)], "args": wire.pack(request)})
        try:
            self._write(message)
        except OSError as error:
            raise self._died() from error

    def _write(self, message: bytes) -> None:
        view, deadline = memoryview(message), time.monotonic() + READ_REQUEST
        while view:
            if not select.select([], [self._out], [], max(0.0, deadline - time.monotonic()))[1]:
                self.kill()
                raise WorkerHung(f"did not read its request for {READ_REQUEST:.0f} s")
            with contextlib.suppress(BlockingIOError):
                view = view[os.write(self._out, view) :]

    def receive(self, request: Any, timeout: float) -> Any:
        """The reply to the last request sent."""
        try:
            message = wire.load(self._read_line(timeout))
            if message.get("id") != self._next:
                raise ValueError(f"answer to request {message.get('id')}, expected {self._next}")
            if "fault" in message:
                fault = wire.unpack(wire.Fault, message["fault"])
                raise WorkerFault(fault.status, fault.reason)
            return wire.unpack(wire.VERBS[wire.NAMES[type(request)]][1], message["reply"])
        except (ValueError, TypeError, KeyError) as error:
            self.kill()
            raise WorkerDied(f"unreadable answer: {error}") from error

    def _read_line(self, timeout: float) -> bytes:
        if self._in < 0:
            raise WorkerDied("has ended")
        deadline, seen = time.monotonic() + timeout, 0
        while (end := self._buffer.find(b"\n", seen)) < 0:
            seen = len(self._buffer)
            if seen > REPLY_LIMIT:
                self.kill()
                raise WorkerDied("an answer of more than 64 MiB")
            self._wait(deadline, timeout)
            chunk = os.read(self._in, 1 << 20)
            if not chunk:
                raise self._died()
            self._buffer += chunk
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    def _wait(self, deadline: float, timeout: float) -> None:
        """Until there is something to read. A dead child's pipe stays open when a process that it forked holds it, so
        its end is looked for as well."""
        while True:
            left = deadline - time.monotonic()
            if left <= -1:  # it dribbles: there is always something to read, and never a line
                self.kill()
                raise WorkerHung(f"no answer for {timeout:.0f} s")
            if select.select([self._in], [], [], max(0.0, min(left, ALIVE_EVERY)))[0]:
                return
            if self._child.poll() is not None and not select.select([self._in], [], [], 0)[0]:
                raise self._died()
            if left <= 0:
                self.kill()
                raise WorkerHung(f"no answer for {timeout:.0f} s")

    def _died(self) -> WorkerDied:
        try:
            code = self._child.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.kill()
            return WorkerDied("closed its channel without ending")
        self.kill()  # whatever it forked
        self._drainer.join(timeout=1)
        said = f": {self.log.last_line}" if self.log.last_line else ""
        if code < 0:
            why = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            return WorkerDied(f"killed by {why}{said}")
        return WorkerDied(f"ended with exit code {code}{said}")

    def stop(self, timeout: float = 10.0) -> None:
        """Ask it to end; kill the whole group in any case, for a child may have forked."""
        try:
            self.call(wire.Stop(), timeout)
            self._child.wait(timeout=timeout)
        except (WorkerDied, WorkerFault, subprocess.TimeoutExpired):
            pass
        self.kill()

    def end(self) -> None:
        """Kill the process group, from another thread than the one that waits for an answer: that one cleans up."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)

    def kill(self) -> None:
        """Kill the process group and whatever left it. Safe to call twice."""
        if self._in < 0:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        _kill_strays(self._mark)
        with contextlib.suppress(subprocess.TimeoutExpired):  # one stuck in a driver's call cannot even be killed
            self._child.wait(timeout=10)
        for fd in (self._in, self._out):
            with contextlib.suppress(OSError):
                os.close(fd)
        self._in = self._out = -1


def _kill_strays(mark: str) -> None:
    """Kill every process of this user whose environment bears the mark; again while there are any: they may fork."""
    needle = f"{MARK}={mark}".encode()
    for _ in range(5):
        found = False
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it ended, or is another user's
                if needle in (folder / "environ").read_bytes().split(b"\0"):
                    os.kill(int(folder.name), signal.SIGKILL)
                    found = True
        if not found:
            return


def output(argv: Sequence[str], *, timeout: float = 10.0, env: Mapping[str, str] | None = None) -> str | None:
    """The standard output of a short question to a tool (a compiler's version), or None when it cannot be had."""
    try:
        done = subprocess.run(
            list(argv), capture_output=True, text=True, timeout=timeout, check=False, stdin=subprocess.DEVNULL, env=env
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def foreground(argv: Sequence[str], *, env: Mapping[str, str], cwd: Path) -> int:
    """Run a child with this process's own input and output until it ends. Its exit code, negative for a signal.

    Raises WorkerDied when it cannot be started. Nothing goes on in this process meanwhile.
    """
    mark = f"{os.getpid()}.{secrets.token_hex(8)}"
    try:
        child = subprocess.Popen(list(argv), env={**env, MARK: mark}, cwd=cwd)
    except OSError as error:
        raise WorkerDied(f"{argv[0]} could not be started: {error.strerror}") from error
    try:
        return child.wait()
    finally:
        child.kill()
        _kill_strays(mark)


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
    mark = f"{os.getpid()}.{secrets.token_hex(8)}"
    child = _tool(argv, env={**env, MARK: mark}, cwd=cwd, log=log, mode="ab")
    try:
        return child.wait(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise WorkerHung(f"{Path(argv[0]).name} did not end in {timeout:.0f} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        _kill_strays(mark)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=10)


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
        self._mark = f"{os.getpid()}.{secrets.token_hex(8)}"

    def __enter__(self) -> None:
        self._child = _tool(self._argv, env={**self._env, MARK: self._mark}, cwd=None, log=self._log, mode="wb")
        end = time.monotonic() + _LOOKS_ON_WITHIN
        while not self._ready():
            if self._child.poll() is not None or time.monotonic() > end:
                self._kill()
                raise WorkerDied(self._why(self._log.read_text(errors="replace")))
            time.sleep(0.02)

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            self._child.send_signal(signal.SIGINT)
            self._child.wait(timeout=_LOOKS_ON_WITHIN)
        self._kill()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        _kill_strays(self._mark)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(timeout=10)


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.Error:
        return []


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()


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
