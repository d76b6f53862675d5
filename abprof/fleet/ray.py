"""Shards on a Ray cluster: each is an actor of its own with one GPU, which runs the shard's program and is asked for its lines.

An actor and not a task, because it can be asked while the program runs, through Ray's client too, which streams no task's
results. It is made once, serves one shard and is killed: nothing is retried (`max_restarts=0`, `max_task_retries=0`), since half
a pair that is run again silently would be no pair. Nodes need abprof, and no folder in common with the run (bundle.py).
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from abprof.fleet.bundle import Cargo, elsewhere
from abprof.fleet.executor import Lost
from abprof.fleet.landing import Landing
from abprof.fleet.messages import Shard, read_shard
from abprof.fleet.ray_connection import RESOURCE, connected, ray_itself, reason
from abprof.records import Record
from abprof.records.errors import AbprofError
from abprof.system import checksummed as sealed

SCHEME = "ray"
_GPU_LABEL = "ray.io/accelerator-type"
_OPTIONS = "gpu=MODEL, label.KEY=VALUE, cpus=N"
_LISTEN = 1.0  # seconds that an actor waits for a line before it says that there is none
_ORDERLY = 15.0  # seconds that programs have to put away what they have begun


class Options(Record, frozen=True, kw_only=True):
    """Which nodes of a cluster, and how much of one a shard takes besides its GPU."""

    labels: dict[str, str] = {}  # of nodes; a GPU's model is one
    cpus: float = 1.0


def read_options(given: Mapping[str, str]) -> Options:
    """Raises AbprofError for one that there is not."""
    labels, cpus = {}, 1.0
    for name, value in given.items():
        if name == "gpu":
            labels[_GPU_LABEL] = value
        elif name.startswith("label.") and name != "label.":
            labels[name.removeprefix("label.")] = value
        elif name == "cpus" and value.replace(".", "", 1).isdigit():
            cpus = float(value)
        else:
            raise AbprofError(f"no option {name}={value}", where="--executor ray", advice=f"there is {_OPTIONS}")
    return Options(labels=labels, cpus=cpus)


class RayExecutor:
    """See abprof.fleet.executor.Executor."""

    lasting = False  # which GPU of its node a shard gets is Ray's affair

    def __init__(self, address: str, options: Options, *, gpu: bool, cargo: Cargo, bundle: Path, logs: Path) -> None:
        """`address`: "" for a cluster that is started here, "auto" for the one that this machine is a node of, or HOST:PORT of
        another's client server. `bundle` is the cargo's file; `logs` is where shards' logs come to."""
        self._address, self._options, self._gpu = address, options, gpu
        self._cargo, self._bundle, self._logs = cargo, bundle, logs
        self._actors: dict[int, Any] = {}  # shard -> its actor
        self._asked: dict[Any, int] = {}  # what was asked for and has not come -> shard
        self._nodes: dict[str, str] = {}  # slot -> node id

    def __enter__(self) -> Self:
        self._stack = contextlib.ExitStack()
        try:
            self._ray = self._stack.enter_context(connected(self._address))
            self._sent = self._ray.put(self._bundle.read_bytes())
            if not self.slots():
                raise AbprofError(self._no_slot(), where=self._where, advice=f"options are {_OPTIONS}")
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.cancel()
        finally:
            self._stack.close()

    def slots(self) -> Sequence[str]:
        """One for each shard that a living node with the labels may run at a time, as NODE/PLACE."""
        found: dict[str, str] = {}
        for node in self._ray.nodes():
            if node["Alive"] and self._options.labels.items() <= node.get("Labels", {}).items():
                name = f"{node['NodeManagerHostname']}-{node['NodeID'][:6]}"
                found |= {f"{name}/{place}": node["NodeID"] for place in range(self._room(node["Resources"]))}
        self._nodes |= found
        return list(found)

    def submit(self, shard: Shard, slot: str) -> None:
        """Place an actor on the slot's node."""
        pinned = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        resources = {"num_gpus": 1} if self._gpu else {"num_gpus": 0, "resources": {RESOURCE: 1}}
        made = self._ray.remote(Post).options(
            **resources,
            num_cpus=self._options.cpus,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=pinned(self._nodes[slot], soft=False),
        )
        actor = made.remote()
        self._actors[shard.number] = actor
        sent = sealed.dump(msgspec.structs.replace(shard, run=elsewhere(shard.run, self._cargo)))
        self._asked[actor.start.remote(sent, sealed.dump(self._cargo), [self._sent])] = shard.number

    def news(self, timeout: float) -> Iterator[tuple[int, bytes | Lost]]:
        """What the actors were told by their programs. One whose node is gone does not answer, and is told as lost."""
        if not self._asked:
            time.sleep(timeout)
            return
        came, _ = self._ray.wait(list(self._asked), num_returns=1, timeout=timeout)
        more, _ = self._ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0) if came else ([], [])
        for asked in more or came:
            number = self._asked.pop(asked)
            try:
                lines, gone = self._ray.get(asked)
            except self._ray.exceptions.RayError as error:
                self._ray.kill(self._actors.pop(number))
                yield number, Lost(reason(error))
                continue
            yield from ((number, line) for line in lines)
            if gone is None:
                self._asked[self._actors[number].lines.remote(_LISTEN)] = number
            else:
                self._put_away(number)
                yield number, Lost(gone)

    def cancel(self) -> None:
        """End the programs, then the actors that ran them."""
        actors, self._actors = self._actors, {}
        self._asked.clear()
        if not actors:
            return
        ending = [actor.end.remote(_ORDERLY) for actor in actors.values()]
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.wait(ending, num_returns=len(ending), timeout=_ORDERLY + 5)
        for actor in actors.values():
            self._ray.kill(actor)

    # ------------------------------------------------------------ what is known of it

    @property
    def _where(self) -> str:
        return f"--executor {SCHEME}://{self._address}" if self._address else f"--executor {SCHEME}"

    def _room(self, resources: Mapping[str, float]) -> int:
        """Shards that a node may run at a time."""
        rooms = [resources.get("GPU" if self._gpu else RESOURCE, 0.0)]
        rooms += [resources.get("CPU", 0.0) / self._options.cpus] if self._options.cpus else []
        return int(min(rooms))

    def _no_slot(self) -> str:
        labels = self._options.labels
        seen = sorted({node.get("Labels", {}).get(_GPU_LABEL, "none") for node in self._ray.nodes() if node["Alive"]})
        kind = "a GPU" if self._gpu else f"the resource {RESOURCE!r} (ray start --resources='{{\"{RESOURCE}\": 1}}')"
        which = f" and {', '.join(f'{name}={value}' for name, value in labels.items())}" if labels else ""
        return f"no node has {kind}{which}; models of GPUs: {', '.join(seen)}"

    def _put_away(self, number: int) -> None:
        """A shard's program has ended: its logs come here, and its actor goes."""
        actor = self._actors.pop(number)
        with contextlib.suppress(self._ray.exceptions.RayError, OSError):
            for name, text in self._ray.get(actor.logs.remote(), timeout=_ORDERLY).items():
                file = self._logs / f"shard-{number}" / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(text)
            self._ray.wait([actor.end.remote(0.0)], timeout=_ORDERLY)
        self._ray.kill(actor)


