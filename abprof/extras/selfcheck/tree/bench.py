"""Time each case in one process, as other tools do: python bench.py PROTOCOL cpu|cuda CASES OUT.

CASES is a JSON file with a list of the workload's cases. OUT becomes a JSON list of [ns of a call, seconds it took].
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


def do_bench(call, device):
    from triton.testing import do_bench

    return 1e6 * do_bench(call, return_mode="median")


def autorange(call, device):
    from torch.utils.benchmark import Timer

    return 1e9 * Timer("call()", globals={"call": call}).blocked_autorange().median


def original(call, device):
    """The original scripts: 100 warm-up calls, then the mean of 100. Each begins on an idle device, with warm caches."""
    for _ in range(100):
        call()
    return statistics.mean((_by_events if device.type == "cuda" else _by_clock)(call) for _ in range(100))


def _by_events(call):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return 1e6 * start.elapsed_time(end)


def _by_clock(call):
    began = time.perf_counter_ns()
    call()
    return time.perf_counter_ns() - began


def main(protocol, name, cases, out):
    sys.path.insert(0, str(HERE / "kernels"))
    import meter

    meter.build(verbose=False)
    workload = runpy.run_path(str(HERE / "workloads" / "meter.py"))
    device, timed = torch.device(name), []
    for case in json.loads(Path(cases).read_text()):
        began = time.perf_counter()
        call = workload["prepare"](meter, "", case, workload["inputs"](case, device, 0)).call
        ns = {"do_bench": do_bench, "autorange": autorange, "original": original}[protocol](call, device)
        timed.append([ns, time.perf_counter() - began])
    Path(out).write_text(json.dumps(timed))


if __name__ == "__main__":
    main(*sys.argv[1:])
