"""How far the clocks of a GPU's multiprocessors lie apart under load, and what a turn's cycles scatter by with one or all.

    python -m tests.benchmarks.cluster_clocks

Every multiprocessor is stamped (abprof/worker/clocks/stamps.py) before and after turns of work that is always the same: a
backward and a forward of torch's attention, 64 heads of 49152 rows, and 200 products of 8192; after pauses of 0 to 0.25 s, every
second turn after an untimed one. Prints how far turns scatter as read, by the cycles of the multiprocessor on which a stamp
of one block runs, and by the mean of all; needs 10 GB of device memory and half a minute.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence

import torch

from abprof.worker.clocks.stamps import Stamps

TURNS, PAUSES = 14, (0.0, 0.0, 0.02, 0.1, 0.25)
FIRST = 124  # where one block runs on an idle H200; on a device without it the slowest stands for it


def main() -> int:
    stamps, chance = Stamps(torch.device("cuda")), random.Random(1)
    print("| work | time | as read | one multiprocessor | mean of all | apart |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, work in loads().items():
        work()
        torch.cuda.synchronize()
        read = []
        for number in range(TURNS):
            time.sleep(chance.choice(PAUSES))
            if number % 2:
                work()
            read.append(turn(stamps, work))
        times = [ns for ns, _ in read]
        one = [ns * clocks.get(FIRST, min(clocks.values())) for ns, clocks in read]
        mean = [ns * statistics.fmean(clocks.values()) for ns, clocks in read]
        apart = statistics.fmean((max(c.values()) - min(c.values())) / statistics.fmean(c.values()) for _, c in read)
        shown = " | ".join(f"{100 * scatter(each):.3f} %" for each in (times, one, mean))
        print(f"| {name} | {statistics.fmean(times) / 1e6:.0f} ms | {shown} | {100 * apart:.2f} % |")
    return 0


def loads() -> dict[str, Callable[[], object]]:
    """Work that takes 0.1 to 0.4 s on an H200, at its power limit."""
    torch.manual_seed(0)
    a = torch.randn(8192, 8192, device="cuda").bfloat16()
    b, product = a.t().contiguous(), torch.empty_like(a)
    q, k, v = (
        torch.randn(1, 64, 49152, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
    )
    attention = torch.nn.functional.scaled_dot_product_attention
    out = attention(q, k, v)
    gradient = torch.randn_like(out)

    def forward() -> None:
        with torch.no_grad():
            attention(q, k, v)

    def products() -> None:
        for _ in range(200):
            torch.mm(a, b, out=product)

    return {
        "backward": lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True),
        "forward": forward,
        "products": products,
    }


def turn(stamps: Stamps, work: Callable[[], object]) -> tuple[float, dict[int, float]]:
    """ns of the work by events, and each multiprocessor's clock, MHz."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    stamps.begin()
    first.record()
    work()
    last.record()
    stamps.end()
    torch.cuda.synchronize()
    return 1e6 * first.elapsed_time(last), stamps.clocks()


def scatter(values: Sequence[float]) -> float:
    """Standard deviation by the mean."""
    return statistics.stdev(values) / statistics.fmean(values)


if __name__ == "__main__":
    raise SystemExit(main())
