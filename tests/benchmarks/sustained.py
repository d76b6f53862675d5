"""`python -m tests.benchmarks.sustained [--seconds S] CASE...`: ffa and its peers on a GPU at its power limit.

CASE: MASK:DIRECTION:TOKENS:QUERY_HEADS:KEY_HEADS, e.g. causal:bwd:8192:64:8 (bfloat16, heads of 128). MASK may be random
blocks with the part that is kept: blocks64@0.2. One call of each in random order, without pauses; medians of 30 rounds
or more, after a warm-up. Over blocks the peer is flex_flash alone, which is faster than flex.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from abprof.kit import Unsupported
from kernels import ffa
from kernels.ffa.cuda import native
from workloads import block_sparse, dense

_BATCH = 10  # rounds between two waits for the GPU, so that it never idles
# Rounds. A call's clock depends on the call before it, and in fewer rounds calls do not follow one another equally often.
_LEAST = 30


def parsed(text: str) -> dict[str, Any]:
    mask, direction, *numbers = text.split(":")
    tokens, queries, keys = map(int, numbers)
    case = {"direction": direction, "seqlen": tokens, "nhq": queries, "nhk": keys, "hd": 128, "dtype": "bf16"}
    if not mask.startswith("blocks"):
        return case | {"mask_type": mask}
    size, kept = mask.removeprefix("blocks").split("@")
    options = dict.fromkeys(("pack_gqa", "swap_ab", "sparse_load"), False)
    return case | dict.fromkeys(block_sparse.BLOCKS, int(size)) | options | {"sparsity_ratio": float(kept)}


def calls(workload: Any, case: dict[str, Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
    given = workload.inputs(case, torch.device("cuda"), seed=1)
    yield "ffa", workload.prepare(ffa, None, case, given).call
    for peer in ("flex_flash",) if workload is block_sparse else ("fa4", "fa3", "sdpa"):
        try:
            call = workload.PEERS[peer](case, given).call
            call()
        except Unsupported:
            continue
        yield peer, call


def rounds(ops: dict[str, Callable[[], Any]], seconds: float, least: int = 1) -> dict[str, list[float]]:
    """Milliseconds of each call."""
    found, end, rng = {name: list[float]() for name in ops}, time.monotonic() + seconds, random.Random()
    while time.monotonic() < end or min(map(len, found.values())) < least:
        timed = []
        for _ in range(_BATCH):
            for name in rng.sample(sorted(ops), len(ops)):
                start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                ops[name]()
                stop.record()
                timed.append((name, start, stop))
        torch.cuda.synchronize()
        for name, start, stop in timed:
            found[name].append(start.elapsed_time(stop))
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("cases", nargs="+")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("it needs a CUDA GPU")
    native.compile_library(verbose=False)
    for text in given.cases:
        try:
            case = parsed(text)
        except ValueError:
            parser.error(f"{text}: not MASK:DIRECTION:TOKENS:QUERY_HEADS:KEY_HEADS")
        workload = dense if "mask_type" in case else block_sparse
        ops = dict(calls(workload, case))
        if len(ops) < 2:
            parser.error(f"{text}: no peer is installed that can do it")
        rounds(ops, given.seconds)
        found = rounds(ops, given.seconds, _LEAST)
        times = {name: statistics.median(values) for name, values in found.items()}
        best = min(ms for name, ms in times.items() if name != "ffa")
        flops = workload.work(case).flops
        shown = " ".join(f"{name} {flops / ms / 1e9:.0f}" for name, ms in times.items())
        print(
            f"{text}: {shown} TFLOP/s; ffa {best / times['ffa']:.3f}x of the best; {len(found['ffa'])} rounds",
            flush=True,
        )


if __name__ == "__main__":
    main()
