"""Time the selfcheck's cells as other tools do: a process per side, which times all cells, and one side after the other."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from abprof.devices import lease
from abprof.records import Cell, Machine, Record
from abprof.sides import NewRepository
from abprof.system import paths, processes
from abprof.system.console import View

# Branches as a user checks them out, one after the other: the sides base, target and target2.
SIDES = {"base": "main", "target": "injected", "target2": "main"}
# Kind of device -> protocols of tree/bench.py.
PROTOCOLS = {"cuda": ("do_bench", "original"), "cpu": ("autorange", "original")}
_LIMIT = 240.0  # seconds of one process
_SOURCE = Path(__file__).parents[3]  # abprof's own folder is in it: the workload imports abprof.kit


class Timed(Record, frozen=True, kw_only=True):
    """What a protocol measured of one cell."""

    cell: str
    ns: dict[str, float]  # side -> time of a call
    seconds: float  # of measuring the cell on all sides


class Recording(Record, frozen=True, kw_only=True):
    """What one protocol measured of all cells. `fault`: why there is nothing; "": it measured all of them."""

    protocol: str  # a name of PROTOCOLS
    seconds: float  # of its processes, from the first's start to the last's end
    load: float | None = None  # the host's load average, mean over the ends of its processes
    fault: str = ""
    cells: tuple[Timed, ...] = ()


def record(
    repository: NewRepository, cells: Sequence[Cell], machine: Machine, python: str, log: Path, view: View
) -> Iterator[Recording]:
    """Yield what each protocol measures of `cells` in the selfcheck's repository, while it holds the machine's device.

    `python`: the interpreter of its processes, whose output is appended to `log`.
    """
    place = repository.path.with_name("protocols")
    place.mkdir()
    (place / "cases.json").write_bytes(msgspec.json.encode([cell.params for cell in cells]))
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(_SOURCE), os.environ.get("PYTHONPATH")))),
        "PYTHONDONTWRITEBYTECODE": "1",  # the branches' files have equal sizes, and may have equal times
        "ABPROF_BUILD_DIR": str(place),
        "TRITON_CACHE_DIR": str(place / "triton"),
        "CUDA_VISIBLE_DEVICES": machine.uuid,
    }

    def times(protocol: str, side: str) -> tuple[list[tuple[float, float]], float]:
        view.say(f"measuring by {protocol}: {side}")
        repository.switch(SIDES[side])
        out = place / f"{protocol}-{side}.json"
        argv = (python, "bench.py", protocol, machine.kind, str(place / "cases.json"), str(out))
        code = processes.logged(argv, env=env, cwd=repository.path, log=log, timeout=_LIMIT)
        if code:
            raise processes.WorkerDied(f"{processes.how_ended(code)}, see {log.name}")
        return msgspec.json.decode(out.read_bytes(), type=list[tuple[float, float]]), os.getloadavg()[0]

    label = "abprof selfcheck --certificate"
    with processes.no_orphans(), lease(paths.state_dir(), machine.uuid or "cpu", wait=True, label=label, say=view.say):
        for protocol in PROTOCOLS.get(machine.kind, ()):
            began = time.monotonic()
            try:
                sides, loads = zip(*[times(protocol, side) for side in SIDES], strict=True)
            except processes.WorkerDied as error:
                view.warn(f"{protocol}: {error.reason}")
                yield Recording(protocol=protocol, seconds=time.monotonic() - began, fault=error.reason)
                continue
            timed = [
                Timed(
                    cell=cell.id,
                    ns={side: ns for side, (ns, _) in zip(SIDES, row, strict=True)},
                    seconds=sum(seconds for _, seconds in row),
                )
                for cell, row in zip(cells, zip(*sides, strict=True), strict=True)
            ]
            seconds, load = time.monotonic() - began, sum(loads) / len(loads)
            yield Recording(protocol=protocol, seconds=seconds, load=load, cells=tuple(timed))


def called(protocol: str, values: Sequence[float], threshold: float, _margin: float = 0.0) -> tuple[str, int]:
    """Return slower, faster or unclear, as the protocol's rule calls a change of time, and the number of its values, 1.

    `values`: the log ratio of the times, after / before. The original scripts compare TFLOP/s, the inverse of times; the
    others compare times. `threshold`: per cent.
    """
    (value,) = values
    change = -math.expm1(-value) if protocol == "original" else math.expm1(value)
    return "unclear" if 100 * abs(change) <= threshold else "slower" if value > 0 else "faster", 1
