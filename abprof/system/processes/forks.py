"""Start fork servers: processes that have imported the modules that every worker needs, and fork workers fast.

A fork server uses no device. Only a server `with_package` runs code under test: the import of one side's package. A
server may run in a sandbox; its workers then run in the same sandbox, and have other process ids there than here.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil

from abprof.records import messages as wire
from abprof.records.base import UNREADABLE
from abprof.records.messages import MARK
from abprof.system import doorway
from abprof.system.processes.children import WorkerDied, end_tree, new_mark, start

_TO_ANSWER = 120.0  # seconds from a server's start to its first answer, after its imports, perhaps from a network disk
_TO_FORK = 10.0  # seconds to a later answer
_SHARED = 0.05  # most seconds that a thread waits for a process's end, while other threads cannot ask the server

_CREDENTIALS = struct.Struct("3i")  # the sender's process id, user and group, from the kernel (unix(7))


class _Message(msgspec.Struct):
    """A message of a fork server or of a process that it forked. Process ids are those in the server's sandbox."""

    pid: int = 0  # the new process, which sends this
    why: str = ""  # why the server cannot fork
    ended: int = 0  # a process that has ended
    code: int = 0  # its exit code, negative for a signal
    signalled: int = 0  # the signal that all processes of the sandbox got
    ran: int = 0  # ns of CPU time that they used since the signal before
    outer: int = 0  # the sender's process id outside of the sandbox; not part of the message


_MESSAGE = msgspec.json.Decoder(_Message)  # made here, since threads decode: see worker.py


class Forked:
    """A worker process that a fork server started. Has the methods of Popen that `Worker` uses."""

    def __init__(self, server: ForkServer, inner: int, pid: int) -> None:
        self._server, self._inner, self.pid = server, inner, pid

    def resume(self) -> int:
        """Let the processes of its sandbox run. Return the ns of CPU time that they used while they were stopped."""
        return self._server.resume(self.pid)

    def pause(self) -> int:
        """Stop them, unless another worker in the sandbox may run. Return the ns of CPU time that they used."""
        return self._server.pause(self.pid)

    def release(self) -> None:
        """Forget the process, which has ended."""
        self._server.release(self.pid)

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the process runs."""
        return self._server.code(self._inner)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float) -> int:
        """Return the exit code once the process has ended. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if (left := deadline - time.monotonic()) <= 0:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            self._server.listen(min(left, _SHARED))
        return code


