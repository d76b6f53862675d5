"""Executors run shards (`--executor`): on devices of this host, in Slurm jobs or in Ray tasks."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec

from abprof import sides
from abprof.builds import environment
from abprof.fleet.messages import ALIVE, DEVICE, Shard
from abprof.measure import Plan, RunContext
from abprof.records import Record
from abprof.records.errors import AbprofError
from abprof.records.quantities import seconds
from abprof.system import checksummed, doorway
from abprof.system import processes as proc
from abprof.system.files import refusals, replace
from abprof.system.processes import Program, WorkerDied, how_ended

_LOOKS_EVERY = 0.1  # seconds between readings of the folder
_CLEANUP = 20.0  # seconds in which shard workers clean up after the file ALIVE is gone


class SlurmOptions(Record, frozen=True, kw_only=True):
    """What each Slurm job requests. A field that is "" or None stands for the site's default."""

    gres: str = "gpu:1"  # GPUs of a shard; "": none, for machines without GPUs
    constraint: str = ""  # features of a node: "h200", "h100|h200"
    partition: str = ""
    account: str = ""
    qos: str = ""
    reservation: str = ""
    nodelist: str = ""
    exclude: str = ""
    exclusive: bool = False  # whether a job has its node to itself
    cpus: int | None = None  # processors of a job
    memory: str = ""  # of a job, like "64G"
    time: str = ""  # time limit of a job, like "2h"; "": its shard's budget and half an hour
    parallel: int = 8  # most shards at once


class RayOptions(Record, frozen=True, kw_only=True):
    """Which nodes of a Ray cluster to use, and how many processors each shard takes."""

    gpu: str = ""  # GPU model as in the label ray.io/accelerator-type; "": any
    cpus: float = 1.0


def read_options(place: RunContext) -> Any:
    """Return the options of the run's executor; None: no executor is named. Raises AbprofError for invalid options."""
    kind = place.options.executor.partition(":")[0]
    if not kind:
        return None
    form: type[SlurmOptions | RayOptions] = SlurmOptions if kind == "slurm" else RayOptions
    try:
        found: Any = msgspec.convert(place.options.executor_options, form, strict=False)
    except msgspec.ValidationError as error:
        what, known = str(error).replace("Object contains ", ""), ", ".join(form.__struct_fields__)
        raise AbprofError(what, where=f"--executor {kind}", advice=f"options: {known}") from None
    if min(getattr(found, "parallel", 1), 1 if found.cpus is None else found.cpus) <= 0:
        raise AbprofError("parallel and cpus must be positive", where=f"--executor {kind}")
    return found


def executor_of(place: RunContext, plan: Plan, logs: Path, say: Callable[[str], None]) -> Executor | None:
    """Return the run's executor; None if one device of this host measures all cells."""
    if not place.options.executor:
        several = len(place.devices) > 1 and (len(plan.cells) > 1 or plan.run.machines)
        return LocalExecutor(place, logs, say) if several else None
    return (SlurmExecutor if place.options.executor == "slurm" else RayExecutor)(place, logs, say)


@dataclass(frozen=True)
class Lost:
    """How a shard's process ended, or why it did not start: the last message on every shard, even after `Ended`."""

    reason: str


