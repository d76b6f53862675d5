"""One arm of one cell in a worker in the foreground: what a profiler is pointed at, as a command that can be started."""

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


@dataclass(frozen=True)
class Job:
    """A process: a call that is no part of it, then `warmup + runs` calls. It tells in the file `told` how it ended."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    told: Path

    def outcome(self, code: int) -> wire.Told:
        """What became of it; `code` is its exit code, for one that could not say."""
        with contextlib.suppress(OSError, ValueError, TypeError):
            told: wire.Told = wire.unpack(wire.Told, wire.load(self.told.read_bytes()))
            return told
        return wire.Told("crash", f"killed by signal {-code}" if code < 0 else f"ended with exit code {code}")


def job(
    shop: WorkerFactory,
    spec: WorkerSpec,
    cell: Cell,
    arm: Arm,
    *,
    warmup: int,
    runs: int,
    seed: int,
    facts: bool = False,
) -> Job:
    """The process for one arm of a cell, with the build of this spec. `facts`: it is to tell the cell's, too."""
    place, name = Path(spec.build.path), f"cell-{uuid.uuid4().hex}"
    file, told = shop.scratch / f"{name}.json", shop.scratch / f"{name}.told.json"
    mount = shop.mount(spec.checkout, spec.package, place)
    start = wire.Start(shop.device, spec.id, mount, dict(shop.workloads), str(shop.scratch))
    opened = wire.Open(cell.workload, dict(cell.params), arm.id, arm.variant, arm.peer, seed=seed)
    file.write_bytes(wire.dump(wire.pack(wire.Foreground(start, opened, warmup, runs, str(told), facts))))
    argv = (*shop.argv(spec.id), "--cell", str(file))
    return Job(argv, shop.worker_env(spec.checkout, spec.package, place), place / "src", told)
