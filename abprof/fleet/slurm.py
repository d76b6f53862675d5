"""Executor of Slurm, through submitit: shards that are submitted together are one array of jobs.

The state of jobs comes from squeue, which every site has, and not from sacct, which needs accounting.

A job runs `python -m abprof.fleet.slurm FOLDER NAME`, which measures the shard in FOLDER/NAME.json and appends its news to
FOLDER/NAME.jsonl, in a folder that all nodes see. It measures nothing if Slurm queues it a second time (after a preemption, or the
loss of a node): that shard counts as lost, and the rest of it is submitted anew. It ends once abprof has been silent for ten
minutes, so that killing abprof on the login node leaves no job behind.

Two machines agree on a file of a network file system only if one opens it after the other has closed or flushed it: so every look
opens the file again, and a line counts once its newline is there.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import msgspec

from abprof.fleet.messages import DEVICE, Lost, Shard, read_shard
from abprof.records import Record
from abprof.records.errors import AbprofError
from abprof.records.quantities import seconds
from abprof.system import checksummed as sealed
from abprof.system import files
from abprof.system import processes as proc
from abprof.system.files import refusals

WHERE = "--executor slurm"
_ADVICE = "docs/EXECUTORS.md has every option"
_LOOKS_EVERY = 0.5  # seconds between looks into the shared folder
_ASKS_EVERY = 2.0  # seconds between calls of squeue: the controller serves the whole site
_ANSWERS_WITHIN = 60.0  # seconds
_LISTED_WITHIN = 30.0  # seconds after which a new job must be listed
_GONE_WITHIN = 120.0  # seconds in which a cancelled job ends: Slurm's KillWait is 30 by default
_OVERHEAD = 1800.0  # seconds a job may take besides its shard's budget: building, starting, ending
_ORDERLY = "COMPLETED"
_OVER = frozenset(
    ["BOOT_FAIL", "CANCELLED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"]
)
_COLUMNS = {"JobArrayID": 40, "State": 24, "RestartCnt": 12, "NodeList": 64, "Reason": 64}


class Options(Record, frozen=True, kw_only=True):
    """What each job requests. "" and None leave it to the site's defaults."""

    gres: str = "gpu:1"  # one whole GPU a shard; "" on machines without
    constraint: str = ""  # features of a node: "h200", "h100|h200"
    partition: str = ""
    account: str = ""
    qos: str = ""
    reservation: str = ""
    nodelist: str = ""
    exclude: str = ""
    exclusive: bool = False  # no other job on the node
    cpus: int | None = None
    memory: str = ""  # "64G"
    time: str = ""  # a job's limit, "2h"; "": its shard's budget and half an hour
    parallel: int = 8  # shards at once


def read_options(given: Mapping[str, Any], where: str = WHERE) -> Options:
    """Options from the words of a command line or of abprof.toml. Raises AbprofError."""
    try:
        found = msgspec.convert(dict(given), Options, strict=False)
    except msgspec.ValidationError as error:
        what = str(error).replace("Object contains ", "")
        raise AbprofError(what, where=where, advice=f"Slurm has {', '.join(Options.__struct_fields__)}") from None
    for name, value in msgspec.structs.asdict(found).items():
        # Each becomes a line of a batch script, which a shell reads too.
        if isinstance(value, str) and not re.fullmatch(r"[\x20-\x7e]*", value):
            raise AbprofError(f"invalid job option {value!r}", where=f"{where}, {name}", advice=_ADVICE)
    if found.parallel < 1 or (found.cpus is not None and found.cpus < 1):
        raise AbprofError("parallel and cpus must be 1 or more", where=where)
    if found.time:
        seconds(found.time, f"{where}, time")
    return found


@dataclass(frozen=True)
class JobState:
    """A job as squeue lists it."""

    state: str
    restarts: int
    node: str
    reason: str

    @property
    def over(self) -> str:
        """Why no more news of it will come, "" while some may."""
        if self.restarts:
            return "queued a second time, after a preemption, a requeue or the loss of its node"
        if self.state == _ORDERLY:
            return _ORDERLY
        return f"{self.state} on {self.node or 'no node'}" if self.state in _OVER else ""

    @property
    def living(self) -> bool:
        """Whether it waits, runs or ends."""
        return self.state not in {*_OVER, _ORDERLY}


