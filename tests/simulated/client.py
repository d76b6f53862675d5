"""A tiny parent for one simulated worker: what tests/test_simulated*.py drive it with."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from abprof.builds import WorkerFactory
from abprof.records import messages as wire
from tests.simulated.scenario import Fault, Scenario, Workload

WORKER = Path(__file__).parent / "worker.py"
CASE: dict[str, wire.Value] = {"n": 1, "mask": "full"}
CELL = "w/n=1,mask=full"
LOAD = Workload(
    kernel="k",
    presets={"default": {"n": [1, 2], "mask": ["full"]}, "zipped": {"a,b": [[1, 2], [3, 4]]}},
    variants=["v1"],
    peers=["lib"],
    phases=[("run", "k.run", "the kernel itself", 0.75), ("cast", "k.cast", "never runs", None)],
    seed_columns=["n"],
    flops=1e9,
    bytes=1e6,
    convention="simulated",
    skips={"w/n=2,*": "too large here"},
)
NOWHERE = wire.Mount("k", "/nowhere", "abprof_side.k", "", [])
SCENARIO = Scenario(workloads={"w": LOAD}, clock_ns=1000)


class Client:
    """One worker process and the parent's ends of its pipes."""

    def __init__(self, scenario: Path, folder: Path) -> None:
        request_read, self.request = os.pipe()
        self.reply, reply_write = os.pipe()
        self.log = folder / "log"
        argv = [sys.executable, "-P", str(WORKER), "--in", str(request_read), "--out", str(reply_write)]
        environment = {"PATH": os.environ["PATH"], "ABPROF_SIMULATED": str(scenario)}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=folder,
                pass_fds=(request_read, reply_write),
                start_new_session=True,
            )
        os.close(request_read)
        os.close(reply_write)
        self.count = 0
        self.pending = b""

    def send(self, record: Any) -> int:
        self.count += 1
        message = {"id": self.count, "do": wire.NAMES[type(record)], "args": wire.pack(record)}
        os.write(self.request, wire.dump(message))
        return self.count

    def line(self, seconds: float = 120.0) -> bytes | None:
        """The next reply's line; b"" at the end of the stream (half a line stays in `pending`); None: silence."""
        end = time.monotonic() + seconds
        while b"\n" not in self.pending:
            if not select.select([self.reply], [], [], max(0.0, end - time.monotonic()))[0]:
                return None
            data = os.read(self.reply, 1 << 20)
            if not data:
                return b""
            self.pending += data
        line, _, self.pending = self.pending.partition(b"\n")
        return line

    def ask(self, record: Any) -> Any:
        """Send a request; its reply's record, or the wire.Fault that it met."""
        number = self.send(record)
        line = self.line()
        assert line, f"no reply to {record}: {self.log.read_text()}"
        message = json.loads(line)
        assert message["id"] == number
        if "fault" in message:
            return msgspec.convert(message["fault"], wire.Fault)
        return msgspec.convert(message["reply"], wire.VERBS[wire.NAMES[type(record)]][1])

    def end(self) -> None:
        """Kill the worker's group and close the pipes."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        os.close(self.request)
        os.close(self.reply)


Spawn = Callable[..., Client]


def opened(client: Client, arm: str = "a", **more: Any) -> Any:
    return client.ask(wire.Open(workload="w", case=more.pop("case", CASE), arm=arm, **more))


def turns(client: Client, count: int, arm: str = "a") -> list[float]:
    return [client.ask(wire.Turn(arm=arm, calls=1, timer="cpu_clock")).value for _ in range(count)]


def faulty(*faults: Fault) -> Scenario:
    """The example scenario with these faults."""
    return replace(SCENARIO, faults=list(faults))


def workshop(folder: Path) -> WorkerFactory:
    """A factory of simulated workers that play `folder`/scenario.json and load builds at `folder`/build."""
    (folder / "build" / "src").mkdir(parents=True)
    argv = [sys.executable, "-P", str(WORKER)]
    return WorkerFactory(
        cache=folder,
        logs=folder,
        scratch=folder,
        workers={"base": argv, "target": argv},
        env={
            "ABPROF_SIMULATED": str(folder / "scenario.json"),
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(Path(__file__).parents[2]),
        },
        device="simulated",
        forbidden=(),
        workloads={},
        toolchain={},
        timeout=240.0,
        build_timeout=240.0,
    )
