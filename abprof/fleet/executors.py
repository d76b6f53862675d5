"""The executors that `--executor` names, and that of this host: a shard worker for each device that the run holds."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec

from abprof import sides
from abprof.builds import environment
from abprof.fleet.messages import IDLE, Ended, Executor, Lost, Shard, read_news
from abprof.measure import Plan, RunContext
from abprof.records.errors import AbprofError
from abprof.store import Record
from abprof.system import checksummed as sealed
from abprof.system import processes as proc
from abprof.system.files import refusals
from abprof.system.processes import Program, WorkerDied


def cluster_of(place: RunContext, plan: Plan, record: Record) -> contextlib.AbstractContextManager[Executor | None]:
    """The cluster that --executor names; None for a run on this host. Raises AbprofError for invalid options."""
    kind, options = place.options.executor.partition(":")[0], executor_options(place)
    if not kind:
        return contextlib.nullcontext()
    return _slurm(place, record, options) if kind == "slurm" else _ray(place, plan, record, options)


def executor_options(place: RunContext) -> Any:
    """The options of the run's executor, None without one. Raises AbprofError for invalid ones, naming their line of abprof.toml."""
    kind, given = place.options.executor.partition(":")[0], place.options.executor_options
    read_options: Callable[[Mapping[str, str]], Any]
    if kind == "slurm":
        from abprof.fleet import slurm

        read_options = slurm.read_options
    elif kind == "ray":
        from abprof.fleet import ray

        read_options = ray.read_options
    else:
        return None
    try:
        return read_options(given)
    except AbprofError:
        for name, value in place.file.options_of(kind).items():
            if given[name] == value:  # not overridden by --executor-option
                try:
                    read_options({name: value})
                except AbprofError as error:
                    where = place.file.at(f"executor.{kind}.{name}")
                    raise AbprofError(error.what, where=where, advice=error.advice) from None
        raise


def pool_of(place: RunContext, plan: Plan, record: Record) -> Executor:
    """The executor of this host's own devices."""
    folder = plan.factory.scratch.parent / "shards"  # goes with the run's worktrees
    return LocalPool(place, record.folder.logs, folder)


def _slurm(place: RunContext, record: Record, options: Any) -> Executor:
    from abprof.fleet.slurm import WHERE, SlurmExecutor

    if place.device.kind == "cpu" and options.gres:
        what = f"jobs with gres={options.gres} are to measure a GPU, and this machine has none to plan and build with"
        advice = "start abprof on a node with one (srun --gres=gpu:1 --pty abprof ...); gres= measures processors"
        raise AbprofError(what, where=WHERE, advice=advice)
    _, secrets = environment.clean(os.environ, "user", place.file.environment.allow)
    here = {*secrets, "CUDA_VISIBLE_DEVICES"}  # Slurm chooses the GPU there
    names = sorted(name for name in os.environ if name not in here and re.fullmatch(r"[A-Za-z_]\w*", name))
    return SlurmExecutor(options, Path(place.repository.path), record.folder.logs, names, record.view.say)


def _ray(place: RunContext, plan: Plan, record: Record, options: Any) -> Executor:
    from abprof.fleet import bundle
    from abprof.fleet.ray import RayExecutor

    file = plan.factory.scratch / "bundle"
    workloads = Path(next(iter(plan.factory.workloads.values()))).parent
    packed = bundle.pack(list(plan.checkouts.values()), workloads, file)
    address = place.options.executor.partition("://")[2] or "auto"
    return RayExecutor(
        address, options, gpu=place.device.kind == "cuda", bundle=packed, file=file, logs=record.folder.logs
    )


# ---------------------------------------------------------------- this host's own devices

_CLEANUP = 15.0  # seconds that workers have to clean up
_ENDED = b'{"type":"ended"'


@dataclass
class _Worker:
    """A slot's shard worker."""

    program: Program
    shard: int | None  # what it measures now
    idle: float = 0.0  # time.monotonic() at the end of its last shard

    @property
    def free(self) -> bool:
        """Whether it can take a shard: it ends by itself after IDLE seconds."""
        return self.shard is None and self.program.gone is None and time.monotonic() - self.idle < IDLE / 2


