"""What each timer reads of short and long kernels: how far fresh processes differ, how far turns of one, and what a turn costs.

    python -m tests.benchmarks.timers            on a GPU; six processes, one after the other, under 90 s

Each process times five kernels by every timer of abprof's worker, in turns of the length that abprof would choose, a quarter
of them at each of four placements of the inputs. Prints the Markdown table of docs/MEASUREMENT.md. A timer that is not there
(CUPTI without cupti-python) has no rows, and standard error says why.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from abprof.measure import turns
from abprof.records import Options
from abprof.worker.api import Op, Unsupported
from abprof.worker.clocks import Clock, clock

PROCESSES, PLACEMENTS, SECONDS = 6, 4, 0.35  # seconds of turns of a kernel and timer in a process
# What a kernel takes on an H200, roughly, and what it is: its readings stand in the table.
KERNELS = {
    "3 us": ("add", 1 << 16),
    "10 us": ("product", 1280),
    "50 us": ("product", 2688),
    "0.3 ms": ("product", 4864),
    "3 ms": ("product", 10240),
}
TIMERS = {
    "events": "cuda_event",
    "events, levelled": "cuda_event",
    "graph": turns.CUDA_GRAPH,
    "cupti": turns.CUPTI,
    "cupti, span": turns.CUPTI,
}
SETTINGS = Options(threshold=1.5, margin=0.5)
HEAD = (
    "| kernel | timer | reading | sd between processes | sd within one | calls a turn | cost of a turn |",
    "|---|---|---:|---:|---:|---:|---:|",
)
Read = dict[str, dict[str, list[float]]]  # kernel -> timer -> median ns, sd of turns (share), calls, seconds a turn


def main() -> int:
    if sys.argv[1:] == ["child"]:
        print(json.dumps(child(clock("cuda"))))
        return 0
    if not torch.cuda.is_available():
        print("torch sees no CUDA device", file=sys.stderr)
        return 2
    began, command = time.monotonic(), [sys.executable, "-m", "tests.benchmarks.timers", "child"]
    reads: list[Read] = [
        json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1])
        for _ in range(PROCESSES)
    ]
    print("\n".join(table(reads)))
    name, seconds = torch.cuda.get_device_name(0), time.monotonic() - began
    print(f"\n{name}, torch {torch.__version__}: {PROCESSES} processes, {seconds:.0f} s", file=sys.stderr)
    return 0


def table(reads: list[Read]) -> Iterator[str]:
    """A row a kernel and timer, of all processes."""
    yield from HEAD
    for kernel in KERNELS:
        for timer in TIMERS:
            told = [read[kernel][timer] for read in reads if timer in read[kernel]]
            if len(told) < 2:
                continue
            middles, spreads, calls, costs = (list(column) for column in zip(*told, strict=True))
            logs = [math.log(middle) for middle in middles]
            yield (
                f"| {kernel} | {timer} | {statistics.median(middles) / 1e3:.2f} us "
                f"| {100 * statistics.stdev(logs):.2f} % | {100 * statistics.median(spreads):.2f} % "
                f"| {calls[0]:.0f} | {1e3 * statistics.median(costs):.2f} ms |"
            )


def child(device: Clock) -> Read:
    """All kernels by all timers, in this process."""
    found: Read = {}
    for kernel, (what, size) in KERNELS.items():
        found[kernel] = {}
        for timer in TIMERS:
            try:
                read = reading(device, timer, lambda what=what, size=size: made(what, size))
            except Unsupported as error:
                print(f"{timer}: {error}", file=sys.stderr)
                continue
            found[kernel] |= {timer: read} if read else {}
    return found


def made(what: str, size: int) -> Op:
    """The operation on fresh inputs."""
    if what == "add":
        a = torch.randn(size, device="cuda")
        return Op(lambda: torch.add(a, a, out=a))
    a, b = (torch.randn(size, size, device="cuda").bfloat16() for _ in range(2))
    out = torch.empty_like(a)
    return Op(lambda: torch.mm(a, b, out=out))


def reading(device: Clock, timer: str, make: Callable[[], Op]) -> list[float]:
    """Median ns of turns, their sd as a share of it, calls a turn, seconds a turn; nothing where there is nothing to level.
    Raises Unsupported."""
    op = make()
    device.wall(op), device.wall(op)
    call = min(device.turn(op, 1, cold=False) for _ in range(3))
    pace = turns.pace("cuda", [call], [0.0], SETTINGS, timer=TIMERS[timer])
    if timer == "events, levelled" and not pace.empties:
        return []
    values: list[float] = []
    costs: list[float] = []
    for placement in range(PLACEMENTS):
        pad = device.pad(1000 * len(timer) + placement)
        op = make()
        turn = _turn(device, timer, op, pace)
        turn()
        until = time.monotonic() + SECONDS / PLACEMENTS
        while time.monotonic() < until or len(values) < 4 * (placement + 1):
            began = time.monotonic()
            values.append(turn())
            costs.append(time.monotonic() - began)
        del pad
    middle = statistics.median(values)
    return [middle, turns.spread(values) / middle, float(pace.calls), statistics.median(costs)]


def _turn(device: Clock, timer: str, op: Op, pace: turns.Pace) -> Callable[[], float]:
    """One turn, as the worker would take it."""
    if timer == "graph":
        graph: Any = device.graph(op, lambda: 0)
        return lambda: device.replays(graph, op, pace.calls)
    if timer == "cupti":
        return lambda: device.kernels(op, pace.calls, cold=True)
    if timer == "cupti, span":
        return lambda: device.span(op, pace.calls, cold=True)
    if timer == "events":
        return lambda: device.turn(op, pace.calls, cold=True)
    return lambda: device.turn(op, pace.calls, cold=True) - device.empty(pace.empties, cold=True)


if __name__ == "__main__":
    raise SystemExit(main())