class Executor:
    """Runs shards, each on one device. Never starts a lost shard again: the coordinator puts its cells in new shards.

    A subclass starts and ends the shard workers. Shards and their messages are files in a folder that all machines see.
    """

    lasting = False  # whether a slot is always the same device, so that a cell can continue on its device

    def __init__(self, place: RunContext, logs: Path, say: Callable[[str], None]) -> None:
        self.place, self.say, self.options = place, say, read_options(place)
        self.name = f"abprof-{uuid.uuid4().hex[:12]}"
        self.folder = logs.absolute() / self.name
        self._logs: dict[int, Path] = {}  # shard that may still send messages -> its program's log
        self._read: dict[int, int] = {}  # shard -> number of bytes that `news` has read from its file
        self._not_started: dict[int, str] = {}

    def __enter__(self) -> Self:
        """Make the folder for shards and messages, and open the executor. Raises AbprofError if it is not available."""
        with refusals(self.folder):
            self.folder.mkdir(parents=True)
        try:
            (self.folder / ALIVE).touch()
            self.open()
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        try:
            (self.folder / ALIVE).unlink(missing_ok=True)
            self.close()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def submit(self, shard: Shard, slot: str) -> None:
        """Start the shard's program in the slot. If the program cannot be started, `news` yields a `Lost`."""
        file = self.folder / f"{shard.number}.json"
        log = Path(shard.logs) / "program.log"
        with refusals(log.parent):
            log.parent.mkdir(parents=True, exist_ok=True)
        replace(file, checksummed.line(self.placed(shard, slot)))
        self._logs[shard.number], self._read[shard.number] = log, 0
        safe = ["-P"] if sys.flags.safe_path else []
        try:
            self.start(shard, slot, [sys.executable, *safe, "-m", "abprof.fleet", str(file)], log)
        except WorkerDied as died:
            self._not_started[shard.number] = died.reason

    def news(self, timeout: float) -> Iterator[tuple[int, bytes | Lost]]:
        """Yield (shard's number, message) for all new messages; wait for one at most `timeout` seconds."""
        end = time.monotonic() + timeout
        (self.folder / ALIVE).touch()
        while True:
            found: list[tuple[int, bytes | Lost]] = []
            gone = {**self._not_started, **self.gone()}  # asked before files are read, so that no last line is missed
            for number, log in list(self._logs.items()):
                found += [(number, line) for line in self._new_lines(number)]
                if number in gone:
                    del self._logs[number]
                    printed = doorway.tail(log, 4000).decode(errors="replace") if log.exists() else ""
                    found.append((number, Lost(": ".join(filter(None, (gone[number], _last_line(printed)))))))
            if found or time.monotonic() >= end:
                yield from found
                return
            time.sleep(_LOOKS_EVERY)

    def _new_lines(self, number: int) -> list[bytes]:
        """Return a shard's new lines. Opens the file anew, because network disks may show old content until then."""
        with contextlib.suppress(FileNotFoundError), (self.folder / f"{number}.jsonl").open("rb") as file:
            file.seek(self._read[number])
            whole, newline, _ = file.read().rpartition(b"\n")
            self._read[number] += len(whole) + len(newline)
            return whole.split(b"\n") if newline else []
        return []

    def environment(self) -> dict[str, str]:
        """Return this process's environment for a cluster's shard workers, without secrets and CUDA_VISIBLE_DEVICES."""
        kept, _ = environment.clean(os.environ, "user", self.place.file.environment.allow)
        return {name: value for name, value in kept.items() if name != "CUDA_VISIBLE_DEVICES"}

    # ---------------------------------------------------------------- what a subclass does

    def open(self) -> None:
        """Prepare to start shards. Raises AbprofError if the executor is not available."""

    def slots(self) -> Sequence[str]:
        """Return the names of the slots, each of which runs one shard at a time."""
        raise NotImplementedError

    def placed(self, shard: Shard, slot: str) -> Shard:  # noqa: ARG002
        """Return a copy of the shard with the fields filled in that depend on the slot, such as the device."""
        return shard

    def start(self, shard: Shard, slot: str, argv: Sequence[str], log: Path) -> None:
        """Start the shard worker `argv`, with its output in `log`. Raises WorkerDied if that fails."""
        raise NotImplementedError

    def gone(self) -> dict[int, str]:
        """Return how programs ended since the last call, as {number of the shard: how its program ended}."""
        raise NotImplementedError

    def close(self) -> None:
        """End all programs and release what `open` acquired."""
        raise NotImplementedError


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2].strip()[:300]


