"""What this device does at its best, by plain torch: matrix products and copies. Kernels are shown beside it.

A ceiling is the best of several readings at the clock that the device has now: neither a data sheet's number nor a bound
that no kernel can pass (memory traffic served by a cache is faster than a copy).
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable

import torch

from abprof.records import messages as wire
from abprof.worker.api import Op
from abprof.worker.clocks import Clock, CudaClock, shortest

SIZE = {"cpu": 1024, "cuda": 8192}  # of a square product's side
MIB = {"cpu": 256, "cuda": 1024}  # copied: more than caches hold
SLICE = 2e7  # ns of a reading
READINGS = 3


def reach(clock: Clock) -> wire.Ceilings:
    """The device's rates of products and of copies; None for what does not fit into memory."""
    on_gpu, size, device = isinstance(clock, CudaClock), SIZE[clock.kind], clock.device
    dtype = torch.float32
    if on_gpu:
        dtype = torch.bfloat16 if torch.cuda.get_device_capability() >= (8, 0) else torch.float16

    def product() -> Op:
        left, right = (
            torch.randn(512, 512, device=device).to(dtype).repeat(size // 512, size // 512) for _ in range(2)
        )
        out = torch.empty_like(left)
        return Op(lambda: torch.mm(left, right.t(), out=out))  # both along their rows: what a product reads best

    def copy() -> Op:
        source = torch.ones(MIB[clock.kind] << 20, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        return Op(lambda: target.copy_(source))

    def best(work: float, make: Callable[[], Op]) -> float | None:
        """The most work per ns that the device did."""
        try:
            op = make()
            clock.wall(op)  # libraries start, pages are touched
            calls = min(1000, max(3, math.ceil(SLICE / max(clock.wall(op), 1.0))))
            times = [
                clock.sustained(op, calls) if isinstance(clock, CudaClock) else clock.wall(op) for _ in range(READINGS)
            ]
            return work / shortest(times)
        except (RuntimeError, MemoryError, ZeroDivisionError) as error:  # torch's own memory errors are RuntimeErrors
            print(f"no ceiling: {error}", flush=True)
            return None
        finally:
            op = Op(lambda: None)  # frees its tensors
            gc.collect()

    flops, rate = best(2.0 * size**3, product), best(2.0 * (MIB[clock.kind] << 20), copy)
    clock.reset_peak()
    how = f"{'' if on_gpu else f' on {torch.get_num_threads()} threads'}, the best of {READINGS} readings"
    products = f"{str(dtype).removeprefix('torch.')} matrix products of {size} x {size} x {size}{how}"
    copies = f"copies of {MIB[clock.kind]} MiB, bytes read and written{how}"
    tflops = None if flops is None else flops / 1e3
    return wire.Ceilings(tflops, products if flops else "", rate, copies if rate else "")
