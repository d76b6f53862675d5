"""Executor of a Ray cluster: a task for each shard, with one GPU, which runs the shard worker.

Nothing is retried (`max_retries=0`): half a pair that is run again silently is no pair.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from abprof.fleet.executors import Executor
from abprof.fleet.messages import DEVICE, Shard
from abprof.measure import RunContext
from abprof.records.errors import AbprofError
from abprof.system.processes import how_ended

_GPU_LABEL = "ray.io/accelerator-type"
_RESOURCE = "abprof"  # resource of nodes without GPUs: one for each shard that they may run at a time
_ORDERLY = 20.0  # seconds that shard workers have to clean up


class RayExecutor(Executor):
    """Slots are places on nodes: Ray chooses the GPU."""

    def __init__(self, place: RunContext, logs: Path, say: Callable[[str], None]) -> None:
        super().__init__(place, logs, say)
        self._gpu = place.device.kind == "cuda"
        self._tasks: dict[Any, int] = {}  # reference of a result -> shard
        self._nodes: dict[str, str] = {}  # slot -> node id

    def open(self) -> None:
        """Raises AbprofError if there is no cluster, or none of its nodes fits."""
        where = f"--executor {self.place.options.executor}"
        # Ray reads a cluster's token at import from memory that `scrub_secrets` wiped: put it back.
        os.environ |= {name: value for name, value in os.environ.items() if name.startswith("RAY_")}
        try:
            import ray
        except ImportError as error:
            what = f"Ray is not installed ({error})"
            raise AbprofError(what, where="--executor ray", advice="pip install 'abprof[ray]'") from error
        address = self.place.options.executor.partition("://")[2] or "auto"
        handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            ray.init(address if address == "auto" else f"ray://{address}", log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
            advice = "HOST:PORT is that of its client server (10001), auto a cluster of this machine"
            raise AbprofError(f"no cluster: {_last_line(error)}", where=where, advice=advice) from error
        finally:
            for number, handler in handlers.items():  # ray.init replaces SIGTERM's
                signal.signal(number, handler)
        self._ray: Any = ray
        if not self.slots():
            ray.shutdown()
            kind = (
                "a GPU" if self._gpu else f"the resource {_RESOURCE!r} (ray start --resources='{{\"{_RESOURCE}\": 1}}')"
            )
            model = f" of model {self.options.gpu}" if self.options.gpu else ""
            raise AbprofError(f"no node has {kind}{model}", where=where)

    def close(self) -> None:
        self._ray.shutdown()

    def slots(self) -> Sequence[str]:
        """NODE/PLACE for each shard that living nodes of the GPU's model may run at a time."""
        for node in self._ray.nodes():
            model, has = node.get("Labels", {}).get(_GPU_LABEL), node["Resources"]
            if node["Alive"] and self.options.gpu in ("", model):
                room = min(has.get("GPU" if self._gpu else _RESOURCE, 0), has.get("CPU", 0) / self.options.cpus)
                name = f"{node['NodeManagerHostname']}-{node['NodeID'][:6]}"
                self._nodes |= {f"{name}/{place}": node["NodeID"] for place in range(int(room))}
        return list(self._nodes)

    def start(self, shard: Shard, slot: str, argv: Sequence[str], log: Path) -> None:
        def run(argv: Sequence[str], env: Mapping[str, str], names: Sequence[str], log: str) -> int:
            """On the node, whose Ray needs no abprof."""
            import subprocess

            own = {name: os.environ[name] for name in names if name in os.environ}
            argv = [*argv, "--with", str(os.getpid())]
            with open(log, "ab") as out:
                return subprocess.Popen(argv, env={**env, **own}, stdout=out, stderr=out, start_new_session=True).wait()

        pinned = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        task = self._ray.remote(run).options(
            **({"num_gpus": 1} if self._gpu else {"num_gpus": 0, "resources": {_RESOURCE: 1}}),
            num_cpus=self.options.cpus,
            max_retries=0,
            scheduling_strategy=pinned(self._nodes[slot], soft=False),
        )
        env = {name: value for name, value in self.environment().items() if not name.startswith("RAY_")}
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        self._tasks[task.remote(list(argv), env, [DEVICE, "CUDA_VISIBLE_DEVICES"], str(log))] = shard.number

    def gone(self) -> dict[int, str]:
        if not self._tasks:
            return {}
        found = {}
        for task in self._ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=0)[0]:
            number = self._tasks.pop(task)
            try:
                found[number] = how_ended(self._ray.get(task))
            except self._ray.exceptions.RayError as error:
                found[number] = _last_line(error)
        return found

    def end(self) -> None:
        """Shard workers end because the coordinator's file is gone; then the tasks of those that do not."""
        if self._tasks:
            self._ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=_ORDERLY)
        while self._tasks:
            self._ray.cancel(self._tasks.popitem()[0], force=True)


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[-1][:300]
