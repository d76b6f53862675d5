"""Run the worker processes of one kernel package in one epoch: one per side, one for the control, one for the peers."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from abprof.builds import WorkerFactory, WorkerSpec
from abprof.measure import turns
from abprof.records import PEERS, STANDING_IN, Kernel, Proof
from abprof.records import messages as wire
from abprof.records.base import UNREADABLE, untrusted
from abprof.records.errors import AbprofError
from abprof.system import doorway
from abprof.system.processes import LOG_LIMIT, Worker, WorkerDied, WorkerFault, WorkerHung, end_all, how_ended

_MOST_STARTS = 2  # failed starts of a worker in a row after which the epoch goes on without the worker


class WorkerPool:
    """The workers of one epoch. They start when a `with` block begins, or at `begin`, and end when the block ends."""

    def __init__(self, factory: WorkerFactory, specs: Sequence[WorkerSpec], epoch: int) -> None:
        self.factory = factory
        self._specs = {spec.id: spec for spec in specs}
        self._epoch, self._servers = epoch, 0  # servers of each worker
        self._workers: dict[str, Worker] = {}
        self._starting: list[str] | None = None  # ids of workers that have not answered `start`; None before `begin`
        self.start_order = tuple(turns.ranked(tuple(self._specs), epoch - 1))  # the order decides the memory
        self._proved: dict[str, wire.Proved] = {}  # worker id -> reply to the last `prove`
        self._failed_starts: dict[str, list[WorkerDied]] = {id: [] for id in self._specs}  # since the last good start

    def begin(self) -> WorkerPool:
        """Start the workers without waiting for their devices, which takes most of a start."""
        try:
            # A forked worker and a fresh one may differ in speed, as may an import before and after the fork: without a
            # server for each worker, all start fresh, and all sides import after the fork if one has to.
            servers = {id: self.factory.servers(spec, self._epoch) for id, spec in self._specs.items()}
            sides = [count for id, count in servers.items() if id != PEERS]
            self._servers = min(sides, default=1) if all(servers.values()) else 0
            self._starting = [id for id in self.start_order if self._begin(id)]
            self.preload()  # after the workers, which would wait for these forks
        except BaseException:  # ^C
            self.dismiss()
            raise
        return self

    def preload(self) -> None:
        """Start further fork servers, without waiting for their imports."""
        for spec in self._specs.values():
            self.factory.preload(spec, self._epoch)

    def serves(self, other: WorkerPool) -> bool:
        """Whether this pool has all workers of `other`, for the same epoch."""
        return self._epoch == other._epoch and other._specs.items() <= self._specs.items()

    def wait(self) -> None:
        """Wait until the workers that `begin` started have their devices."""
        while self._starting:
            self._receive_ready(self._starting.pop(0))

    def __enter__(self) -> WorkerPool:
        if self._starting is None:
            self.begin()
        try:
            self.wait()
            if self.factory.pauses and "base" not in self._workers and (failed := self._failed_starts.get("base")):
                advice = f"read {self.factory.logs / 'forks.log'}"
                raise AbprofError(f"base's worker: {failed[-1].reason}", where="--untrusted", advice=advice)
        except BaseException:  # ^C
            self.dismiss()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        if exc == (None, None, None):
            self.factory.clear_judge()
        self.dismiss()

    def dismiss(self) -> None:
        """End every worker."""
        end_all(self._workers.values())

    def _begin(self, id: str) -> bool:
        """Start the worker without waiting for its reply. Return False if the start failed."""
        spec, factory = self._specs[id], self.factory
        epoch = self._epoch if self._servers or factory.pauses else None
        try:
            self._workers[id] = factory.worker(
                spec, factory.logs / self.log_name(id), epoch=epoch, imported=self._servers > 1
            )
            self._workers[id].send(factory.start(id, factory.mount(spec), self._epoch))
        except WorkerDied as died:
            self._failed_starts[id].append(died)
            return False
        return True

    def _receive_ready(self, id: str) -> bool:
        worker = self._workers[id]
        try:
            worker.receive(wire.Start(self.factory.device, id), self.factory.timeout)
        except WorkerDied as died:
            self._failed_starts[id].append(died)
            return False
        except WorkerFault as fault:
            worker.kill()
            self._failed_starts[id].append(WorkerDied(fault.reason))
            return False
        self._failed_starts[id].clear()
        return True

    def warm(self, opens: Mapping[str, wire.Open]) -> list[str]:
        """Prepare a cell in several workers at once (`opens`: worker id -> request). Return ids of workers that hung.

        The workers compile in parallel. Other errors are ignored: they will be recorded when the cell is measured.
        """
        hung = [id for id, reply in self._ask_all(opens).items() if isinstance(reply, WorkerHung)]
        self.close()
        return hung

    def log_name(self, id: str) -> str:
        """Return the name of the worker's log file."""
        return f"worker-{id}-{self._specs[id].package.name}.log"

    def worker(self, id: str) -> Worker:
        """Return the worker, started again if it has died. Raises WorkerDied if the worker cannot be started."""
        worker = self._workers.get(id)
        if worker is not None and worker.alive:
            return worker
        failed = self._failed_starts[id]
        given_up = len(failed) >= _MOST_STARTS or (failed and isinstance(failed[-1], WorkerHung))
        if given_up or not (self._begin(id) and self._receive_ready(id)):
            raise failed[-1]
        return self._workers[id]

    def workers(self) -> dict[str, Worker]:
        """Return worker id -> each living worker."""
        return {id: worker for id, worker in self._workers.items() if worker.alive}

    def retire(self, id: str) -> None:
        """Kill a worker that may be in a bad state. The next call of `worker` starts a new one."""
        worker = self._workers.get(id)
        if worker is not None:
            worker.kill()

    def judge(self) -> Worker:
        """Return the worker that checks outputs and loads no code under test. Raises WorkerDied or WorkerFault."""
        return self.factory.judge()

    def close(self) -> None:
        """Free the current cell's inputs in every living worker. Kill each worker that fails to do so."""
        for id, reply in self._ask_all(wire.Close()).items():
            if isinstance(reply, Exception):
                self._workers[id].kill()

    def pid(self, id: str) -> int | None:
        """Return the worker's process id, or None if the worker is dead."""
        worker = self._workers.get(id)
        return worker.pid if worker is not None and worker.alive else None

    def prove(self) -> dict[str, wire.Proved]:
        """Check that each living worker has loaded only allowed files. A worker without an answer counts as failed."""
        proofs: dict[str, wire.Proved] = {}
        for id, reply in self._ask_all(wire.Prove()).items():
            if isinstance(reply, WorkerDied | WorkerFault):
                proofs[id] = wire.Proved(False, f"the worker did not list its loaded files: {reply.reason}", [])
                continue
            built = {a.path: a.sha256 for a in self._specs[id].build.artefacts if a.path}
            other = [a.path for a in reply.artefacts if built.get(a.path, a.sha256) != a.sha256]
            wrong = {"ok": False, "reason": f"{other[0]} is not the file that was built"} if other else {}
            proofs[id] = dataclasses.replace(reply, **wrong)
        self._proved = proofs
        return proofs

    def _ask_all(self, requests: Any) -> dict[str, Any]:
        """Send requests to all living workers, then wait for the replies. Return worker id -> reply or exception.

        `requests`: one request for all workers, or a mapping from worker id to request.
        """
        replies: dict[str, Any] = {}
        each = requests if isinstance(requests, Mapping) else dict.fromkeys(self._workers, requests)
        living = [(id, worker) for id, worker in self._workers.items() if worker.alive and id in each]
        for id, worker in living:
            try:
                worker.send(each[id])
            except WorkerDied as died:
                replies[id] = died
        for id, worker in living:
            if id not in replies:
                try:
                    replies[id] = worker.receive(each[id], self.factory.timeout)
                except (WorkerDied, WorkerFault) as error:
                    replies[id] = error
        return replies

    def proofs(self) -> Iterator[Proof]:
        """Call `prove`, and yield a record of the result for each living worker except the peers' worker."""
        for id, proved in self.prove().items():
            if self._workers[id].alive and id != PEERS:
                yield Proof(
                    epoch=self._epoch,
                    side=id,
                    kernel=self._specs[id].package.name,
                    ok=proved.ok,
                    reason=proved.reason,
                    artefacts=tuple(proved.artefacts),
                    forked=self._workers[id].forked,
                )

    def kernels(self) -> Iterator[Kernel]:
        """Yield each kernel that Triton had compiled in a side's worker when `prove` was last called."""
        for id, proved in self._proved.items():
            if id not in STANDING_IN:
                of = {"side": id, "package": self._specs[id].package.name, "kind": "triton"}
                yield from (msgspec.convert(dataclasses.asdict(made) | of, Kernel) for made in proved.kernels)


# ---------------------------------------------------------------- for profilers that start the process themselves


@dataclass(frozen=True)
class Foreground:
    """The command of a worker process that a profiler starts, and the file to which the process writes its outcome."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    result: Path

    def outcome(self, code: int) -> wire.Finished:
        """Return the outcome in the file `result`, or a crash with exit code `code` if the file cannot be read."""
        with contextlib.suppress(OSError, OverflowError, *UNREADABLE):
            return msgspec.convert(untrusted(doorway.read(self.result, LOG_LIMIT)), wire.Finished)
        return wire.Finished("crash", how_ended(code))
