"""Executor of Slurm: a job for each shard, which Slurm never queues a second time.

The state of jobs comes from squeue, which every site has, and not from sacct, which needs accounting. A job ends once abprof has
been silent for ten minutes, so that killing abprof on the login node leaves no job behind.
"""

from __future__ import annotations

import math
import os
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from abprof.fleet.executors import Executor, SlurmOptions
from abprof.fleet.messages import Shard
from abprof.measure import RunContext
from abprof.records.errors import AbprofError
from abprof.records.quantities import seconds
from abprof.system import processes as proc
from abprof.system.processes import WorkerDied

_WHERE = "--executor slurm"
_ASKS_EVERY = 2.0  # seconds between calls of squeue: the controller serves the whole site
_ANSWERS_WITHIN = 60.0  # seconds
_LISTED_WITHIN = 30.0  # seconds after which a new job must be listed
_GONE_WITHIN = 120.0  # seconds in which a cancelled job ends: Slurm's KillWait is 30 by default
_OVERHEAD = 1800.0  # seconds a job may take besides its shard's budget: building, starting, ending
_OVER = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED"),
    *("NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"),
}


@dataclass
class _Job:
    id: str
    since: float


class SlurmExecutor(Executor):
    """Slots are places in the queue: Slurm chooses the GPU of each shard."""

    def __init__(self, place: RunContext, logs: Path, say: Callable[[str], None]) -> None:
        super().__init__(place, logs, say)
        self._jobs: dict[int, _Job] = {}
        self._asked_at = 0.0
        self._reasons: set[str] = set()  # to wait, that were shown

    def open(self) -> None:
        """Raises AbprofError if Slurm is missing, or would refuse such a job."""
        if self.options.gres and self.place.device.kind == "cpu":
            what = f"jobs with gres={self.options.gres} are to measure a GPU, and this machine has none to plan and build with"
            advice = "start abprof on a node with one (srun --gres=gpu:1 --pty abprof ...); gres= measures processors"
            raise AbprofError(what, where=_WHERE, advice=advice)
        argv = [*self._sbatch(60.0, Path(os.devnull)), "--test-only", "--wrap=true"]
        accepted, why = proc.tried(argv, timeout=_ANSWERS_WITHIN)
        if not accepted:
            raise AbprofError(f"Slurm would refuse such a job: {why}", where=_WHERE, advice="docs/EXECUTORS.md")

    def _sbatch(self, limit: float, log: Path) -> list[str]:
        options: SlurmOptions = self.options
        given = {
            **{name: getattr(options, name) for name in ("gres", "constraint", "partition", "account", "qos")},
            **{name: getattr(options, name) for name in ("reservation", "nodelist", "exclude")},
            "cpus-per-task": options.cpus,
            "mem": options.memory,
            "time": math.ceil((seconds(options.time, _WHERE) if options.time else limit) / 60),
            "job-name": self.name,
            "chdir": self.folder,
            "export": ",".join(name for name in self.environment() if name.isidentifier()) or "NIL",
            "output": str(log).replace("%", "%%"),
            "open-mode": "append",
            "ntasks": 1,
        }
        flags = [f"--{name}={value}" for name, value in given.items() if value not in ("", None)]
        return ["sbatch", "--parsable", "--no-requeue", *flags, *(["--exclusive"] if options.exclusive else [])]

    def slots(self) -> Sequence[str]:
        return [f"slurm-{place}" for place in range(self.options.parallel)]

    def start(self, shard: Shard, slot: str, argv: Sequence[str], log: Path) -> None:  # noqa: ARG002
        script = f"--wrap=exec {shlex.join(argv)}"
        made, said = proc.tried([*self._sbatch(shard.budget + _OVERHEAD, log), script], timeout=_ANSWERS_WITHIN)
        if not made:
            raise WorkerDied(f"Slurm refused the job: {said}")
        self._jobs[shard.number] = _Job(said.strip().partition(";")[0], time.monotonic())
        self.say(f"Slurm: job {self._jobs[shard.number].id} has shard {shard.number}")

    def gone(self) -> dict[int, str]:
        if not self._jobs or time.monotonic() < self._asked_at + _ASKS_EVERY:
            return {}
        listed, self._asked_at = self._listed(), time.monotonic()
        if listed is None:
            return {}
        # Each reason to wait once: with some, jobs wait for ever.
        for reason in {why for state, _, why in listed.values() if state == "PENDING"} - {"None", "", *self._reasons}:
            self._reasons.add(reason)
            self.say(f"Slurm: shards wait ({reason})")
        found = {}
        for number, job in list(self._jobs.items()):
            state, node, _ = listed.get(job.id, ("", "", ""))
            if state in _OVER:
                found[number] = f"Slurm job {job.id}: {state} on {node or 'no node'}"
            elif not state and time.monotonic() > job.since + _LISTED_WITHIN:
                found[number] = f"Slurm does not list job {job.id}"
        for number in found:
            del self._jobs[number]
        return found

    def end(self) -> None:
        """Cancel every job, and wait until Slurm lists none as living."""
        until = time.monotonic() + _GONE_WITHIN
        while self._jobs:
            proc.tried(["scancel", f"--name={self.name}"], timeout=_ANSWERS_WITHIN)
            listed = self._listed()
            if listed is not None and all(state in _OVER for state, _, _ in listed.values()):
                self._jobs.clear()
            elif time.monotonic() > until:
                self.say(f"Slurm: jobs did not end; scancel --name={self.name} ends them")
                self._jobs.clear()
            else:
                time.sleep(0.5)

    def _listed(self) -> dict[str, tuple[str, str, str]] | None:
        """This run's jobs that the controller remembers: id -> state, node, reason; None if it does not answer."""
        argv = ["squeue", "--noheader", "--states=all", f"--name={self.name}", "--format=%i|%T|%N|%r"]
        text = proc.output(argv, timeout=_ANSWERS_WITHIN)
        if text is None:
            return None
        rows = [line.split("|") for line in text.splitlines() if line.count("|") == 3]
        return {id.strip(): (state, node, reason) for id, state, node, reason in rows}
