"""Time each case in one process, as other tools do: python bench.py PROTOCOL cpu|cuda CASES OUT.

CASES is a JSON list of the workload's cases. OUT becomes a JSON list of [ns of a call, seconds of measuring the case].
"""

from __future__ import annotations

import json
import runpy
import statistics
import sys
import time
from pathlib import Path

import torch

HERE = Path(__file__).parent


def ns(protocol, call, cuda):
    if protocol == "do_bench":
        from triton.testing import do_bench

        return 1e6 * do_bench(call, return_mode="median")
    if protocol == "autorange":
        from torch.utils.benchmark import Timer

        return 1e9 * Timer("call()", globals={"call": call}).blocked_autorange().median
    # The original scripts: 100 warm-up calls, then the mean of 100, each on an idle device with warm caches.
    for _ in range(100):
        call()
    return statistics.mean((by_events if cuda else by_clock)(call) for _ in range(100))


def by_events(call):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return 1e6 * start.elapsed_time(end)


def by_clock(call):
    began = time.perf_counter_ns()
    call()
    return time.perf_counter_ns() - began


def main(protocol, kind, cases, out):
    sys.path.insert(0, str(HERE / "kernels"))
    import meter

    meter.build(verbose=False)
    print(f"{protocol} on {kind}, SHARE = {meter.SHARE}", flush=True)
    workload, timed = runpy.run_path(str(HERE / "workloads" / "meter.py")), []
    for case in json.loads(Path(cases).read_text()):
        began = time.perf_counter()
        inputs = workload["inputs"](case, torch.device(kind), 0)
        time_of_call = ns(protocol, workload["prepare"](meter, "", case, inputs).call, kind == "cuda")
        timed.append([time_of_call, time.perf_counter() - began])
    Path(out).write_text(json.dumps(timed))


if __name__ == "__main__":
    main(*sys.argv[1:])