class LocalExecutor(Executor):
    """Runs shards on the devices of this host. This process holds the devices' leases."""

    lasting = True

    def open(self) -> None:
        self._programs: dict[int, Program] = {}
        self._news: dict[int, tuple[int, float]] = {}  # shard -> size of its messages' file, and when it last grew

    def slots(self) -> Sequence[str]:
        return [device.lease for device in self.place.devices]

    def placed(self, shard: Shard, slot: str) -> Shard:
        every, slots = sorted(os.sched_getaffinity(0)), self.slots()
        each, at = len(every) // len(slots), slots.index(slot)
        return msgspec.structs.replace(shard, device=slot, held=True, cpus=tuple(every[each * at : each * (at + 1)]))

    def start(self, shard: Shard, slot: str, argv: Sequence[str], log: Path) -> None:  # noqa: ARG002
        self._programs[shard.number] = Program([*argv, "--with", str(os.getpid())], env=os.environ, log=log)

    def gone(self) -> dict[int, str]:
        """Return how programs ended. First end programs that were silent for long: a suspended program never exits."""
        limit, found = self.place.options.build_timeout + 10 * self.place.options.timeout, {}
        for number, program in list(self._programs.items()):
            file, now = self.folder / f"{number}.jsonl", time.monotonic()
            size = file.stat().st_size if file.exists() else 0
            if self._news.get(number, (-1, now))[0] != size:
                self._news[number] = (size, now)
            silent = now - self._news[number][1]
            if how := program.gone or (f"no news for {silent:.0f} s" if silent > limit else ""):
                found[number] = how
                self._programs.pop(number).end()
        return found

    def close(self) -> None:
        until = time.monotonic() + _CLEANUP
        while self._programs:
            self._programs.popitem()[1].end(max(0.0, until - time.monotonic()))
        sides.sweep(self.place.cache)  # worktrees of programs that were killed


_ASKS_EVERY = 2.0  # seconds between calls of squeue, whose controller serves the whole site
_ANSWERS_WITHIN = 60.0  # seconds
_LISTED_WITHIN = 30.0  # seconds after which a job that squeue does not list is gone
_GONE_WITHIN = 120.0  # seconds in which a cancelled job ends: Slurm's KillWait is 30 by default
_OVERHEAD = 1800.0  # seconds for building, starting and ending, added to a shard's budget as the job's limit
_OVER = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED"),
    *("NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"),
}


