"""Ports for servers that tests start, which take a number and no socket."""

import os
import random
import socket
from contextlib import closing, suppress


def free_ports(count: int) -> list[int]:
    """Return different free ports below the system's ephemeral range: a connection could take an ephemeral port
    before the server listens on it."""
    found: list[int] = []
    for port in random.Random(os.getpid()).sample(range(20_000, 32_000), 200):
        with closing(socket.socket()) as one, suppress(OSError):
            one.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError(f"{len(found)} of {count} ports are free")
