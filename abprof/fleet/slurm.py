"""Shards as jobs of Slurm, through submitit: those that are submitted together are one array, a shard an element of it.

A job's program writes its lines into a file of a folder that all nodes see (mailbox.py), which is followed here. What the queue
says of a job is asked of squeue, which every site has, and not of sacct, which needs accounting. A job that Slurm queues a second
time does not run again as it stands: it is told as lost, and what is left of its cells comes back in a job of its own.
"""

from __future__ import annotations

import math
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from abprof.fleet.executor import Lost
from abprof.fleet.mailbox import Mailbox, sign_of_life
from abprof.fleet.messages import Shard
from abprof.fleet.slurm_jobs import ORDERLY, WHERE, Options, Seen, cancel, listed, parameters, would_be_taken
from abprof.records.errors import AbprofError
from abprof.records.quantities import seconds
from abprof.system import checksummed as sealed
from abprof.system.files import refusals

_LOOKS_EVERY = 0.5  # seconds between looks into the shared folder
_ASKS_EVERY = 2.0  # and between questions to the controller, which everybody asks
_UNKNOWN_FOR = 30.0  # seconds in which a new job may not be listed yet
_GONE_WITHIN = 120.0  # and in which a cancelled one ends: Slurm's KillWait is 30 where a site says nothing
_BESIDES = 1800.0  # seconds a job may take besides its shard's budget: building, starting, ending


@dataclass
class Job:
    """A shard on its way: its files, and what is known of its job."""

    box: Mailbox
    limit: float  # seconds
    id: str = ""
    since: float = 0.0


