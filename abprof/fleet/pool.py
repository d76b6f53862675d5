"""The local pool: a slot for each device of this host that the run holds, on each a program that measures shard after shard."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from abprof import sides
from abprof.fleet.executor import Lost
from abprof.fleet.messages import IDLE, Ended, Shard, read_news
from abprof.measure.run_context import RunContext
from abprof.system import checksummed as sealed
from abprof.system import processes as proc
from abprof.system.files import refusals
from abprof.system.processes import Program, WorkerDied

_ORDERLY = 15.0  # seconds that programs have to put away what they have begun
_ENDED = b'{"type":"ended"'


@dataclass
class Station:
    """A slot's program. It takes shard after shard as long as it lives."""

    program: Program
    shard: int | None  # what it measures
    idle: float = 0.0  # since when it measures nothing, by a clock that does not go back

    @property
    def free(self) -> bool:
        """Whether it can be given a shard; well before it ends by itself."""
        return self.shard is None and self.program.gone is None and time.monotonic() - self.idle < IDLE / 2


class Pool:
    """See abprof.fleet.executor.Executor. The run's own process holds the devices' leases."""

    lasting = True

    def __init__(self, place: RunContext, logs: Path, folder: Path) -> None:
        """`folder` is made for what shards are told by; it lies where a killed run's leftovers are looked for."""
        self._place, self._logs, self._folder = place, logs, folder
        self._killed = False  # a program that had no time to put its worktrees away
        self._stations: dict[str, Station] = {}  # by slot
        self._stillborn: dict[int, str] = {}  # shard -> why its program could not be started

    def __enter__(self) -> Self:
        with refusals(self._folder):
            self._folder.mkdir()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._killed:
            sides.sweep(self._place.cache)

    def slots(self) -> Sequence[str]:
        return [device.lease for device in self._place.devices]

    def submit(self, shard: Shard, slot: str) -> None:
        logs = self._logs / f"shard-{shard.number}"
        logs.mkdir(parents=True, exist_ok=True)
        placed = msgspec.structs.replace(
            shard,
            device=slot,
            held=True,
            cpus=self._cpus(slot),
            repository=str(self._place.repository.path),
            logs=str(logs),
        )
        file = self._folder / f"{shard.number}.json"
        file.write_bytes(sealed.dump(placed))
        station = self._stations.get(slot)
        if station and station.free:
            station.shard = shard.number
            station.program.say(os.fsencode(file))
            return
        if station:
            station.program.ask_to_end()
            self._end(slot, _ORDERLY)
        safe = ["-P"] if sys.flags.safe_path else []
        argv = [sys.executable, *safe, "-m", "abprof.fleet", str(file), "--with", str(os.getpid()), "--more"]
        try:
            program = Program(argv, env=os.environ, log=logs / "program.log", listens=True)
            self._stations[slot] = Station(program, shard.number)
        except WorkerDied as died:
            self._stillborn[shard.number] = died.reason

    def _cpus(self, slot: str) -> tuple[int, ...]:
        """The slot's own processors, in equal parts: shards do not disturb each other. () where there are too few."""
        slots, every = list(self.slots()), sorted(os.sched_getaffinity(0))
        each, at = len(every) // len(slots), slots.index(slot)
        return tuple(every[each * at : each * (at + 1)])

    def news(self, timeout: float) -> Iterator[tuple[int, bytes | Lost]]:
        while self._stillborn:
            number, reason = self._stillborn.popitem()
            yield number, Lost(reason)
        with selectors.DefaultSelector() as waiting:
            for station in self._stations.values():
                waiting.register(station.program, selectors.EVENT_READ)
            waiting.select(min(timeout, proc.ALIVE_EVERY))
        for slot, station in list(self._stations.items()):
            yield from self._heard(slot, station)

    def _heard(self, slot: str, station: Station) -> Iterator[tuple[int, bytes | Lost]]:
        """What a program said, and whether its shard is over."""
        gone = station.program.gone  # before its last lines are taken
        for line in station.program.lines():
            if station.shard is None:
                continue
            number, ended = station.shard, _ended(line)
            if ended and ended.shard not in (0, number):  # said again of the one before
                continue
            yield number, line
            if gone is None and ended and ended.why == "done":
                station.shard, station.idle = None, time.monotonic()
                yield number, Lost("its program goes on")
        if gone is not None:
            self._end(slot)
            if station.shard is not None:
                yield station.shard, Lost(gone)

    def _end(self, slot: str, grace: float = 0.0) -> None:
        program = self._stations.pop(slot).program
        program.end(grace)
        self._killed = self._killed or program.killed

    def cancel(self) -> None:
        for station in self._stations.values():
            station.program.ask_to_end()
        end = time.monotonic() + _ORDERLY
        for slot in list(self._stations):
            self._end(slot, max(0.0, end - time.monotonic()))


def _ended(line: bytes) -> Ended | None:
    """What a shard's last news says. Done, its program waits for another; with any other end it ends itself."""
    if not line.startswith(_ENDED):
        return None
    with contextlib.suppress(ValueError):
        news = read_news(line)
        return news if isinstance(news, Ended) else None
    return None