class Post:
    """On a node: a shard's program, started and listened to. What goes wrong is an answer."""

    def __init__(self) -> None:
        self._landing: Landing | None = None

    def start(self, shard: bytes, cargo: bytes, bundle: list[Any]) -> tuple[list[bytes], str | None]:
        """No line yet, and why the program could not be started."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # Ray's are started with it blocked
        try:
            known = msgspec.json.decode(cargo, type=Cargo)
            self._landing = Landing(read_shard(shard), known, lambda: ray_itself().get(bundle[0]), _environment())
        except (AbprofError, ValueError) as error:
            return [], error.line if isinstance(error, AbprofError) else str(error)
        return [], None

    def lines(self, seconds: float) -> tuple[list[bytes], str | None]:
        """See Landing."""
        return self._landing.lines(seconds) if self._landing else ([], "not started")

    def logs(self) -> dict[str, bytes]:
        """See Landing."""
        return self._landing.logs() if self._landing else {}

    def end(self, grace: float) -> None:
        """See Landing."""
        if self._landing:
            self._landing.end(grace)


def _environment() -> dict[str, str]:
    """This node's, as it was started: Ray sets OMP_NUM_THREADS and others, which a build or a kernel would be another by."""
    import psutil

    given = psutil.Process().parent().environ()
    own = {name: value for name, value in given.items() if not name.startswith("RAY_")}
    jemalloc = own.get("LD_PRELOAD", "")
    if "libjemalloc" in jemalloc and "ray" in jemalloc:  # its own servers'
        del own["LD_PRELOAD"]
    devices = os.environ.get("CUDA_VISIBLE_DEVICES")
    return {**own, **({"CUDA_VISIBLE_DEVICES": devices, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if devices else {})}
