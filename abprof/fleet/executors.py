"""Executors: where shards run. `--executor` names one; without it every device that the run holds gets a shard worker."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec

from abprof import sides
from abprof.builds import environment
from abprof.fleet.messages import ALIVE, Shard
from abprof.measure import Plan, RunContext
from abprof.records import Record
from abprof.records.errors import AbprofError
from abprof.system import checksummed
from abprof.system.files import refusals, replace
from abprof.system.processes import Program, WorkerDied

_LOOKS_EVERY = 0.1  # seconds between looks into the folder
_CLEANUP = 15.0  # seconds that shard workers have to clean up


class SlurmOptions(Record, frozen=True, kw_only=True):
    """What each Slurm job requests. "" and None leave it to the site's defaults."""

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


class RayOptions(Record, frozen=True, kw_only=True):
    """Which nodes of a Ray cluster to use, and how much of one a shard takes besides its GPU."""

    gpu: str = ""  # the model, as in the label ray.io/accelerator-type
    cpus: float = 1.0


def read_options(place: RunContext) -> Any:
    """The options of the run's executor, None without one. Raises AbprofError for invalid ones."""
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
    """The executor that a run needs, None if one device of this host measures it in the run's own process."""
    if not place.options.executor:
        several = len(place.devices) > 1 and (len(plan.cells) > 1 or plan.run.machines)
        return LocalExecutor(place, logs, say) if several else None
    if place.options.executor == "slurm":
        from abprof.fleet.slurm import SlurmExecutor

        return SlurmExecutor(place, logs, say)
    from abprof.fleet.ray import RayExecutor

    return RayExecutor(place, logs, say)


@dataclass(frozen=True)
class Lost:
    """No more news of a shard: its process is gone or was never started. After `Ended` this is how every shard ends."""

    reason: str


class Executor:
    """Runs shards, each whole and on one device. It retries nothing: the coordinator decides what becomes of lost cells.

    A subclass starts and ends the shard workers. Shards and their news are files in a folder that all machines see.
    """

    lasting = False  # whether a slot stays the same device, so that cells can go on where their blocks are from

    def __init__(self, place: RunContext, logs: Path, say: Callable[[str], None]) -> None:
        self.place, self.say, self.options = place, say, read_options(place)
        self.name = f"abprof-{uuid.uuid4().hex[:12]}"
        self.folder = logs.absolute() / self.name
        self._logs: dict[int, Path] = {}  # shard whose end was not told -> its program's log
        self._read: dict[int, int] = {}  # shard -> bytes of its news that were told
        self._not_started: dict[int, str] = {}

    def __enter__(self) -> Self:
        """Raises AbprofError if the executor is not available."""
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
            self.cancel()
        finally:
            self.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def submit(self, shard: Shard, slot: str) -> None:
        """Start the shard's program. `news` reports failures."""
        file = self.folder / f"{shard.number}.json"
        log = Path(shard.logs) / "program.log"
        with refusals(log.parent):
            log.parent.mkdir(parents=True, exist_ok=True)
        replace(file, checksummed.text(self.placed(shard, slot)))
        self._logs[shard.number], self._read[shard.number] = log, 0
        safe = ["-P"] if sys.flags.safe_path else []
        try:
            self.start(shard, slot, [sys.executable, *safe, "-m", "abprof.fleet", str(file)], log)
        except WorkerDied as died:
            self._not_started[shard.number] = died.reason

    def news(self, timeout: float) -> Iterator[tuple[int, bytes | Lost]]:
        """What came within `timeout` seconds, as (shard's number, line); `Lost` comes once and last for each shard."""
        end = time.monotonic() + timeout
        (self.folder / ALIVE).touch()
        while True:
            found: list[tuple[int, bytes | Lost]] = []
            gone = {**self._not_started, **self.gone()}  # before the last lines are read
            for number, log in list(self._logs.items()):
                found += [(number, line) for line in self._new_lines(number)]
                if number in gone:
                    del self._logs[number]
                    found.append((number, Lost(gone[number] + _last_words(log))))
            if found or time.monotonic() >= end:
                yield from found
                return
            time.sleep(_LOOKS_EVERY)

    def _new_lines(self, number: int) -> list[bytes]:
        """Whole lines since the last look. The file is opened anew: so a network's disk shows what others have written."""
        with contextlib.suppress(FileNotFoundError), (self.folder / f"{number}.jsonl").open("rb") as file:
            file.seek(self._read[number])
            whole, newline, _ = file.read().rpartition(b"\n")
            self._read[number] += len(whole) + len(newline)
            return whole.split(b"\n") if newline else []
        return []

    def environment(self) -> dict[str, str]:
        """What a cluster's shard workers get of this process's environment: no secrets, and no GPU."""
        kept, _ = environment.clean(os.environ, "user", self.place.file.environment.allow)
        return {name: value for name, value in kept.items() if name != "CUDA_VISIBLE_DEVICES"}

    def cancel(self) -> None:
        """End everything that was started, and wait for that. Safe to call twice, and from ^C."""
        self._logs.clear()
        (self.folder / ALIVE).unlink(missing_ok=True)
        self.end()

    # ---------------------------------------------------------------- what a subclass does

    def open(self) -> None:
        """Raises AbprofError if the executor is not available."""

    def close(self) -> None:
        """Give back what `open` took."""

    def slots(self) -> Sequence[str]:
        """Where shards can run at the same time, one on each: names of leases, or labels of a cluster."""
        raise NotImplementedError

    def placed(self, shard: Shard, slot: str) -> Shard:  # noqa: ARG002
        """The shard as the slot's worker gets it."""
        return shard

    def start(self, shard: Shard, slot: str, argv: Sequence[str], log: Path) -> None:
        """Start a program that prints to `log`. Raises WorkerDied if it cannot be started."""
        raise NotImplementedError

    def gone(self) -> dict[int, str]:
        """Shards whose program is gone, and how it ended."""
        raise NotImplementedError

    def end(self) -> None:
        """End all programs, and wait for that."""
        raise NotImplementedError


