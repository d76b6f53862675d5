"""The fork server of simulated workers, which abprof asks as it asks that of real workers (abprof/worker/main.py)."""

import json
import os
import select
import socket
from collections.abc import Callable


def fork_on_request(fd: int, serve: Callable[[int, int], int]) -> int:
    """Fork a worker, which runs `serve(requests, replies)`, for each request on the socket `fd`, until abprof closes it."""
    channel, children = socket.socket(fileno=fd), dict[int, int]()  # a child's descriptor -> its process id
    while True:
        for ready in select.select([fd, *children], [], [])[0]:
            if pid := children.pop(ready, 0):
                os.close(ready)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                channel.send(json.dumps({"ended": pid, "code": code}).encode())
                continue
            request, fds, _, _ = socket.recv_fds(channel, 1 << 20, 3)
            if not request:
                return 0
            pid = os.fork()
            if not pid:
                _child(json.loads(request), fds, serve, channel, tuple(children))
            for each in fds:
                os.close(each)
            children[os.pidfd_open(pid)] = pid


def _child(
    request: dict[str, dict[str, str]],
    fds: list[int],
    serve: Callable[[int, int], int],
    channel: socket.socket,
    own: tuple[int, ...],
) -> None:
    code = 1
    try:
        os.setsid()
        channel.send(json.dumps({"pid": os.getpid()}).encode())
        channel.close()
        source, sink, output = fds
        os.dup2(output, 1)
        os.dup2(output, 2)
        for each in (output, *own):
            os.close(each)
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(str(request["cwd"]))
        code = serve(source, sink)
    finally:
        os._exit(code)
