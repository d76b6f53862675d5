"""Speed of kernels/ffa on a GPU beside PyTorch's cuDNN attention, call by call in turns.

    python tests/benchmarks/ffa_cuda_vs_sdpa.py [--turns 20] [--tokens 8192] [--sparse-tokens 49152] [--phases]

Prints one row per case: median milliseconds between CUDA events around one call, TFLOP/s of the exact attended area
(forward 4 area heads dim, backward 2.5 times that), the peer's, and their ratio. Fresh random bfloat16 inputs. Before
each call 512 MB are written, so that no call finds its inputs in the L2 cache.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from kernels.ffa import cuda
from kernels.ffa.schedule import CAUSAL, FULL, Blocks, Schedule, Slices, merge_slices

HEADS, DIM = 64, 128
# The document lengths of workloads/dense.py.
VARLEN = {
    "varlen_full": (2150, 3051, 419, 356, 130, 895, 54, 1116, 14, 2, 2, 1, 1, 1),
    "varlen_causal": (1408, 177, 2559, 2823, 600, 370, 35, 58, 20, 25, 58, 23, 22, 4, 10),
}
Call = Callable[[], object]
DEVICE = torch.device("cuda")


def documents(lengths: tuple[int, ...], mask: int) -> Slices:
    ranges = tuple(pairwise([0, *accumulate(lengths)]))
    return merge_slices(ranges, ranges, (mask,) * len(ranges), sum(lengths), sum(lengths))


def sparse(tokens: int, block: int, ratio: float) -> Blocks:
    n = tokens // block
    kept = max(1, int(ratio * n))
    lists = torch.rand(HEADS, n, n, device=DEVICE).argsort(-1)[..., :kept].sort(-1).values
    num = torch.full((HEADS, n), kept, dtype=torch.int32, device=DEVICE)
    return Blocks(num, lists.to(torch.int32).contiguous(), block, block, tokens, tokens)


def calls(schedule: Schedule) -> tuple[dict[str, Call], float]:
    """Our forward and backward, and the FLOPs of the forward."""
    q, k, v, dout = (torch.randn(schedule.q_len, HEADS, DIM, device=DEVICE, dtype=torch.bfloat16) for _ in range(4))
    scale = DIM**-0.5
    out, lse = cuda.forward(q, k, v, schedule, scale)
    if isinstance(schedule, Blocks):
        area = int(schedule.kv_num.sum()) / HEADS * schedule.q_block * schedule.k_block
    else:
        area = schedule.area
    made: dict[str, Call] = {
        "fwd": lambda: cuda.forward(q, k, v, schedule, scale),
        "bwd": lambda: cuda.backward(dout, q, k, v, out, lse, schedule, scale),
    }
    return made, 4.0 * area * HEADS * DIM


def peers(tokens: int, causal: bool) -> dict[str, Call]:
    """cuDNN's forward and backward on [1, heads, tokens, dim]."""
    q, k, v = (
        torch.randn(1, HEADS, tokens, DIM, device=DEVICE, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
    )

    def forward() -> torch.Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return scaled_dot_product_attention(q, k, v, is_causal=causal)

    out = forward()
    dout = torch.randn_like(out)

    def forward_only() -> object:
        with torch.no_grad():
            return forward()

    return {"fwd": forward_only, "bwd": lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)}


def in_turns(calls: dict[str, Call], turns: int) -> dict[str, float]:
    """Median milliseconds of one call of each, taken in turns."""
    flush = torch.empty(128 * 2**20, dtype=torch.int32, device=DEVICE)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(turns + 2):
        for name, call in calls.items():
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            flush.zero_()
            begin.record()
            call()
            end.record()
            torch.cuda.synchronize()
            if turn >= 2:
                times[name].append(begin.elapsed_time(end))
    return {name: statistics.median(values) for name, values in times.items()}


def phases(call: Call) -> str:
    """The kernels of one call with their times."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    found = [(e.key[:40], e.device_time_total) for e in profile.key_averages() if e.device_time_total > 0]
    return ", ".join(f"{name} {us:.0f} us" for name, us in sorted(found, key=lambda e: -e[1]))


def cases(tokens: int, sparse_tokens: int) -> Iterator[tuple[str, Schedule, dict[str, Call]]]:
    yield "full", documents((tokens,), FULL), peers(tokens, False)
    yield "causal", documents((tokens,), CAUSAL), peers(tokens, True)
    for name, lengths in VARLEN.items():
        yield name, documents(lengths, CAUSAL if "causal" in name else FULL), {}
    for block in (128, 64):
        for ratio in (0.05, 0.2, 1.0):
            yield f"blocks {block} kept {ratio}", sparse(sparse_tokens, block, ratio), {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--sparse-tokens", type=int, default=49152)
    parser.add_argument("--phases", action="store_true", help="also print the kernels of each call")
    options = parser.parse_args()
    rows = []
    for name, schedule, others in cases(options.tokens, options.sparse_tokens):
        ours, flops = calls(schedule)
        for direction, work in (("fwd", flops), ("bwd", 2.5 * flops)):
            turns = options.turns if work < 2e13 else 4
            taken = {"ffa": ours[direction]} | ({"peer": others[direction]} if others else {})
            ms = in_turns(taken, turns)
            rate = {arm: work / t / 1e9 for arm, t in ms.items()}
            peer = f"{rate['peer']:7.1f} {rate['ffa'] / rate['peer']:6.3f}" if others else f"{'-':>7} {'-':>6}"
            rows.append(f"{name:22} {direction} {ms['ffa']:9.3f} {rate['ffa']:8.1f} {peer}")
            print(rows[-1], flush=True)
            if options.phases:
                print("   ", phases(ours[direction]), flush=True)
        del ours, others
        torch.cuda.empty_cache()
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}, {HEADS} heads of {DIM}, bfloat16")
    print(f"{'case':22} dir        ms  TFLOP/s   cuDNN  ratio", *rows, sep="\n")


if __name__ == "__main__":
    main()
