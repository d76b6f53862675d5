"""The local pool: a slot for each device of this host that the run holds, and on each one shard's program at a time."""

from __future__ import annotations

import os
import selectors
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from abprof import proc, repo, sealed
from abprof.disk import refusals
from abprof.place import Place
from abprof.proc import Program, WorkerDied
from abprof.protocols import Lost
from abprof.shards.messages import Shard

_ORDERLY = 15.0  # seconds that programs have to put away what they have begun


class Pool:
    """See abprof.protocols.Executor. The run's own process holds the devices' leases."""

    lasting = True

    def __init__(self, place: Place, logs: Path, folder: Path) -> None:
        """`folder` is made for what shards are told by; it lies where a killed run's leftovers are looked for."""
        self._place, self._logs, self._folder = place, logs, folder
        self._killed = False  # a program that had no time to put its worktrees away
        self._programs: dict[int, Program] = {}
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
            repo.tidy(self._place.cache)

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
        safe = ["-P"] if sys.flags.safe_path else []
        argv = [sys.executable, *safe, "-m", "abprof.shards", str(file), "--with", str(os.getpid())]
        try:
            self._programs[shard.number] = Program(argv, env=os.environ, log=logs / "program.log")
        except WorkerDied as died:
            self._stillborn[shard.number] = died.reason

    def _cpus(self, slot: str) -> tuple[int, ...]:
        """A slot's own processors: shards beside each other do not disturb each other's host, and know how many they have."""
        every, slots = sorted(os.sched_getaffinity(0)), self.slots()
        each, place = len(every) // len(slots), list(slots).index(slot)
        return tuple(every[place * each : (place + 1) * each])

    def news(self, timeout: float) -> Iterator[tuple[int, bytes | Lost]]:
        while self._stillborn:
            number, reason = self._stillborn.popitem()
            yield number, Lost(reason)
        with selectors.DefaultSelector() as waiting:
            for program in self._programs.values():
                waiting.register(program, selectors.EVENT_READ)
            waiting.select(min(timeout, proc.ALIVE_EVERY))
        for number, program in list(self._programs.items()):
            gone = program.gone
            for line in program.lines():
                yield number, line
            if gone is not None:
                del self._programs[number]
                program.end()
                self._killed = self._killed or program.killed
                yield number, Lost(gone)

    def cancel(self) -> None:
        for program in self._programs.values():
            program.ask_to_end()
        end = time.monotonic() + _ORDERLY
        for program in self._programs.values():
            program.end(max(0.0, end - time.monotonic()))
            self._killed = self._killed or program.killed
        self._programs.clear()