class ForkServer:
    """A process that forks workers. Started with a command (`of`), or forked off another server (`with_package`).

    Threads may use one server: builds run in threads."""

    def __init__(self, launch: Callable[[int], tuple[subprocess.Popen[bytes] | Forked, str]]) -> None:
        """`launch` starts the process, which gets a socket's descriptor, and returns the process and its mark."""
        self._codes: dict[int, int] = {}
        self._forks = set[int]()  # ids, outside of the sandbox, of the processes that it forked and that are in use
        self._running = set[int]()  # those that may run (`resume`)
        self._until = time.monotonic() + _TO_ANSWER
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.has_forked = False
        self._lock = threading.RLock()
        with theirs:
            try:
                self._process, self._mark = launch(theirs.fileno())
            except (OSError, WorkerDied):
                self._socket.close()
                raise

    @classmethod
    def of(cls, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path) -> ForkServer:
        """Start a fork server with the command `argv`. Raises WorkerDied."""
        return cls(lambda fd: start([*argv, "--fork", str(fd)], env, cwd=cwd, log=log, pass_fds=(fd,)))

    def with_package(self, start: wire.Start, *, env: Mapping[str, str], cwd: Path, log: Path) -> ForkServer:
        """Fork a fork server that imports the package of `start`, so that its workers need not. Does not wait for the
        import. If the import fails, or starts CUDA or a thread, the new server ends. Raises WorkerDied, OSError."""

        def launch(fd: int) -> tuple[Forked, str]:
            mark = new_mark()
            request = {"env": {**env, MARK: mark}, "cwd": str(cwd), "start": wire.pack(start)}
            with doorway.appended(log) as output, self._lock:
                return self._forked(request, [fd, output.fileno()]), mark

        return ForkServer(launch)

    @property
    def in_use(self) -> bool:
        """Whether a process that it forked is in use."""
        return bool(self._forks)

    @property
    def cpu_seconds(self) -> float:
        """The CPU time that the server has used; 0 once it has ended."""
        with contextlib.suppress(psutil.Error):
            used = psutil.Process(self._process.pid).cpu_times()
            return float(used.user + used.system)
        return 0.0

    @property
    def waits(self) -> bool:
        """Whether the server sleeps. One that uses no CPU time may still wait for a core."""
        with contextlib.suppress(psutil.Error):
            return psutil.Process(self._process.pid).status() not in {psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP}
        return True

    @property
    def alive(self) -> bool:
        """Whether the server can still fork."""
        return self._socket.fileno() >= 0 and self._process.poll() is None

    def fork(self, *, env: Mapping[str, str], cwd: Path, ends: Sequence[int], output: int) -> Forked:
        """Fork a worker that reads requests from ends[0], replies to ends[1] and prints to `output` (descriptors)."""
        with self._lock:
            return self._forked({"env": dict(env), "cwd": str(cwd)}, [*ends, output])

    def _forked(self, request: dict[str, Any], fds: list[int]) -> Forked:
        try:
            socket.send_fds(self._socket, [json.dumps(request).encode()], fds)
        except OSError as error:
            raise WorkerDied(f"the fork server does not answer: {error.strerror}") from error
        soon = time.monotonic() + _TO_FORK
        deadline = soon if self.has_forked else max(self._until, soon)
        while self.alive and time.monotonic() < deadline:
            message = self.listen(1.0)
            if message and message.pid:
                self.has_forked = True
                self._codes.pop(message.pid, None)  # of an earlier process with this id
                self._forks.add(message.outer)
                return Forked(self, message.pid, message.outer)
            if message and message.why:
                raise WorkerDied(f"the fork server cannot fork: {message.why}")
        self.kill()
        raise WorkerDied("the fork server ended")

    def release(self, worker: int) -> None:
        """Forget a process that has ended."""
        self._forks.discard(worker)
        self._running.discard(worker)

    def resume(self, worker: int) -> int:
        """Let all processes of the server's sandbox run, until `pause` is called for each worker for which this was called.
        Return the ns of CPU time that they used while they were stopped. Raises WorkerDied."""
        ran = 0 if self._running else self._signal(signal.SIGCONT)
        self._running.add(worker)
        return ran

    def pause(self, worker: int) -> int:
        """Stop all processes of the sandbox. Return the ns of CPU time that they used meanwhile. Raises WorkerDied."""
        self._running.discard(worker)
        return 0 if self._running else self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> int:
        deadline = time.monotonic() + _TO_FORK
        with contextlib.suppress(OSError):
            self._socket.send(json.dumps({"signal": number}).encode())
            while self.alive and time.monotonic() < deadline:
                message = self.listen(1.0)
                if message and message.signalled == number:
                    return message.ran
        self.kill()
        raise WorkerDied("the processes of its sandbox could not be stopped")

    def code(self, pid: int) -> int | None:
        """Return the exit code of the forked process `pid` (its id in the sandbox), negative for a signal; None while the
        process runs."""
        while pid not in self._codes and self.listen(0.0):
            pass
        if pid in self._codes or self.alive:
            return self._codes.get(pid)
        return -signal.SIGKILL  # the server's children die with the server

    def listen(self, seconds: float) -> _Message | None:
        """Return the next message of the server or of a new process; None if none comes within `seconds`."""
        with self._lock:
            return self._heard(seconds)

    def _heard(self, seconds: float) -> _Message | None:
        if self._socket.fileno() < 0 or not select.select([self._socket], [], [], seconds)[0]:
            return None
        try:
            data, ancillary, *_ = self._socket.recvmsg(1 << 16, socket.CMSG_SPACE(_CREDENTIALS.size))
            message = _MESSAGE.decode(data)
            # The message has an id of the sandbox, and could be forged. The kernel adds the sender's id here; 0: none.
            message.outer = _CREDENTIALS.unpack(ancillary[0][2])[0]
            if message.outer <= 0:
                raise OSError("the sender is in no namespace below this one")
        except (OSError, IndexError, struct.error, *UNREADABLE):  # no data: the server has ended
            self.kill()
            return None
        if message.ended:
            self._codes[message.ended] = message.code
        return message

    def kill(self) -> None:
        """Kill the server and every process that it forked. Safe to call twice."""
        end_tree(self._process, self._mark)
        self._socket.close()
