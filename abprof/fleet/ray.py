"""Executor of a Ray cluster: each shard is an actor of its own with one GPU, which runs the shard worker and returns its lines.

An actor and not a task, because it returns lines while its process runs, through Ray's client too, which streams no task's results.
It serves one shard and is killed: nothing is retried (`max_restarts=0`, `max_task_retries=0`), since half a pair that is run again
silently is no pair. Nodes need abprof, and no folder in common with the run (bundle.py).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from abprof.fleet.bundle import Bundle, edition, elsewhere, here, unpack
from abprof.fleet.messages import DEVICE, Lost, Shard, read_shard
from abprof.records import Record
from abprof.records.errors import AbprofError
from abprof.system import checksummed as sealed
from abprof.system import locks, paths
from abprof.system.processes import ALIVE_EVERY, Program, WorkerDied

_GPU_LABEL = "ray.io/accelerator-type"
_OPTIONS = "gpu=MODEL, label.KEY=VALUE, cpus=N"
_RESOURCE = "abprof"  # resource of nodes without GPUs: one for each shard that they may run at a time
_LISTENS = 10.0  # seconds in which a cluster's port answers
_ATTEMPTS = 3  # at a connection, before anything is sent
_LISTEN = 1.0  # seconds that an actor waits for a line
_ORDERLY = 15.0  # seconds that shard workers have to clean up


class Options(Record, frozen=True, kw_only=True):
    """Which nodes of a cluster to use, and how much of one a shard takes besides its GPU."""

    labels: dict[str, str] = {}  # of nodes; a GPU's model is one
    cpus: float = 1.0


def read_options(given: Mapping[str, str]) -> Options:
    """Options from the words of a command line or of abprof.toml. Raises AbprofError for an unknown one."""
    labels, cpus = {}, 1.0
    for name, value in given.items():
        if name == "gpu":
            labels[_GPU_LABEL] = value
        elif name.startswith("label.") and name != "label.":
            labels[name.removeprefix("label.")] = value
        elif name == "cpus" and value.replace(".", "", 1).isdigit():
            cpus = float(value)
        else:
            raise AbprofError(f"unknown option {name}={value}", where="--executor ray", advice=f"options: {_OPTIONS}")
    return Options(labels=labels, cpus=cpus)


class RayExecutor:
    """An `Executor`."""

    lasting = False  # Ray chooses the GPU of each shard

    def __init__(self, address: str, options: Options, *, gpu: bool, bundle: Bundle, file: Path, logs: Path) -> None:
        """`address`: "auto" for the cluster that this machine is a node of, or HOST:PORT of another's client server.

        `file`: the bundle's tar file; `logs`: the folder for shards' logs.
        """
        self._address, self._options, self._gpu = address, options, gpu
        self._bundle, self._file, self._logs = bundle, file, logs
        self._actors: dict[int, Any] = {}  # shard -> its actor
        self._pending: dict[Any, int] = {}  # reference of a result -> shard
        self._nodes: dict[str, str] = {}  # slot -> node id

    def __enter__(self) -> Self:
        self._stack = contextlib.ExitStack()
        try:
            self._ray = self._stack.enter_context(_connected(self._address, self._where))
            self._sent = self._ray.put(self._file.read_bytes())
            if not self.slots():
                raise AbprofError(self._no_slot(), where=self._where, advice=f"options: {_OPTIONS}")
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self.cancel()
        finally:
            self._stack.close()

    def slots(self) -> Sequence[str]:
        """NODE/PLACE for each shard that living nodes with the labels may run at a time."""
        found: dict[str, str] = {}
        for node in self._ray.nodes():
            if node["Alive"] and self._options.labels.items() <= node.get("Labels", {}).items():
                name = f"{node['NodeManagerHostname']}-{node['NodeID'][:6]}"
                found |= {f"{name}/{place}": node["NodeID"] for place in range(self._room(node["Resources"]))}
        self._nodes |= found
        return list(found)

    def submit(self, shard: Shard, slot: str) -> None:
        """Run an actor on the slot's node."""
        pinned = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        resources = {"num_gpus": 1} if self._gpu else {"num_gpus": 0, "resources": {_RESOURCE: 1}}
        made = self._ray.remote(_Actor).options(
            **resources,
            num_cpus=self._options.cpus,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=pinned(self._nodes[slot], soft=False),
        )
        actor = made.remote()
        self._actors[shard.number] = actor
        sent = sealed.text(msgspec.structs.replace(shard, run=elsewhere(shard.run, self._bundle)))
        self._pending[actor.start.remote(sent, sealed.text(self._bundle), [self._sent])] = shard.number

    def news(self, timeout: float) -> Iterator[tuple[int, bytes | Lost]]:
        """Lines that actors return. An actor whose node is gone raises, and its shard is lost."""
        if not self._pending:
            time.sleep(timeout)
            return
        came, _ = self._ray.wait(list(self._pending), num_returns=1, timeout=timeout)
        more, _ = self._ray.wait(list(self._pending), num_returns=len(self._pending), timeout=0) if came else ([], [])
        for ready in more or came:
            number = self._pending.pop(ready)
            try:
                lines, gone = self._ray.get(ready)
            except self._ray.exceptions.RayError as error:
                self._ray.kill(self._actors.pop(number))
                yield number, Lost(_reason(error))
                continue
            yield from ((number, line) for line in lines)
            if gone is None:
                self._pending[self._actors[number].lines.remote(_LISTEN)] = number
            else:
                self._put_away(number)
                yield number, Lost(gone)

    def cancel(self) -> None:
        """End the shard workers, then their actors."""
        actors, self._actors = self._actors, {}
        self._pending.clear()
        if not actors:
            return
        ending = [actor.end.remote(_ORDERLY) for actor in actors.values()]
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.wait(ending, num_returns=len(ending), timeout=_ORDERLY + 5)
        for actor in actors.values():
            self._ray.kill(actor)

    # ---------------------------------------------------------------- nodes

    @property
    def _where(self) -> str:
        return f"--executor ray://{self._address}"

    def _room(self, resources: Mapping[str, float]) -> int:
        """Shards that a node may run at a time."""
        rooms = [resources.get("GPU" if self._gpu else _RESOURCE, 0.0)]
        rooms += [resources.get("CPU", 0.0) / self._options.cpus] if self._options.cpus else []
        return int(min(rooms))

    def _no_slot(self) -> str:
        labels = self._options.labels
        seen = sorted({node.get("Labels", {}).get(_GPU_LABEL, "none") for node in self._ray.nodes() if node["Alive"]})
        kind = "a GPU" if self._gpu else f"the resource {_RESOURCE!r} (ray start --resources='{{\"{_RESOURCE}\": 1}}')"
        which = f" and {', '.join(f'{name}={value}' for name, value in labels.items())}" if labels else ""
        return f"no node has {kind}{which}; models of GPUs: {', '.join(seen)}"

    def _put_away(self, number: int) -> None:
        """Fetch the logs of a shard that has ended, and kill its actor."""
        actor = self._actors.pop(number)
        with contextlib.suppress(self._ray.exceptions.RayError, OSError):
            for name, text in self._ray.get(actor.logs.remote(), timeout=_ORDERLY).items():
                file = self._logs / f"shard-{number}" / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(text)
            self._ray.wait([actor.end.remote(0.0)], timeout=_ORDERLY)
        self._ray.kill(actor)


