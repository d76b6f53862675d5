"""The doorway to Ray: a connection to a cluster, or one of this machine's own that is gone with the block."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import tempfile
from collections.abc import Iterator
from typing import Any

from abprof.records.errors import AbprofError

RESOURCE = "abprof"  # what a node without GPUs is started with, for each shard that it may run at a time
_LISTENS = 10.0  # seconds in which a cluster's port answers
_ATTEMPTS = 3  # at a connection, before anything is sent
_TOKEN = secrets.token_hex(32)  # of clusters that this process starts


def ray_itself() -> Any:
    """Ray. Raises AbprofError where it is not installed."""
    # It reads a cluster's token, when it is imported, from where a run's secrets were wiped (abprof/builds/environment.py): put it back.
    os.environ |= {name: value for name, value in os.environ.items() if name.startswith("RAY_")}
    try:
        import ray
    except ImportError as error:
        what = f"Ray is not installed ({error})"
        raise AbprofError(what, where="--executor ray", advice="pip install 'abprof[ray]'") from error
    return ray


@contextlib.contextmanager
def connected(address: str) -> Iterator[Any]:
    """Ray, with a cluster of this machine alone for the length of the block, or a connection to another. Raises AbprofError."""
    where = f"--executor ray://{address}" if address else "--executor ray"
    with contextlib.ExitStack() as stack:
        folder = "" if address else stack.enter_context(_private())
        ray = ray_itself()
        if ray.is_initialized():
            raise AbprofError("Ray is in use in this process", where=where)
        try:
            with _handlers_kept():
                _init(ray, address, folder)
        except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
            advice = "HOST:PORT is that of its client server (10001), auto a cluster of this machine" if address else ""
            raise AbprofError(f"no cluster: {reason(error)}", where=where, advice=advice) from error
        stack.callback(ray.shutdown)
        yield ray


def _init(ray: Any, address: str, folder: str) -> None:
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == "auto":
        ray.init("auto", **quiet)
        return
    if address:
        host, _, port = address.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), timeout=_LISTENS).close()  # Ray tries for half a minute
        for attempt in range(_ATTEMPTS):
            try:
                ray.init(f"ray://{address}", **quiet)
                return
            except ConnectionAbortedError:  # the server that it starts for each client may die of its own fork
                ray.shutdown()
                if attempt == _ATTEMPTS - 1:
                    raise
    own = {"resources": {RESOURCE: 1}, "include_dashboard": False, "object_store_memory": 256 << 20}
    ray.init("local", _temp_dir=folder, _node_ip_address="127.0.0.1", **own, **quiet)


@contextlib.contextmanager
def _private() -> Iterator[str]:
    """A cluster that is started in the block takes orders from this process alone, reports to nobody, and writes nothing
    outside the folder. What it is told by variables, which it reads when it is imported, is gone from them afterwards."""
    # Its sockets lie below it, and a socket's path has at most 107 characters.
    short = "/tmp" if os.access("/tmp", os.W_OK) else None  # noqa: S108
    with tempfile.TemporaryDirectory(prefix="abr-", dir=short, ignore_cleanup_errors=True) as folder:
        auth = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": _TOKEN}
        told = {**auth, "RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": folder}
        before = {name: os.environ.get(name) for name in told}
        os.environ |= told
        try:
            yield folder
        finally:
            for name, value in before.items():
                os.environ.pop(name)
                os.environ |= {} if value is None else {name: value}


@contextlib.contextmanager
def _handlers_kept() -> Iterator[None]:
    """ray.init puts its own handler in the place of SIGTERM's: the run's stays."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def reason(error: Exception) -> str:
    """The line of Ray's message that tells a person what is wrong: of a traceback the last."""
    lines = [line.strip() for line in str(error).split("\n") if line.strip()]
    if "creation task" in str(error):
        return f"no actor could be made on the node: {lines[-1]}"[:300]
    if "Traceback" in str(error):
        return lines[-1][:300]
    telling = [line for line in lines if line.startswith("The actor is dead") or "node" in line.lower()]
    return (telling or lines or [type(error).__name__])[0][:300]
