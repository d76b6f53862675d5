"""One arm of one cell in a foreground process: a command for profilers to start."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from abprof.builds import WorkerFactory
from abprof.measure.pool import WorkerSpec
from abprof.records import Arm, Cell
from abprof.records import messages as wire
from abprof.system.processes import how_ended


@dataclass(frozen=True)
class Job:
    """A process that makes one untimed call, then `warmup + runs` calls, and writes its outcome into `result`."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    result: Path

    def outcome(self, code: int) -> wire.Finished:
        """How it ended. `code`: its exit code, for a process that wrote nothing."""
        with contextlib.suppress(OSError, ValueError, TypeError):
            outcome: wire.Finished = wire.unpack(wire.Finished, wire.load(self.result.read_bytes()))
            return outcome
        return wire.Finished("crash", how_ended(code))


def job(
    factory: WorkerFactory,
    spec: WorkerSpec,
    cell: Cell,
    arm: Arm,
    *,
    warmup: int,
    runs: int,
    seed: int,
    facts: bool = False,
) -> Job:
    """The process for one arm of a cell. `facts`: it also reports what the workload says of the cell."""
    place, name = Path(spec.build.path), f"cell-{uuid.uuid4().hex}"
    file, result = factory.scratch / f"{name}.json", factory.scratch / f"{name}.result.json"
    mount, scratch = factory.mount(spec.checkout, spec.package, place), str(factory.scratch)
    start = wire.Start(factory.device, spec.id, mount, dict(factory.workloads), scratch)
    opened = wire.Open(cell.workload, dict(cell.params), arm.id, arm.variant, arm.peer, seed=seed)
    file.write_bytes(wire.dump(wire.pack(wire.Foreground(start, opened, warmup, runs, str(result), facts))))
    argv = (*factory.argv(spec.id), "--cell", str(file))
    return Job(argv, factory.worker_env(spec.checkout, spec.package, place), place / "src", result)
