"""abprof's command line without its imports, which are most of the processor time of a run with simulated workers.

A process that has imported abprof, and done nothing else, forks for each command line: a process of its own, a leader of
its session, with the arguments, environment and folder asked for, which ends as any interpreter does. What tells of
starting, and what is sent signals, is started afresh (`Lab.start`).
"""

import atexit
import contextlib
import functools
import gc
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from abprof.builds.worker_factory import ForkServers
from abprof.system.processes import ForkServer
from tests.simulated.processes import show, thread_states

_LONGEST = 1 << 17  # bytes of a request


@dataclass(frozen=True)
class Ended:
    """The result of a command; `code` is minus the signal's number if it was killed."""

    code: int
    out: str
    err: str


def abprof(argv: Sequence[str], env: Mapping[str, str], cwd: Path, seconds: float) -> Ended:
    """Run it until it and all writers of its output end. Kills it and raises AssertionError after `seconds`."""
    pipes = {name: os.pipe() for name in ("out", "err", "status")}
    request = json.dumps({"argv": list(argv), "env": dict(env), "cwd": str(cwd)}).encode()
    assert len(request) < _LONGEST
    socket.send_fds(_server(), [request], [write for _, write in pipes.values()])
    for _, write in pipes.values():
        os.close(write)
    said = _read({name: read for name, (read, _) in pipes.items()}, time.monotonic() + seconds)
    out, err = said["out"].decode(), said["err"].decode()
    pid, code = map(int, said["status"].split())
    assert pid, f"abprof did not end in {seconds} s\n{said['threads'].decode()}\n{out}\n{err}"
    show(argv, code, out, err)
    return Ended(code, out, err)


def _read(pipes: Mapping[str, int], end: float) -> dict[str, bytes]:
    """Read these pipes to their end. After `end` kill the process and report PID 0."""
    said = dict.fromkeys(pipes, b"")
    with selectors.DefaultSelector() as waiting:
        for name, pipe in pipes.items():
            waiting.register(pipe, selectors.EVENT_READ, name)
        while waiting.get_map():
            for key, _ in waiting.select(max(0.0, end - time.monotonic())) or ():
                data = os.read(key.fd, 1 << 16)
                said[key.data] += data
                if not data:
                    waiting.unregister(key.fd)
                    os.close(key.fd)
            if time.monotonic() > end and said["status"]:
                pid = int(said["status"].split()[0])
                threads = thread_states(pid).encode()
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                for key in list(waiting.get_map().values()):
                    os.close(key.fd)
                return said | {"status": b"0 0", "threads": threads}
    return said


@functools.cache
def _server() -> socket.socket:
    """Where requests go; the server ends when this process does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        server = subprocess.Popen(
            [sys.executable, "-P", __file__, str(theirs.fileno())],
            env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "PYTHONPATH": str(Path(__file__).parents[2])},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,  # as the command line's own will be: what is no pipe can be sought in
            stderr=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
        )

    def end() -> None:
        ours.close()
        server.communicate()

    atexit.register(end)
    return ours


def serve(requests: socket.socket) -> None:
    """Fork for each request. Returns in the processes that are to run abprof."""
    while True:
        message, fds, _, _ = socket.recv_fds(requests, _LONGEST, 3)
        if not message:
            _bury(0)
            os._exit(0)
        if not os.fork():
            break
        for fd in fds:
            os.close(fd)
        _bury()
    requests.close()
    out, err, status = fds
    child = os.fork()
    if child:
        os.close(out)
        os.close(err)
        os.write(status, f"{child} ".encode())
        os.write(status, str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())
        os._exit(0)
    os.setsid()
    for fd, name in ((out, 1), (err, 2)):
        os.dup2(fd, name)
    for fd in fds:
        os.close(fd)
    asked = json.loads(message)
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["cwd"])
    sys.argv[1:] = asked["argv"]


def _bury(options: int = os.WNOHANG) -> None:
    """Wait for those that ended; with 0, for all."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, options)[0]:
            pass


def fork_workers() -> None:
    """Have the simulated workers of this process's runs forked as real workers are, from one server a run."""

    def server(
        self: ForkServers, argv: Sequence[str], epoch: int, env: Mapping[str, str] | None = None
    ) -> ForkServer | None:
        env = self._env if env is None else env
        if self._env is None or env is None:
            return None
        key = (tuple(argv), tuple(sorted(env.items())), 0)
        if not (key in self._servers and self._servers[key].alive):
            self._servers[key] = ForkServer.of(argv, env=env, cwd=self._folder, log=self._log)
        return self._servers[key]

    ForkServers.server = server  # type: ignore[method-assign]


if __name__ == "__main__":
    from markupsafe import escape

    import abprof.cli
    import abprof.report.render
    import abprof.session  # noqa: F401 - it runs in the forked process
    from abprof.report.layouts import environment
    from abprof.report.text import markdown

    with contextlib.suppress(ImportError):
        import scipy.special
        import scipy.stats  # noqa: F401
        import typer._adapters  # noqa: F401 - newer typers import pydantic when the first option is read
    for name, escaped in (("report.html", escape), ("report.md", markdown)):
        environment(escaped).get_template(name)  # compiled once
    gc.freeze()  # what is imported stays for good: no forked process looks through it and copies its pages by that
    fork_workers()
    serve(socket.socket(fileno=int(sys.argv[1])))
    from abprof.__main__ import main

    main()