class SlurmExecutor(Executor):
    """Runs each shard in a Slurm job. Slots have only numbers, because Slurm chooses the node and the GPU.

    Asks squeue for the jobs' states, because sacct needs accounting, which some sites lack. If abprof is killed, its
    jobs end by themselves after ten minutes.
    """

    def open(self) -> None:
        """Raise AbprofError if Slurm is missing, or if Slurm would refuse a job with these options."""
        self._jobs: dict[int, tuple[str, float]] = {}  # shard -> id of its job, and when it was submitted
        self._asked_at = 0.0
        self._reasons: set[str] = set()  # reasons for waiting that the user was shown
        if self.options.gres and self.place.device.kind == "cpu":
            what = f"jobs with gres={self.options.gres} are to measure a GPU, and this machine has none to plan and build with"
            advice = "start abprof on a node with one (srun --gres=gpu:1 --pty abprof ...); gres= measures processors"
            raise AbprofError(what, where="--executor slurm", advice=advice)
        argv = [*self._sbatch(60.0, Path(os.devnull)), "--test-only", "--wrap=true"]
        accepted, why = proc.tried(argv, timeout=_ANSWERS_WITHIN)
        if not accepted:
            raise AbprofError(f"Slurm would refuse a job with these options: {why}", where="--executor slurm")

    def _sbatch(self, limit: float, log: Path) -> list[str]:
        options: SlurmOptions = self.options
        given = {
            **{name: getattr(options, name) for name in ("gres", "constraint", "partition", "account", "qos")},
            **{name: getattr(options, name) for name in ("reservation", "nodelist", "exclude")},
            "cpus-per-task": options.cpus,
            "mem": options.memory,
            "time": math.ceil((seconds(options.time, "--executor slurm") if options.time else limit) / 60),
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
        job = said.strip().partition(";")[0]
        self._jobs[shard.number] = (job, time.monotonic())
        self.say(f"Slurm: shard {shard.number} is job {job}")

    def gone(self) -> dict[int, str]:
        if not self._jobs or time.monotonic() < self._asked_at + _ASKS_EVERY:
            return {}
        listed, self._asked_at = self._listed(), time.monotonic()
        if listed is None:
            return {}
        # Show each reason to wait once: for some reasons jobs wait for ever.
        for reason in {why for state, _, why in listed.values() if state == "PENDING"} - {"None", "", *self._reasons}:
            self._reasons.add(reason)
            self.say(f"Slurm: jobs are waiting ({reason})")
        found = {}
        for number, (job, since) in self._jobs.items():
            state, node, _ = listed.get(job, ("", "", ""))
            if state in _OVER:
                found[number] = f"Slurm job {job}: {state} on {node or 'no node'}"
            elif not state and time.monotonic() > since + _LISTED_WITHIN:
                found[number] = f"Slurm does not list job {job}"
        for number in found:
            del self._jobs[number]
        return found

    def close(self) -> None:
        """Cancel every job, and wait at most `_GONE_WITHIN` seconds until all have ended."""
        until = time.monotonic() + _GONE_WITHIN
        while self._jobs:
            proc.tried(["scancel", f"--name={self.name}"], timeout=_ANSWERS_WITHIN)
            listed = self._listed()
            if listed is not None and all(state in _OVER for state, _, _ in listed.values()):
                self._jobs.clear()
            elif time.monotonic() > until:
                self.say(f"Slurm: jobs are still running; end them with scancel --name={self.name}")
                self._jobs.clear()
            else:
                time.sleep(0.5)

    def _listed(self) -> dict[str, tuple[str, str, str]] | None:
        """Return job id -> (state, node, reason to wait) of this run's jobs; None if Slurm does not answer."""
        argv = ["squeue", "--noheader", "--states=all", f"--name={self.name}", "--format=%i|%T|%N|%r"]
        text = proc.output(argv, timeout=_ANSWERS_WITHIN)
        if text is None:
            return None
        rows = [line.split("|") for line in text.splitlines() if line.count("|") == 3]
        return {id.strip(): (state, node, reason) for id, state, node, reason in rows}


_GPU_LABEL = "ray.io/accelerator-type"
_RESOURCE = "abprof"  # Ray resource of nodes without GPUs: its amount is how many shards a node runs at once


class RayExecutor(Executor):
    """Runs each shard in a Ray task. A slot names a node, and Ray chooses a GPU of that node. Ray must not retry a
    task, because both attempts would write to the same file."""

    def open(self) -> None:
        """Connect to the cluster. Raises AbprofError if there is none, or if no node fits the options."""
        self._gpu = self.place.device.kind == "cuda"
        self._tasks: dict[Any, int] = {}  # reference to a task's result -> shard
        self._nodes: dict[str, str] = {}  # slot -> node id
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
            advice = "ray://HOST:PORT names a cluster's client server (port 10001), ray://auto this machine's cluster"
            why = _last_line(str(error)) or type(error).__name__
            raise AbprofError(f"no Ray cluster: {why}", where=where, advice=advice) from error
        finally:
            for number, handler in handlers.items():  # ray.init replaces the handler of SIGTERM
                signal.signal(number, handler)
        self._ray: Any = ray
        if not self.slots():
            ray.shutdown()
            resource = f"the resource {_RESOURCE!r} (ray start --resources='{{\"{_RESOURCE}\": 1}}')"
            model = f" of model {self.options.gpu}" if self.options.gpu else ""
            raise AbprofError(f"no node has {'a GPU' if self._gpu else resource}{model}", where=where)

    def slots(self) -> Sequence[str]:
        for node in self._ray.nodes():
            model, has = node.get("Labels", {}).get(_GPU_LABEL), node["Resources"]
            if node["Alive"] and self.options.gpu in ("", model):
                room = min(has.get("GPU" if self._gpu else _RESOURCE, 0), has.get("CPU", 0) / self.options.cpus)
                name = f"{node['NodeManagerHostname']}-{node['NodeID'][:6]}"
                self._nodes |= {f"{name}/{place}": node["NodeID"] for place in range(int(room))}
        return list(self._nodes)

    def start(self, shard: Shard, slot: str, argv: Sequence[str], log: Path) -> None:
        def run(argv: Sequence[str], env: Mapping[str, str], names: Sequence[str], log: str) -> int:
            """Run a shard worker on the node. Ray copies this function to the node, so it must not import abprof."""
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
                found[number] = _last_line(str(error)) or type(error).__name__
        return found

    def close(self) -> None:
        """Give shard workers `_CLEANUP` seconds to end, cancel the remaining tasks, and leave the cluster."""
        if self._tasks:
            self._ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=_CLEANUP)
        while self._tasks:
            self._ray.cancel(self._tasks.popitem()[0], force=True)
        self._ray.shutdown()