class LocalPool:
    """An `Executor`. The run's own process holds the devices' leases."""

    lasting = True

    def __init__(self, place: RunContext, logs: Path, folder: Path) -> None:
        """`folder` will hold the shards' files; it lies in the run's folder of worktrees, which `sweep` finds."""
        self._place, self._logs, self._folder = place, logs, folder
        self._killed = False  # whether a worker had no time to remove its worktrees
        self._workers: dict[str, _Worker] = {}  # by slot
        self._not_started: dict[int, str] = {}  # shard -> why its program could not be started

    def __enter__(self) -> Self:
        with refusals(self._folder):
            self._folder.mkdir()
        return self

    def __exit__(self, *error: object) -> None:
        self.cancel()
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._killed:
            sides.sweep(self._place.cache)

    def slots(self) -> Sequence[str]:
        return [device.lease for device in self._place.devices]

    def submit(self, shard: Shard, slot: str) -> None:
        logs = self._logs / f"shard-{shard.number}"
        logs.mkdir(parents=True, exist_ok=True)
        here = {"repository": str(self._place.repository.path), "logs": str(logs), "cpus": self._cpus(slot)}
        placed = msgspec.structs.replace(shard, device=slot, held=True, **here)
        file = self._folder / f"{shard.number}.json"
        file.write_bytes(sealed.text(placed))
        worker = self._workers.get(slot)
        if worker and worker.free:
            worker.shard = shard.number
            worker.program.say(os.fsencode(file))
            return
        if worker:
            worker.program.ask_to_end()
            self._end(slot, _CLEANUP)
        safe = ["-P"] if sys.flags.safe_path else []
        argv = [sys.executable, *safe, "-m", "abprof.fleet", str(file), "--with", str(os.getpid()), "--more"]
        try:
            program = Program(argv, env=os.environ, log=logs / "program.log", listens=True)
            self._workers[slot] = _Worker(program, shard.number)
        except WorkerDied as died:
            self._not_started[shard.number] = died.reason

    def _cpus(self, slot: str) -> tuple[int, ...]:
        """The slot's own processors, in equal parts: shards do not disturb each other. () where there are too few."""
        slots, every = list(self.slots()), sorted(os.sched_getaffinity(0))
        each, at = len(every) // len(slots), slots.index(slot)
        return tuple(every[each * at : each * (at + 1)])

    def news(self, timeout: float) -> Iterator[tuple[int, bytes | Lost]]:
        while self._not_started:
            number, reason = self._not_started.popitem()
            yield number, Lost(reason)
        with selectors.DefaultSelector() as waiting:
            for worker in self._workers.values():
                waiting.register(worker.program, selectors.EVENT_READ)
            waiting.select(min(timeout, proc.ALIVE_EVERY))
        for slot, worker in list(self._workers.items()):
            yield from self._heard(slot, worker)

    def _heard(self, slot: str, worker: _Worker) -> Iterator[tuple[int, bytes | Lost]]:
        """Yield a worker's lines, and `Lost` when its shard is over."""
        gone = worker.program.gone  # before its last lines are taken
        for line in worker.program.lines():
            if worker.shard is None:
                continue
            number, ended = worker.shard, _ended(line)
            if ended and ended.shard not in (0, number):  # repeated, of the shard before
                continue
            yield number, line
            if gone is None and ended and ended.why == "done":
                worker.shard, worker.idle = None, time.monotonic()
                yield number, Lost("done")
        if gone is not None:
            self._end(slot)
            if worker.shard is not None:
                yield worker.shard, Lost(gone)

    def _end(self, slot: str, grace: float = 0.0) -> None:
        program = self._workers.pop(slot).program
        program.end(grace)
        self._killed = self._killed or program.killed

    def cancel(self) -> None:
        for worker in self._workers.values():
            worker.program.ask_to_end()
        end = time.monotonic() + _CLEANUP
        for slot in list(self._workers):
            self._end(slot, max(0.0, end - time.monotonic()))


def _ended(line: bytes) -> Ended | None:
    """The shard's last news. After "done" the worker waits for another shard, after any other it exits."""
    if not line.startswith(_ENDED):
        return None
    with contextlib.suppress(ValueError):
        news = read_news(line)
        return news if isinstance(news, Ended) else None
    return None