def _last_words(log: Path) -> str:
    with contextlib.suppress(OSError):
        lines = log.read_bytes()[-4000:].decode(errors="replace").strip().splitlines()
        return f": {lines[-1].strip()[:300]}" if lines else ""
    return ""


class LocalExecutor(Executor):
    """The devices of this host that the run holds. The run's own process holds their leases."""

    lasting = True

    def __init__(self, place: RunContext, logs: Path, say: Callable[[str], None]) -> None:
        super().__init__(place, logs, say)
        self._programs: dict[int, Program] = {}

    def slots(self) -> Sequence[str]:
        return [device.lease for device in self.place.devices]

    def placed(self, shard: Shard, slot: str) -> Shard:
        """With the slot's own processors, in equal parts: shards do not disturb each other. () where there are too few."""
        every, slots = sorted(os.sched_getaffinity(0)), self.slots()
        each, at = len(every) // len(slots), slots.index(slot)
        return msgspec.structs.replace(shard, device=slot, held=True, cpus=tuple(every[each * at : each * (at + 1)]))

    def start(self, shard: Shard, slot: str, argv: Sequence[str], log: Path) -> None:  # noqa: ARG002
        self._programs[shard.number] = Program([*argv, "--with", str(os.getpid())], env=os.environ, log=log)

    def gone(self) -> dict[int, str]:
        found = {number: how for number, program in self._programs.items() if (how := program.gone)}
        for number in found:
            self._programs.pop(number).end()
        return found

    def end(self) -> None:
        for program in self._programs.values():
            program.ask_to_end()
        until = time.monotonic() + _CLEANUP
        while self._programs:
            self._programs.popitem()[1].end(max(0.0, until - time.monotonic()))

    def close(self) -> None:
        sides.sweep(self.place.cache)  # worktrees of programs that were killed
