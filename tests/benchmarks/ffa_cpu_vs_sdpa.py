"""kernels/ffa against torch.nn.functional.scaled_dot_product_attention on this machine's CPU, in turns.

    OMP_WAIT_POLICY=passive python tests/benchmarks/ffa_cpu_vs_sdpa.py [--rounds 15] [--backward] [--seqlen 1024 2048]

A round is one call of each in a fresh random order, each after the same pause; the figure is the median over rounds of
sdpa time / ffa time, so above 1 means that ffa is quicker. Both use the same number of threads. torch and the ffa
library normally share one OpenMP runtime (the line "OpenMP runtimes" says how many are loaded); passive waiting keeps
idle threads of either quiet should there be two. SDPA gets its own layout [1, H, S, D], ffa its own [S, H, D], both
contiguous.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn.functional import scaled_dot_product_attention

sys.path.insert(0, str(Path(__file__).parents[2] / "kernels"))

import ffa

HEADS = 8


def main() -> None:
    options = _options()
    ffa.build(verbose=False)
    _describe()
    print(
        f"{'dtype':9} {'D':>4} {'S':>5} {'mask':7} {'ffa ms':>9} {'sdpa ms':>9} {'ffa GFLOP/s':>12} {'sdpa/ffa':>9}  quartiles"
    )
    for dtype in (torch.float32, torch.bfloat16):
        for dim in (128, 64):
            for seqlen in options.seqlen:
                for causal in (False, True):
                    _row(dtype, dim, seqlen, causal, options)


def _row(dtype: torch.dtype, dim: int, seqlen: int, causal: bool, options: argparse.Namespace) -> None:
    calls = _calls(dtype, dim, seqlen, causal, options.backward)
    for call in calls.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    for _ in range(options.rounds):
        random.shuffle(order)
        for name in order:
            time.sleep(options.pause)
            began = time.perf_counter()
            calls[name]()
            times[name].append(time.perf_counter() - began)
    ratios = sorted(s / f for f, s in zip(times["ffa"], times["sdpa"], strict=True))
    ffa_s, sdpa_s = (statistics.median(times[name]) for name in ("ffa", "sdpa"))
    flops = (5 if options.backward else 2) * 2 * HEADS * dim * _area(seqlen, causal)
    low, _, high = statistics.quantiles(ratios, n=4)
    print(
        f"{str(dtype).removeprefix('torch.'):9} {dim:4} {seqlen:5} {'causal' if causal else 'full':7} {ffa_s * 1e3:9.2f} "
        f"{sdpa_s * 1e3:9.2f} {flops / ffa_s / 1e9:12.1f} {statistics.median(ratios):9.3f}  [{low:.3f}, {high:.3f}]",
        flush=True,
    )


def _area(seqlen: int, causal: bool) -> int:
    return seqlen * (seqlen + 1) // 2 if causal else seqlen * seqlen


def _calls(dtype: torch.dtype, dim: int, seqlen: int, causal: bool, backward: bool) -> dict[str, Callable[[], object]]:
    generator = torch.Generator().manual_seed(seqlen + dim)
    tokens = [torch.randn(seqlen, HEADS, dim, generator=generator).to(dtype) for _ in range(4)]
    heads = [x.transpose(0, 1)[None].contiguous() for x in tokens]
    ranges, masks = [(0, seqlen)], [int(causal)]

    def run_ffa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return ffa.ffa_attention(q, k, v, ranges, ranges, masks)

    def run_sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(q, k, v, is_causal=causal)

    if not backward:
        return {"ffa": lambda: run_ffa(*tokens[:3]), "sdpa": lambda: run_sdpa(*heads[:3])}
    made = {}
    for name, run, (*qkv, grad) in (("ffa", run_ffa, tokens), ("sdpa", run_sdpa, heads)):
        inputs = [x.requires_grad_() for x in qkv]
        out = run(*inputs)
        made[name] = lambda out=out, inputs=inputs, grad=grad: torch.autograd.grad(out, inputs, grad, retain_graph=True)
    return made


def _describe() -> None:
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    runtimes = [x for x in mapped if Path(x).name.startswith(("libgomp", "libiomp", "libomp"))]
    cpuinfo = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((x.split(":")[1].strip() for x in cpuinfo if x.startswith("model name")), "?")
    isa = {1: "AVX2", 2: "AVX-512"}[sys.modules["ffa.cpu"].instruction_set()]
    print(f"{model}, {os.cpu_count()} CPUs, {torch.get_num_threads()} threads, {isa}; torch {torch.__version__}")
    print(
        f"Python {platform.python_version()}; OMP_WAIT_POLICY={os.environ.get('OMP_WAIT_POLICY', '(unset)')}; ", end=""
    )
    print(f"OpenMP runtimes: {len(runtimes)}; load {os.getloadavg()[0]:.2f}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--pause", type=float, default=0.02, help="seconds before each call")
    parser.add_argument("--seqlen", type=int, nargs="+", default=[1024, 2048])
    parser.add_argument("--backward", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