@dataclass
class _Job:
    """A submitted shard."""

    box: Mailbox
    limit: float  # seconds
    id: str = ""
    since: float = 0.0


class SlurmExecutor:
    """An `Executor`. Its folder is removed at the end, unless a shard was lost: then it has the logs."""

    lasting = False  # Slurm chooses the GPU of each shard

    def __init__(
        self, options: Options, repository: Path, logs: Path, names: Sequence[str], say: Callable[[str], None]
    ) -> None:
        """`repository` and `logs` are folders that the nodes see too; `names`: variables that jobs get."""
        self._options, self._repository, self._logs, self._names, self._say = options, repository, logs, names, say
        self._name = f"abprof-{uuid.uuid4().hex[:12]}"  # of all jobs of this run, and of no other
        self._folder = logs.absolute() / self._name
        self._jobs: dict[int, _Job] = {}  # shard -> its job, while news is expected
        self._new: list[int] = []
        self._arrays: set[str] = set()
        self._asked_at = 0.0
        self._reasons: set[str] = set()  # to wait, that were shown
        self._lost = False

    def __enter__(self) -> Self:
        """Raises AbprofError if Slurm or submitit is missing, or Slurm would refuse such a job."""
        for program in ("sbatch", "srun", "squeue", "scancel"):
            if not shutil.which(program):
                advice = "run it where jobs are submitted from"
                raise AbprofError(f"{program} is not on PATH", where=WHERE, advice=advice)
        try:
            import submitit
        except ImportError:
            raise AbprofError("submitit is not installed", where=WHERE, advice="pip install 'abprof[slurm]'") from None
        self._queue = submitit.SlurmExecutor(folder=self._folder / "jobs")
        with refusals(self._folder):
            self._folder.mkdir(parents=True)
        self._check_accepted()
        return self

    def __exit__(self, *error: object) -> None:
        self.cancel()
        if not self._lost:
            shutil.rmtree(self._folder, ignore_errors=True)

    def slots(self) -> Sequence[str]:
        """As many as may run at once."""
        return [f"slurm-{place}" for place in range(self._options.parallel)]

    def submit(self, shard: Shard, slot: str) -> None:
        """Write the shard. The next `news` submits all new ones together."""
        del slot
        box = Mailbox(self._folder, str(shard.number))
        logs = str(self._logs / f"shard-{shard.number}")
        there = msgspec.structs.replace(shard, device="", held=False, repository=str(self._repository), logs=logs)
        box.post(sealed.text(there))
        limit = seconds(self._options.time, WHERE) if self._options.time else shard.budget + _OVERHEAD
        self._jobs[shard.number] = _Job(box, limit)
        self._new.append(shard.number)

    def news(self, timeout: float) -> Iterator[tuple[int, bytes | Lost]]:
        """See `Executor`."""
        (self._folder / ALIVE).touch()
        yield from self._submit_new()
        end = time.monotonic() + timeout
        while True:
            found = list(self._look())
            if found or time.monotonic() >= end:
                yield from found
                return
            time.sleep(max(0.0, min(_LOOKS_EVERY, end - time.monotonic())))

    def cancel(self) -> None:
        """End every job, and wait until Slurm lists none as living."""
        self._jobs.clear()
        self._new.clear()
        end = time.monotonic() + _GONE_WITHIN
        while self._arrays:
            _cancel(sorted(self._arrays))
            now = self._listed()
            left = None if now is None else sum(job.living for job in now.values())
            if left == 0:
                self._arrays.clear()
            elif time.monotonic() > end:
                what = "squeue does not answer" if left is None else f"{left} jobs did not end"
                self._say(f"Slurm: {what}; scancel --name={self._name} ends them")
                self._arrays.clear()
            else:
                time.sleep(_LOOKS_EVERY)

    # ---------------------------------------------------------------- submitting

    def _parameters(self, minutes: int) -> dict[str, Any]:
        """Submitit's parameters of a job of one task; what it has no word for is passed to sbatch."""
        options = self._options
        requests = {
            **{name: getattr(options, name) for name in ("gres", "constraint", "partition", "account", "qos")},
            **{name: getattr(options, name) for name in ("nodelist", "exclude", "exclusive")},
            "cpus_per_task": options.cpus,
            "mem": options.memory,
        }
        more = {"chdir": str(self._folder), "export": ",".join(self._names) or "NIL", "ntasks": 1}
        more |= {"reservation": options.reservation} if options.reservation else {}
        return {
            **{key: value for key, value in requests.items() if value},
            "job_name": self._name,
            "time": minutes,
            "array_parallelism": options.parallel,
            "wckey": None,  # submitit sets one, which a site that checks them refuses
            "additional_parameters": more,
            # No step in the job: since 22.05 srun does not pass its cpus on, and steps are sent a signal before the limit.
            "use_srun": False,
        }

    def _check_accepted(self) -> None:
        """Raises AbprofError if Slurm says that it would refuse a job with these parameters."""
        parameters = self._parameters(60)
        flags = {**parameters, **parameters["additional_parameters"]}
        for own in ("additional_parameters", "array_parallelism", "use_srun"):
            del flags[own]
        words = [
            f"--{key.replace('_', '-')}" if value is True else f"--{key.replace('_', '-')}={value}"
            for key, value in flags.items()
            if value is not None
        ]
        accepted, why = proc.tried(["sbatch", "--test-only", *words, "--wrap=true"], timeout=_ANSWERS_WITHIN)
        if not accepted:
            raise AbprofError(f"Slurm would refuse such a job: {why}", where=WHERE, advice=_ADVICE)

    def _submit_new(self) -> Iterator[tuple[int, Lost]]:
        """Submit all new shards as one array."""
        from submitit.core.utils import FailedJobError, FailedSubmissionError
        from submitit.helpers import CommandFunction

        if not self._new:
            return
        numbers, self._new = self._new, []
        jobs = [self._jobs[number] for number in numbers]
        self._queue.update_parameters(**self._parameters(math.ceil(max(job.limit for job in jobs) / 60)))
        safe = ["-P"] if sys.flags.safe_path else []
        program = [sys.executable, *safe, "-m", "abprof.fleet.slurm", str(self._folder)]
        try:
            with self._queue.batch():
                made = [self._queue.submit(CommandFunction([*program, job.box.name], verbose=False)) for job in jobs]
            ids = [str(one.job_id) for one in made]
        except (FailedJobError, FailedSubmissionError) as error:
            reason = f"Slurm refused the job: {' '.join(str(error).split())}"
            for number in numbers:
                del self._jobs[number]
                yield number, Lost(reason)
            return
        for job, id in zip(jobs, ids, strict=True):
            job.id, job.since = id, time.monotonic()
            self._arrays.add(id.partition("_")[0])
        self._say(f"Slurm: job {ids[0].partition('_')[0]} has {len(ids)} shard{'s' * (len(ids) > 1)}")

    # ---------------------------------------------------------------- news

    def _look(self) -> Iterator[tuple[int, bytes | Lost]]:
        for number, job in self._jobs.items():
            yield from ((number, line) for line in job.box.new_lines())
        if not self._jobs or time.monotonic() < self._asked_at + _ASKS_EVERY:
            return
        now = self._listed()
        self._asked_at = time.monotonic()
        if now is None:
            return
        # Each reason to wait once: with some, jobs wait for ever.
        waiting = {job.reason for job in now.values() if job.state == "PENDING"}
        for reason in waiting - {"None", "", *self._reasons}:
            self._reasons.add(reason)
            self._say(f"Slurm: shards wait ({reason})")
        for number, job in list(self._jobs.items()):
            state = now.get(job.id)
            unlisted = "Slurm does not list it" if time.monotonic() > job.since + _LISTED_WITHIN else ""
            if over := state.over if state else unlisted:
                yield from ((number, line) for line in job.box.new_lines())  # written before its end
                del self._jobs[number]
                yield number, self._gone(job, over)

    def _gone(self, job: _Job, over: str) -> Lost:
        if over == _ORDERLY:
            return Lost(f"Slurm job {job.id} has ended")
        self._lost = True
        _cancel([job.id])  # one that is queued anew must not run
        if job.box.log.exists():
            words, where = job.box.last_words(), f"log: {job.box.log}"
        else:
            words, where = "its program never began", f"does the node see {self._folder}?"
        return Lost(f"Slurm job {job.id}: {over}{f'; {words}' if words else ''} ({where})")

    def _listed(self) -> dict[str, JobState] | None:
        """This run's jobs that the controller remembers, by id; None if it does not answer."""
        columns = ",".join(f"{column}:{width}" for column, width in _COLUMNS.items())
        argv = ["squeue", "--array", "--noheader", "--states=all", f"--name={self._name}", f"--Format={columns}"]
        text = proc.output(argv, timeout=_ANSWERS_WITHIN)
        return None if text is None else dict(map(_row, text.splitlines()))


