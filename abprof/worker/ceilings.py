"""What this device does at its best, by plain torch: matrix products and copies. Kernels are shown beside it.

A ceiling is the best of several readings at the clock that the device has now: neither a data sheet's number nor a bound
that no kernel can pass (memory traffic served by a cache is faster than a copy).
"""

from __future__ import annotations

import gc
import math
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from abprof.records import messages as wire
from abprof.worker.api import Op
from abprof.worker.clocks import Clock, shortest

SIZES = {"cpu": (512, 1024, 2048, 4096), "cuda": (4096, 8192, 16384)}  # of a square product's side
SLICE = {"cpu": 1e7, "cuda": 2e7}  # ns of a reading
READINGS = 3  # of each size
TILE = 512  # of the products' values, a divisor of SIZES
MIB = 1 << 20


@dataclass(frozen=True)
class Try:
    """One operation, and its work in a call: FLOP, or bytes read and written."""

    work: float
    text: str
    make: Callable[[], Op]


@dataclass(frozen=True)
class Best:
    """The highest rate of some tries, work per ns; 0 if none could be made."""

    rate: float = 0.0
    text: str = ""
    readings: int = 0


def reach(clock: Clock, seconds: float) -> wire.Reached:
    """The device's rates of products and of copies. What does not fit into memory is left out."""
    on_cpu = clock.kind == "cpu"
    if on_cpu:
        dtype = torch.float32
    else:
        dtype = torch.bfloat16 if torch.cuda.get_device_capability() >= (8, 0) else torch.float16
    # More bytes than caches hold, and what is tried if there is no room for that.
    copied = (min(1024, max(128, 16 * (os.cpu_count() or 1))) * MIB, 64 * MIB) if on_cpu else (1024 * MIB, 256 * MIB)
    for first in (_product(clock, dtype, TILE), _copy(clock, MIB)):
        clock.wall(first.make())  # libraries start, which takes longer than what is measured
    product = best(clock, [_product(clock, dtype, size) for size in SIZES[clock.kind]], seconds * 2 / 3)
    copies = (_copy(clock, size) for size in copied)
    copy = next((found for one in copies if (found := best(clock, [one], seconds / 3)).rate), Best())
    clock.reset_peak()
    threads = f" on {torch.get_num_threads()} threads" if on_cpu else ""
    products_by, copies_by = (
        f"{found.text}{threads}, the best of {found.readings} readings" if found.rate else ""
        for found in (product, copy)
    )
    return wire.Reached(product.rate / 1e3 if product.rate else None, copy.rate or None, products_by, copies_by)


def best(clock: Clock, tries: Iterable[Try], seconds: float) -> Best:
    """The highest rate among the tries, ordered from little work to much. One that would not fit into the time left is
    not started; the first that does not fit into memory ends the search."""
    ends, found, per_work = time.monotonic() + seconds, Best(), 0.0
    for one in tries:
        if found.readings and time.monotonic() + 3 * per_work * one.work > ends:
            break
        try:
            times = _readings(clock, one.make(), ends)
        except (RuntimeError, MemoryError) as error:  # torch's own memory errors are RuntimeErrors
            print(f"no ceiling by {one.text}: {error}", flush=True)
            break
        finally:
            gc.collect()
        took = shortest(times)
        if took:
            per_work = took / one.work / 1e9
            rate, text = max((found.rate, found.text), (one.work / took, one.text))
            found = Best(rate, text, found.readings + len(times))
    return found


def _readings(clock: Clock, op: Op, ends: float) -> list[float]:
    """Times per call (ns), two to three readings: on a GPU each of enough calls without a pause."""
    clock.wall(op)  # libraries start, pages are touched
    calls = min(1000, max(3, math.ceil(SLICE[clock.kind] / max(clock.wall(op), 1.0))))
    times: list[float] = []
    while len(times) < READINGS and not (len(times) > 1 and time.monotonic() > ends):
        times.append(clock.turn(op, 1, cold=False) if clock.kind == "cpu" else clock.sustained(op, calls))
    return times


def _product(clock: Clock, dtype: torch.dtype, size: int) -> Try:
    def make() -> Op:
        tiles = (torch.randn(TILE, TILE, device=clock.device).to(dtype) for _ in range(2))
        left, right = (tile.repeat(size // TILE, size // TILE) for tile in tiles)  # drawing them all takes too long
        out = torch.empty_like(left)
        return Op(lambda: torch.mm(left, right.t(), out=out))  # both along their rows: what a product reads best

    return Try(2.0 * size**3, f"{str(dtype).removeprefix('torch.')} matrix products of {size} x {size} x {size}", make)


def _copy(clock: Clock, size: int) -> Try:
    def make() -> Op:
        source = torch.ones(size, dtype=torch.uint8, device=clock.device)
        target = torch.empty_like(source)
        return Op(lambda: target.copy_(source))

    return Try(2.0 * size, f"copies of {size // MIB} MiB, bytes read and written", make)
