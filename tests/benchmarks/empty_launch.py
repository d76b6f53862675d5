"""What an event pair and a launch cost by themselves in fresh processes, and which empty launch tells that best.

    python -m tests.benchmarks.empty_launch            on a GPU; seven processes, one after the other

Each process times four kernels and several empty launches by event pairs, twelve of each at eight placements of the inputs.
Shown are the medians in us, and how far a kernel minus an empty launch still differs between processes.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

PROCESSES, PLACEMENTS, PAIRS = 7, 8, 12
KERNELS = ("chain 400", "chain 4000", "product 2048", "add 1M")
FLUSH = 100 << 20  # bytes
SPIN = 200_000  # cycles: until the host has enqueued what is timed


@triton.jit
def nothing():
    pass


@triton.jit
def chain(out, steps, WIDTH: tl.constexpr):
    at = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    value = tl.load(out + at)
    for _ in range(steps):
        value = value * 0.5 + 0.5
    tl.store(out + at, value)


def main() -> int:
    if sys.argv[1:] == ["child"]:
        print(json.dumps(child()))
        return 0
    command = [sys.executable, "-m", "tests.benchmarks.empty_launch", "child"]
    read = [json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
            for _ in range(PROCESSES)]  # fmt: skip
    for name in read[0]:
        values = [each[name] for each in read]
        print(f"{name:20} {' '.join(f'{v:8.3f}' for v in values)}  sd {1e3 * statistics.stdev(values):.0f} ns")
    for kernel in KERNELS:
        for empty in (name for name in read[0] if name not in KERNELS):
            left = statistics.stdev(each[kernel] - each[empty] for each in read)
            print(f"{kernel} minus {empty}: sd {1e3 * left:.0f} ns")
    return 0


def timed(call: Callable[[], Any], flushed: Any = None, pairs: int = PAIRS) -> float:
    """Mean event pair around the call, us; with `flushed`, a tensor larger than the L2 cache, cold."""
    events = []
    for _ in range(pairs):
        if flushed is not None:
            flushed.zero_()
        torch.cuda._sleep(SPIN)
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        call()
        last.record()
        events.append((first, last))
    torch.cuda.synchronize()
    return statistics.mean(1e3 * first.elapsed_time(last) for first, last in events)


def child() -> dict[str, float]:
    """Median us of each kernel and each empty launch in this process."""

    def make(name: str) -> Callable[[], Any]:
        """The operation on fresh inputs."""
        what, size = name.split()
        if what == "add":
            a = torch.randn(1 << 20, device="cuda")
            return lambda: torch.add(a, a, out=a)
        if what == "product":
            a, b = (torch.randn(2048, 2048, device="cuda").bfloat16() for _ in range(2))
            out = torch.empty_like(a)
            return lambda: torch.mm(a, b, out=out)
        values = torch.rand(132 * 1024, device="cuda")
        return lambda: chain[(132,)](values, int(size), WIDTH=1024, num_warps=8)

    flushed = torch.empty(FLUSH, dtype=torch.uint8, device="cuda")
    empties: dict[str, tuple[Callable[[], Any], Any]] = {
        "Triton, cold": (nothing[(1,)], flushed),
        "Triton, warm": (nothing[(1,)], None),
        "_sleep(0), cold": (lambda: torch.cuda._sleep(0), flushed),
        "_sleep(0), warm": (lambda: torch.cuda._sleep(0), None),
    }
    found: dict[str, list[float]] = {name: [] for name in (*KERNELS, *empties)}
    for name in KERNELS:
        timed(make(name), flushed, 4)  # compiles
    for call, cold in empties.values():
        timed(call, cold, 4)
    for placement in range(PLACEMENTS):
        pad = torch.empty(512 * (placement * 7919 % 4096 + 1), dtype=torch.uint8, device="cuda")
        for name in KERNELS:
            found[name].append(timed(make(name), flushed))
        for name, (call, cold) in empties.items():
            found[name].append(timed(call, cold))
        del pad
    return {name: statistics.median(values) for name, values in found.items()}


if __name__ == "__main__":
    raise SystemExit(main())