def _row(line: str) -> tuple[str, JobState]:
    """A line of squeue: columns of fixed width."""
    cells, place = [], 0
    for width in _COLUMNS.values():
        cells.append(line[place : place + width].strip())
        place += width
    id, state, restarts, node, reason = cells
    return id, JobState(state, int(restarts) if restarts.isdigit() else 0, node, reason)


def _cancel(ids: Sequence[str]) -> None:
    """End jobs, whatever their state."""
    proc.tried(["scancel", *ids], timeout=_ANSWERS_WITHIN)


# ---------------------------------------------------------------- in the job

ALIVE = "alive"  # file that the coordinator touches as long as it looks
_ALONE_AFTER = 600.0  # seconds without a touch after which a job ends
_CHECKS_ALIVE_EVERY = 10.0


@dataclass
class Mailbox:
    """The files of one attempt of one shard in `folder`. No `name` is used twice."""

    folder: Path
    name: str
    _read: int = field(default=0, init=False)  # bytes of whole lines that were returned

    def __post_init__(self) -> None:
        self.shard = self.folder / f"{self.name}.json"
        self.lines = self.folder / f"{self.name}.jsonl"  # its news
        self.log = self.folder / f"{self.name}.log"  # everything else that the job prints

    def post(self, shard: bytes) -> None:
        """Write the shard, on disk before a job is submitted. Raises FileExistsError for a second one."""
        with self.shard.open("xb") as file:
            file.write(shard)
            file.flush()
            os.fsync(file.fileno())

    def new_lines(self) -> list[bytes]:
        """Return whole lines since the last look, without their newlines."""
        try:
            with self.lines.open("rb") as file:
                file.seek(self._read)
                whole, newline, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return []
        self._read += len(whole) + len(newline)
        return whole.split(b"\n") if newline else []

    def last_words(self) -> str:
        """Return the last non-empty line of the log, "" if there is none."""
        try:
            text = self.log.read_bytes()[-4000:].decode(errors="replace")
        except OSError:
            return ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1][:300] if lines else ""


