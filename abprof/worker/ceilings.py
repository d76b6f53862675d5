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
from typing import Any

import torch

from abprof.records import messages as wire
from abprof.worker.api import Op
from abprof.worker.clocks import Clock, CudaClock, shortest

SIZES = {"cpu": (512, 1024, 2048, 4096), "cuda": (4096, 8192, 16384)}  # of a square product's side
SLICE = {"cpu": 1e7, "cuda": 2e7}  # ns of a reading
READINGS = 3  # of each operation
TILE = 512  # of the products' values, a divisor of SIZES
MIB = 1 << 20
Try = tuple[float, str, Callable[[], Op]]  # work of a call (FLOP, or bytes read and written), text, operation
Best = tuple[float, str, int]  # rate (work per ns; 0: none), text, readings


def reach(clock: Clock, seconds: float) -> wire.Reached:
    """The device's rates of products and of copies, in about `seconds`. What does not fit into memory is left out."""
    on_cpu = clock.kind == "cpu"
    if on_cpu:
        dtype, threads = torch.float32, f" on {torch.get_num_threads()} threads"
    else:
        dtype, threads = torch.bfloat16 if torch.cuda.get_device_capability() >= (8, 0) else torch.float16, ""
    # More bytes than caches hold, and fewer if there is no room for that.
    copied = (min(1024, max(128, 16 * (os.cpu_count() or 1))), 64) if on_cpu else (1024, 256)

    def product(size: int) -> Try:
        def make() -> Op:
            tiles = (torch.randn(TILE, TILE, device=clock.device).to(dtype) for _ in range(2))
            left, right = (tile.repeat(size // TILE, size // TILE) for tile in tiles)  # drawing them all takes too long
            out = torch.empty_like(left)
            return Op(lambda: torch.mm(left, right.t(), out=out))  # both along their rows: what a product reads best

        return 2.0 * size**3, f"{str(dtype).removeprefix('torch.')} matrix products of {size} x {size} x {size}", make

    def copy(mib: int) -> Try:
        def make() -> Op:
            source = torch.ones(mib * MIB, dtype=torch.uint8, device=clock.device)
            target = torch.empty_like(source)
            return Op(lambda: target.copy_(source))

        return 2.0 * mib * MIB, f"copies of {mib} MiB, bytes read and written", make

    for _, _, make in (product(TILE), copy(1)):
        clock.wall(make())  # libraries start, which takes longer than what is measured
    flops, *products = best(clock, map(product, SIZES[clock.kind]), seconds * 2 / 3)
    copies = (best(clock, [copy(mib)], seconds / 3) for mib in copied)
    rate, *copied_by = next((found for found in copies if found[0]), (0.0, "", 0))
    clock.reset_peak()

    def text(by: list[Any]) -> str:
        return f"{by[0]}{threads}, the best of {by[1]} readings" if by[0] else ""

    return wire.Reached(flops / 1e3 or None, rate or None, text(products), text(copied_by))


def best(clock: Clock, tries: Iterable[Try], seconds: float) -> Best:
    """The highest rate among the tries, ordered from little work to much. One that would not fit into the time left is
    not started; the first that does not fit into memory ends the search."""
    ends, rate, text, count, ns_per_work = time.monotonic() + seconds, 0.0, "", 0, 0.0
    for work, name, make in tries:
        if count and time.monotonic() + 3e-9 * ns_per_work * work > ends:
            break
        try:
            op = make()
            clock.wall(op)  # libraries start, pages are touched
            calls = min(1000, max(3, math.ceil(SLICE[clock.kind] / max(clock.wall(op), 1.0))))
            times: list[float] = []
            while len(times) < READINGS and not (len(times) > 1 and time.monotonic() > ends):
                if isinstance(clock, CudaClock):  # a reading is of calls without a pause
                    times.append(clock.sustained(op, calls))
                else:
                    times.append(clock.turn(op, 1, cold=False))
        except (RuntimeError, MemoryError) as error:  # torch's own memory errors are RuntimeErrors
            print(f"no ceiling by {name}: {error}", flush=True)
            break
        finally:
            op = Op(lambda: None)  # frees its tensors
            gc.collect()
        if took := shortest(times):
            ns_per_work = took / work
            rate, text = max((rate, text), (work / took, name))
            count += len(times)
    return rate, text, count