class _Actor:
    """On a node: starts a shard worker and returns its lines. Errors are return values."""

    def __init__(self) -> None:
        self._runner: RemoteRunner | None = None

    def start(self, shard: bytes, bundle: bytes, file: list[Any]) -> tuple[list[bytes], str | None]:
        """Return no lines yet, and why the worker could not be started."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # Ray starts actors with it blocked
        try:
            known = msgspec.json.decode(bundle, type=Bundle)
            self._runner = RemoteRunner(read_shard(shard), known, lambda: _import_ray().get(file[0]), _environment())
        except (AbprofError, ValueError) as error:
            return [], error.line if isinstance(error, AbprofError) else str(error)
        return [], None

    def lines(self, seconds: float) -> tuple[list[bytes], str | None]:
        """See `RemoteRunner`."""
        return self._runner.lines(seconds) if self._runner else ([], "not started")

    def logs(self) -> dict[str, bytes]:
        """See `RemoteRunner`."""
        return self._runner.logs() if self._runner else {}

    def end(self, grace: float) -> None:
        """See `RemoteRunner`."""
        if self._runner:
            self._runner.end(grace)


def _environment() -> dict[str, str]:
    """The node's environment as it was started: Ray sets OMP_NUM_THREADS and others, which would change builds and kernels."""
    import psutil

    given = psutil.Process().parent().environ()
    own = {name: value for name, value in given.items() if not name.startswith("RAY_")}
    jemalloc = own.get("LD_PRELOAD", "")
    if "libjemalloc" in jemalloc and "ray" in jemalloc:  # its own servers'
        del own["LD_PRELOAD"]
    devices = os.environ.get("CUDA_VISIBLE_DEVICES")
    return {**own, **({"CUDA_VISIBLE_DEVICES": devices, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if devices else {})}


# ---------------------------------------------------------------- the connection


def _import_ray() -> Any:
    """Import Ray. Raises AbprofError if it is not installed."""
    # Ray reads a cluster's token at import from memory that `scrub_secrets` wiped: put it back.
    os.environ |= {name: value for name, value in os.environ.items() if name.startswith("RAY_")}
    try:
        import ray
    except ImportError as error:
        what = f"Ray is not installed ({error})"
        raise AbprofError(what, where="--executor ray", advice="pip install 'abprof[ray]'") from error
    return ray


@contextlib.contextmanager
def _connected(address: str, where: str) -> Iterator[Any]:
    """Connect to a cluster for the length of the block. Raises AbprofError."""
    ray = _import_ray()
    if ray.is_initialized():
        raise AbprofError("Ray is in use in this process", where=where)
    try:
        with _handlers_kept():
            _init(ray, address)
    except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
        advice = "HOST:PORT is that of its client server (10001), auto a cluster of this machine"
        raise AbprofError(f"no cluster: {_reason(error)}", where=where, advice=advice) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _init(ray: Any, address: str) -> None:
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == "auto":
        ray.init("auto", **quiet)
        return
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


@contextlib.contextmanager
def _handlers_kept() -> Iterator[None]:
    """Keep the run's signal handlers: ray.init replaces SIGTERM's."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _reason(error: Exception) -> str:
    """The line of Ray's message that names the problem: the last one of a traceback."""
    lines = [line.strip() for line in str(error).split("\n") if line.strip()]
    if "creation task" in str(error):
        return f"no actor could be made on the node: {lines[-1]}"[:300]
    if "Traceback" in str(error):
        return lines[-1][:300]
    telling = [line for line in lines if line.startswith("The actor is dead") or "node" in line.lower()]
    return (telling or lines or [type(error).__name__])[0][:300]


# ---------------------------------------------------------------- on a node

_LOG_LIMIT = 1 << 20  # bytes of a log that come back, its last


class RemoteRunner:
    """One shard worker. It ends with the process that made this object."""

    def __init__(self, shard: Shard, bundle: Bundle, fetch: Callable[[], bytes], env: Mapping[str, str]) -> None:
        """`fetch` returns the bundle's bytes if this machine lacks it; `env` is the worker's environment.

        Raises AbprofError if the shard cannot begin here.
        """
        if bundle.abprof != edition():
            what = f"this machine has another abprof ({edition()}) than the run ({bundle.abprof})"
            raise AbprofError(what, where=sys.executable, advice="install the same on every node")
        self._folder = paths.cache_dir() / "landed" / secrets.token_hex(6)
        while not locks.hold(self._lock):  # a sweep held it in the moment it was made
            self._folder = self._folder.with_name(secrets.token_hex(6))
        self._logs = self._folder / "logs"
        try:
            self._logs.mkdir(parents=True)
            home = unpack(paths.cache_dir(), bundle, fetch)
            there = {"device": env.get(DEVICE, ""), "held": False, "repository": str(home), "logs": str(self._logs)}
            placed = msgspec.structs.replace(shard, run=here(shard.run, bundle, home), **there)
            file = self._logs.parent / "shard.json"
            file.write_bytes(sealed.text(placed))
            argv = [sys.executable, "-P", "-m", "abprof.fleet", str(file), "--with", str(os.getpid())]
            self._program = Program(argv, env=env, log=self._logs / "program.log")
        except (WorkerDied, OSError) as died:
            self._put_away()
            raise AbprofError(str(died), where="shard worker") from died
        except BaseException:
            self._put_away()
            raise

    def lines(self, seconds: float) -> tuple[list[bytes], str | None]:
        """Return the lines of this time, at once when there are some, and how the worker ended, None before."""
        end = time.monotonic() + seconds
        while True:
            select.select([self._program], [], [], max(0.0, min(ALIVE_EVERY, end - time.monotonic())))
            gone = self._program.gone  # before the last lines are taken
            found = self._program.lines()
            if gone is not None or found or time.monotonic() >= end:
                return found, self._last_words(gone)

    def logs(self) -> dict[str, bytes]:
        """Return the worker's logs, by their paths in the shard's folder of logs."""
        files = (path for path in sorted(self._logs.rglob("*")) if path.is_file() and not path.is_symlink())
        return {str(path.relative_to(self._logs)): path.read_bytes()[-_LOG_LIMIT:] for path in files}

    def end(self, grace: float) -> None:
        """End the worker, letting it clean up for `grace` seconds. Safe to call twice."""
        self._program.ask_to_end()
        self._program.end(grace)
        self._put_away()

    @property
    def _lock(self) -> Path:
        """Held as long as this process lives; `sides.sweep` removes a folder whose lock is free."""
        return self._folder.with_name(f"{self._folder.name}.lock")

    def _put_away(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        locks.drop(self._lock)

    def _last_words(self, gone: str | None) -> str | None:
        """How it ended, with its last line on standard error."""
        if gone is None:
            return None
        said = (self._logs / "program.log").read_text(errors="replace").strip().split("\n")[-1]
        return f"{gone}: {said}" if said else gone