def main(argv: list[str]) -> int:
    """Return the exit code of the shard worker."""
    folder, box = Path(argv[0]), Mailbox(Path(argv[0]), argv[1])
    _append_to(box.log, 2)
    if int(os.environ.get("SLURM_RESTART_COUNT", "0")) > 0:
        print("started a second time by the queue: the rest of this shard is submitted anew", file=sys.stderr)
        return 0
    with contextlib.suppress(OSError):  # by the clock of the folder's server
        box.log.touch()
        if box.log.stat().st_mtime - (folder / ALIVE).stat().st_mtime > _ALONE_AFTER:
            print(f"abprof was silent for {_ALONE_AFTER:.0f} s before this job: nothing is measured", file=sys.stderr)
            return 1
    _append_to(box.lines, 1)
    if DEVICE in os.environ:
        shard = msgspec.structs.replace(read_shard(box.shard.read_bytes()), device=os.environ[DEVICE])
        files.replace(box.shard, sealed.text(shard))
    threading.Thread(target=_end_when_alone, args=(folder / ALIVE,), daemon=True).start()
    from abprof.fleet.__main__ import main as measure

    return measure([str(box.shard)])


def _append_to(path: Path, descriptor: int) -> None:
    """Send what this process and its children write to `descriptor` to the end of a file."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(file, descriptor)
    os.close(file)


def _end_when_alone(alive: Path) -> None:
    """Send SIGTERM to this process once `alive` has not been touched for long, by this machine's clock alone."""
    last, since = 0.0, time.monotonic()
    while time.monotonic() - since < _ALONE_AFTER:
        time.sleep(_CHECKS_ALIVE_EVERY)
        now = last
        with contextlib.suppress(OSError):  # an unreadable folder shows no touch
            now = alive.stat().st_mtime
        if now != last:
            last, since = now, time.monotonic()
    print(f"abprof was silent for {_ALONE_AFTER:.0f} s: ended", file=sys.stderr)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
