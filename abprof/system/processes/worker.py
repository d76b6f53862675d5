"""Start worker processes, send requests to workers and receive replies (abprof/records/messages.py)."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from abprof.records import messages as wire
from abprof.records.base import UNREADABLE, untrusted
from abprof.records.messages import MARK
from abprof.system.processes.children import (
    Log,
    WorkerDied,
    WorkerFault,
    WorkerHung,
    await_end,
    how_ended,
    inside,
    kill_strays,
    new_mark,
    start,
)
from abprof.system.processes.forks import Forked, ForkServer

ALIVE_EVERY = 0.2  # seconds between checks whether a silent child lives
START = 30.0  # seconds that starting a child may take, even if --timeout is shorter
READ_REQUEST = 30.0  # seconds a child may take to read a request
REPLY_LIMIT = 64 << 20

# msgspec 0.22 crashes if two threads are the first to decode into a class. Threads read replies: prepare their classes here.
for _kind in (wire.Fault, *(reply for _, reply in wire.VERBS.values())):
    msgspec.json.Decoder(_kind)


class Worker:
    """A child process that answers one request at a time. `call` sends a request and waits for the reply."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        log: Path,
        on_line: Callable[[str], None] | None = None,
        walled: bool = False,
        started: Callable[[int], None] | None = None,
        servers: Sequence[ForkServer] = (),
        beside: Sequence[int] = (),
        paused: bool = False,
    ) -> None:
        """Start the child by a fork of the first of `servers` that can, else by `argv`. `walled`: `argv` starts the
        child in a sandbox (abprof/builds/sandbox.py). `started` is called with the id of every process started. `beside`:
        another descriptor for the child. `paused`: stop every process in the sandbox of `servers` while the child has no request."""
        self.ran = 0  # ns of CPU time that a paused child's sandbox used while it was stopped
        self.waited = 0  # ns from the last request to its reply
        self.at_reply: Callable[[], None] | None = None  # called once at the next reply, in the time `waited`
        self._paused, self._sent = paused, 0
        self._servers, self._beside = servers, beside
        self._started = started or (lambda _: None)
        self.log = Log(log, on_line)
        self._argv, self._env, self._cwd, self._walled = tuple(argv), dict(env), cwd, walled
        self._launch()

    @property
    def forked(self) -> bool:
        """Whether a fork server started the child."""
        return isinstance(self._child, Forked)

    @property
    def program(self) -> str:
        """Return the path of the child's program; "" in a sandbox."""
        return "" if self._walled else self._argv[0]

    def restart(self) -> None:
        """Kill the child if it still runs, and start a new child. Raises WorkerDied if that fails."""
        self.kill()
        self._launch()

    def _launch(self) -> None:
        self._next = 0
        self._inner: tuple[int, ...] = ()  # ids of a sandbox's first process and of the child; () without a sandbox
        self._buffer = bytearray()
        self._child: subprocess.Popen[bytes] | Forked
        to_child, self._out = os.pipe()
        self._in, from_child = os.pipe()
        stdout_read, stdout_write = os.pipe()
        os.set_blocking(self._out, False)  # a child that stops reading must not block its parent
        try:
            self._begin(to_child, from_child, stdout_write)
        except WorkerDied:
            for fd in (self._out, self._in, stdout_read):
                os.close(fd)
            self._in = self._out = -1
            raise
        finally:
            for fd in (to_child, from_child, stdout_write):
                os.close(fd)
        self._started(self._child.pid)
        self._drainer = threading.Thread(target=self._drain, args=(stdout_read,), daemon=True)
        self._drainer.start()

    def _begin(self, source: int, sink: int, output: int) -> None:
        for server in self._servers:
            with contextlib.suppress(WorkerDied):  # the next server, or the command, then starts the child
                self._mark = new_mark()
                env = {**self._env, MARK: self._mark}
                self._child = server.fork(env=env, cwd=self._cwd, ends=(source, sink, *self._beside), output=output)
                return
        if self._paused:
            raise WorkerDied("no fork server can start it, so its sandbox could not be stopped")
        argv = [*self._argv, "--in", str(source), "--out", str(sink)]
        argv += [f"--beside={fd}" for fd in self._beside]
        streams: dict[str, Any] = {"stdout": output, "stderr": output, "pass_fds": (source, sink, *self._beside)}
        self._child, self._mark = start(argv, self._env, cwd=self._cwd, **streams)

    def _drain(self, fd: int) -> None:
        try:
            self.log.drain(fd)
        finally:
            os.close(fd)

    @property
    def pid(self) -> int:
        """Process id of the child; while the child's sandbox is starting, the process id of bubblewrap."""
        return self._behind()[1] if len(self._behind()) > 1 else self._child.pid

    def _behind(self) -> tuple[int, ...]:
        if self._walled and not self.forked and len(self._inner) < 2:
            self._inner = inside(self._child.pid) or self._inner
            for pid in self._inner:
                self._started(pid)
        return self._inner

    def observed(self, seconds: float) -> int:
        """Let the sandbox of a paused child run for `seconds` without a request. Return the ns of CPU time that it used."""
        self.ran += self._resume()
        time.sleep(seconds)
        return self._pause()

    def _resume(self) -> int:
        return self._child.resume() if self._paused and isinstance(self._child, Forked) else 0

    def _pause(self) -> int:
        return self._child.pause() if self._paused and isinstance(self._child, Forked) else 0

    @property
    def alive(self) -> bool:
        """Whether the child runs and can answer."""
        return self._out >= 0 and self._child.poll() is None

    def call(self, request: Any, timeout: float) -> Any:
        """Send a request, and return the reply. Raises WorkerFault for a failure that the child reports, WorkerHung
        after `timeout`, WorkerDied if it ends."""
        self.send(request)
        return self.receive(request, timeout)

    def send(self, request: Any) -> None:
        """Send a request without waiting for the reply, so that several workers can work at the same time."""
        if self._out < 0:
            raise WorkerDied("has ended")
        self._next += 1
        self.ran += self._resume()
        message = wire.dump({"id": self._next, "do": wire.NAMES[type(request)], "args": wire.pack(request)})
        view, deadline = memoryview(message), time.monotonic() + READ_REQUEST
        self._sent = time.perf_counter_ns()
        try:
            while view:
                if not select.select([], [self._out], [], max(0.0, deadline - time.monotonic()))[1]:
                    raise self._hung(f"did not read its request for {READ_REQUEST:.0f} s")
                with contextlib.suppress(BlockingIOError):
                    view = view[os.write(self._out, view) :]
        except OSError as error:
            raise self._died() from error

    def receive(self, request: Any, timeout: float) -> Any:
        """Return the reply to `request`, the last request sent. Waits up to `timeout` seconds. Raises like `call`."""
        try:
            line = self._read_line(max(timeout, START) if isinstance(request, wire.Start) else timeout)
            if self.at_reply is not None:
                self.at_reply()
            self.at_reply, self.waited = None, time.perf_counter_ns() - self._sent
            self._pause()
            message = msgspec.convert(untrusted(line), dict[str, Any])
            if message.get("id") != self._next:
                raise ValueError(f"answer to request {message.get('id')}, expected {self._next}")
            if "fault" in message:
                fault = msgspec.convert(message["fault"], wire.Fault)
                raise WorkerFault(fault.status, fault.reason, fault.at)
            return msgspec.convert(message["reply"], wire.VERBS[wire.NAMES[type(request)]][1])
        except (*UNREADABLE, OverflowError, ValueError, KeyError) as error:
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
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._hung(f"no answer for {timeout:.0f} s")
            if select.select([self._in], [], [], min(left, ALIVE_EVERY))[0]:
                chunk = os.read(self._in, 1 << 20)
                if not chunk:
                    raise self._died()
                self._buffer += chunk
                continue
            self._behind()  # read the ids while the child lives: a child that dies on its first request has used the device, too
            # A dead child's pipe stays open while a forked process holds it.
            if self._child.poll() is not None and not select.select([self._in], [], [], 0)[0]:
                raise self._died()
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._behind()
        return line

    def _hung(self, reason: str) -> WorkerHung:
        self.kill()
        return WorkerHung(reason)

    def _died(self) -> WorkerDied:
        try:
            code = self._child.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.kill()
            return WorkerDied("closed its channel without ending")
        self.kill()  # kill the processes that the child forked
        self._drainer.join(timeout=1)
        last = f": {self.log.last_line}" if self.log.last_line else ""
        if self._walled and not self.forked and code > 128:  # bubblewrap returns 128 + signal
            code = 128 - code
        if code == -signal.SIGSEGV and self._env.get("TRITON_INTERPRET", "0") != "0":
            last = ": in Triton's interpreter mostly a kernel that reads or writes outside its tensors"
        return WorkerDied(f"{how_ended(code)}{last}")

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self, timeout: float = 10.0) -> None:
        """Ask the child to end, wait up to `timeout` seconds, then kill what is left of its processes."""
        with contextlib.suppress(WorkerDied, WorkerFault, subprocess.TimeoutExpired):
            self.call(wire.Stop(), timeout)
            self._await_end(timeout)
        self.kill()

    def end(self) -> None:
        """Kill the child's process group. Any thread may call this method: a waiting `call` then raises WorkerDied."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            behind = self._behind()
            if behind and self._child.poll() is None:  # every process of a sandbox ends with its first process
                os.kill(behind[0], signal.SIGKILL)
            else:
                os.killpg(self._child.pid, signal.SIGKILL)

    def kill(self) -> None:
        """Kill the child and every process that it started. Safe to call twice."""
        end_all([self])

    def _await_end(self, seconds: float) -> None:
        if isinstance(self._child, Forked):
            await_end(self._child.pid, seconds)  # a busy fork server may reap the child later
        else:
            self._child.wait(timeout=seconds)

    def _release(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):  # a process in a driver's call may survive SIGKILL
            self._await_end(10.0)
        if self._inner:
            await_end(self._inner[0], 5.0)
        if isinstance(self._child, Forked):
            self._child.release()
        for fd in (self._in, self._out):
            with contextlib.suppress(OSError):
                os.close(fd)
        self._in = self._out = -1


def end_all(workers: Iterable[Worker]) -> None:
    """Kill several workers and their processes in parallel, because destroying a CUDA context takes time."""
    living = [worker for worker in workers if worker._in >= 0]
    for worker in living:
        worker.end()
    if living:
        kill_strays(*(worker._mark for worker in living))
    for worker in living:
        worker._release()
