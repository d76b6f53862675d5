"""The fork server: imports torch and Triton once, and forks a worker for each request of its parent."""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import socket
from collections.abc import Callable
from typing import Any


def fork_on_request(fd: int, serve: Callable[[int, int], int], idle: list[Callable[[], None]]) -> int:
    """Answer requests on the socket `fd` until the parent closes it; call those of `idle` while there are none.

    A request is {"env", "cwd"} with three descriptors: requests, replies, output. Answers: {"pid": N} for a child that runs
    `serve(requests, replies)`, {"why": TEXT} if it cannot be forked, and {"ended": N, "code": N} when a child has ended.
    """
    channel = socket.socket(fileno=fd)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    while True:
        ready, _, _ = select.select([fd, woken], [], [], 0 if idle else None)
        if not ready:
            idle.pop(0)()
        if woken in ready:
            os.read(woken, 1 << 12)
            _reap(channel)
        if fd in ready:
            data, fds, _, _ = socket.recv_fds(channel, 1 << 20, 3)
            if not data:
                return 0
            try:
                pid = _fork(json.loads(data), fds, serve, (fd, woken, wake))
                _send(channel, {"pid": pid})
            except OSError as error:
                _send(channel, {"why": error.strerror})
            for each in fds:
                os.close(each)


def _fork(request: dict[str, Any], fds: list[int], serve: Callable[[int, int], int], own: tuple[int, ...]) -> int:
    begun, begin = os.pipe()
    pid = os.fork()
    if pid:
        os.close(begin)
        os.read(begun, 1)  # it leads its session now, so that its group can be killed
        os.close(begun)
        return pid
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        source, sink, output = fds
        os.dup2(output, 1)
        os.dup2(output, 2)
        for each in (begun, begin, output, *own):
            os.close(each)
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["cwd"])
        random.seed()
        code = serve(source, sink)
    finally:
        os._exit(code)


def _reap(channel: socket.socket) -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            _send(channel, {"ended": pid, "code": os.waitstatus_to_exitcode(status)})


def _send(channel: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # the parent is gone, and this process ends with it
        channel.send(json.dumps(message).encode())