class SlurmExecutor:
    """See abprof.fleet.executor.Executor. Its folder is gone after the block, unless a shard was lost: then it has the logs."""

    lasting = False  # which GPU a shard gets is Slurm's affair

    def __init__(
        self, options: Options, repository: Path, logs: Path, names: Sequence[str], say: Callable[[str], None]
    ) -> None:
        """`repository` and `logs` are folders that the nodes see too; `names` are those of the variables that jobs are given."""
        self._options, self._repository, self._logs, self._names, self._say = options, repository, logs, names, say
        self._name = f"abprof-{uuid.uuid4().hex[:12]}"  # of all jobs of this run, and of no other's
        self._folder = logs.absolute() / self._name
        self._jobs: dict[int, Job] = {}  # shard -> its job, while its lines are waited for
        self._new: list[int] = []
        self._arrays: set[str] = set()
        self._asked = 0.0
        self._told: set[str] = set()  # reasons to wait
        self._lost = False

    def __enter__(self) -> Self:
        """Raises AbprofError where there is no Slurm or no submitit, and where Slurm would take no such job."""
        for program in ("sbatch", "srun", "squeue", "scancel"):
            if not shutil.which(program):
                raise AbprofError(
                    f"{program} is not on PATH", where=WHERE, advice="run it where jobs are submitted from"
                )
        self._queue = _submitit(self._folder / "jobs")
        with refusals(self._folder):
            self._folder.mkdir(parents=True)
        would_be_taken(self._asking(60))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()
        if not self._lost:
            shutil.rmtree(self._folder, ignore_errors=True)

    def slots(self) -> Sequence[str]:
        """As many as may run at once."""
        return [f"slurm-{place}" for place in range(self._options.parallel)]

    def submit(self, shard: Shard, slot: str) -> None:
        """Lay the shard out. It is sent with all others that came before the next `news`."""
        del slot
        box = Mailbox(self._folder, str(shard.number))
        logs = str(self._logs / f"shard-{shard.number}")
        there = msgspec.structs.replace(shard, device="", held=False, repository=str(self._repository), logs=logs)
        box.post(sealed.dump(there))
        limit = seconds(self._options.time, WHERE) if self._options.time else shard.budget + _BESIDES
        self._jobs[shard.number] = Job(box, limit)
        self._new.append(shard.number)

    def news(self, timeout: float) -> Iterator[tuple[int, bytes | Lost]]:
        """See abprof.fleet.executor.Executor."""
        sign_of_life(self._folder)
        yield from self._send()
        end = time.monotonic() + timeout
        while True:
            found = list(self._look())
            if found or time.monotonic() >= end:
                yield from found
                return
            time.sleep(max(0.0, min(_LOOKS_EVERY, end - time.monotonic())))

    def cancel(self) -> None:
        """End every job, and wait until Slurm has none of them any more."""
        self._jobs.clear()
        self._new.clear()
        end = time.monotonic() + _GONE_WITHIN
        while self._arrays:
            cancel(sorted(self._arrays))
            now = listed(self._name)
            left = None if now is None else sum(seen.living for seen in now.values())
            if left == 0:
                self._arrays.clear()
            elif time.monotonic() > end:
                what = "squeue does not answer" if left is None else f"{left} jobs did not end"
                self._say(f"Slurm: {what}; scancel --name={self._name} ends them")
                self._arrays.clear()
            else:
                time.sleep(_LOOKS_EVERY)

    # ------------------------------------------------------------ what is sent

    def _asking(self, minutes: int) -> dict[str, Any]:
        return parameters(self._options, self._name, minutes, self._folder, self._names)

    def _send(self) -> Iterator[tuple[int, Lost]]:
        """One array of all that is new."""
        if not self._new:
            return
        numbers, self._new = self._new, []
        jobs = [self._jobs[number] for number in numbers]
        self._queue.update_parameters(**self._asking(math.ceil(max(job.limit for job in jobs) / 60)))
        safe = ["-P"] if sys.flags.safe_path else []
        program = [sys.executable, *safe, "-m", "abprof.fleet.batch", str(self._folder)]
        try:
            ids = _submitted(self._queue, [[*program, job.box.name] for job in jobs])
        except AbprofError as error:
            for number in numbers:
                del self._jobs[number]
                yield number, Lost(error.what)
            return
        for job, id in zip(jobs, ids, strict=True):
            job.id, job.since = id, time.monotonic()
            self._arrays.add(id.partition("_")[0])
        self._say(f"Slurm: job {ids[0].partition('_')[0]} has {len(ids)} shard{'s' * (len(ids) > 1)}")

    # ------------------------------------------------------------ what comes back

    def _look(self) -> Iterator[tuple[int, bytes | Lost]]:
        for number, job in self._jobs.items():
            yield from ((number, line) for line in job.box.new_lines())
        if not self._jobs or time.monotonic() < self._asked + _ASKS_EVERY:
            return
        now = listed(self._name)
        self._asked = time.monotonic()
        if now is None:
            return
        self._tell_waiting(now.values())
        for number, job in list(self._jobs.items()):
            over = _over(job, now.get(job.id))
            if over:
                yield from ((number, line) for line in job.box.new_lines())  # what came before its end
                del self._jobs[number]
                yield number, self._gone(job, over)

    def _gone(self, job: Job, over: str) -> Lost:
        if over == ORDERLY:
            return Lost(f"Slurm job {job.id} has ended")
        self._lost = True
        cancel([job.id])  # one that is queued anew is not to run
        if job.box.log.exists():
            words, where = job.box.last_words(), f"log: {job.box.log}"
        else:
            words, where = "its program never began", f"does the node see {self._folder}?"
        return Lost(f"Slurm job {job.id}: {over}{f'; {words}' if words else ''} ({where})")

    def _tell_waiting(self, jobs: Iterable[Seen]) -> None:
        """Why jobs wait, each reason once: with some they wait for ever."""
        for reason in {seen.reason for seen in jobs if seen.state == "PENDING"} - {"None", "", *self._told}:
            self._told.add(reason)
            self._say(f"Slurm: shards wait ({reason})")


def _over(job: Job, seen: Seen | None) -> str:
    """Why nothing more is to come from this job, "" while something may be."""
    if seen is not None:
        return seen.over
    return "Slurm knows it no more" if time.monotonic() > job.since + _UNKNOWN_FOR else ""


# ---------------------------------------------------------------- submitit


def _submitit(folder: Path) -> Any:
    """The executor of submitit. Raises AbprofError where there is none."""
    try:
        import submitit
    except ImportError:
        raise AbprofError("submitit is not installed", where=WHERE, advice="pip install 'abprof[slurm]'") from None
    return submitit.SlurmExecutor(folder=folder)


def _submitted(queue: Any, commands: Sequence[list[str]]) -> list[str]:
    """The ids of the jobs that run these commands, submitted as one array. Raises AbprofError when Slurm refuses."""
    from submitit.core.utils import FailedJobError, FailedSubmissionError
    from submitit.helpers import CommandFunction

    try:
        with queue.batch():
            jobs = [queue.submit(CommandFunction(command, verbose=False)) for command in commands]
        return [str(job.job_id) for job in jobs]
    except (FailedJobError, FailedSubmissionError) as error:
        said = " ".join(str(error).split())
        raise AbprofError(f"Slurm took no job: {said}", where=WHERE) from None
