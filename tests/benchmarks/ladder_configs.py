"""Which configuration suits each rung of kernels/ladder on this GPU: what a row of its platform table is chosen by.

    python tests/benchmarks/ladder_configs.py [--turns 10] [--tokens 1024 4096 16384] [--rungs memory full]

Batch 4, 32 heads of 128, float16, causal, as workloads/fmha_scaling.py. Configurations take turns; before each call 512 MB
are written, so that no call finds its inputs in the L2 cache. Prints the median milliseconds and TFLOP/s of each, the
quickest first, those that the GPU has no room for last, and marks the table's own.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from itertools import product
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from kernels import ladder
from kernels.ladder.api import family

BATCH, HEADS, DIM = 4, 32, 128


def candidates(rung: str) -> list[ladder.Config]:
    """Tiles of 64 or 128 rows, 32 to 128 keys; what the rungs below `memory` have not is left out."""
    upper = rung in ("memory", "full")
    tiles = [(64, 32, 4), (64, 64, 4), (64, 128, 4), (128, 32, 8), (128, 64, 8), (128, 128, 8)]
    stages, shares = (2, 3) if upper else (1, 2), (1, 2) if rung == "full" else (1,)
    tma = upper and family(torch.device("cuda")) != "sm80"
    return [ladder.Config(*tile, count, tma, share) for tile, count, share in product(tiles, stages, shares)]


def milliseconds(rung: str, length: int, turns: int) -> dict[ladder.Config, float]:
    """Median time of each configuration; infinite where it does not fit."""
    q, k, v = (torch.randn(BATCH, HEADS, length, DIM, device="cuda", dtype=torch.float16) for _ in range(3))
    flush = torch.empty(512 << 20, dtype=torch.int8, device="cuda")
    seen: dict[ladder.Config, list[float]] = {}
    for turn in range(turns + 1):
        for config in candidates(rung):
            flush.zero_()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            try:
                ladder.fmha(q, k, v, rung=rung, config=config)
            except Exception as error:
                if turn == 0:
                    print(f"{config}: {str(error).splitlines()[0]}")
                seen[config] = [float("inf")]
                continue
            end.record()
            end.synchronize()
            if turn:  # the first one compiles
                seen.setdefault(config, []).append(begin.elapsed_time(end))
    return {config: statistics.median(times) for config, times in seen.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--rungs", nargs="+", default=list(ladder.RUNGS), choices=ladder.RUNGS)
    args = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, table row {family(torch.device('cuda'))}")
    for rung, length in product(args.rungs, args.tokens):
        flops = 2 * BATCH * HEADS * length**2 * DIM
        print(f"\n{rung} at {length}")
        found = milliseconds(rung, length, args.turns)
        for config in sorted(found, key=lambda c: found[c]):
            own = "  <- the table's" if config == ladder.configuration(rung) else ""
            print(f"{found[config]:9.3f} ms {flops / found[config] / 1e9:8.1f} TFLOP/s  {config}{own}", flush=True)


if __name__ == "__main__":
    main()
