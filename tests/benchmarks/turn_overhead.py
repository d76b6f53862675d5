"""What a turn costs beside the turn itself: the parent's own time, and what lies between two turns of a round.

    python -m tests.benchmarks.turn_overhead [--turns 4000]

Two live workers on the CPU take strict turns of a call that does nothing, asked as a run asks them. Prints microseconds
a turn: the parent's own processor time, and from the end of a turn to the start of the next on the one clock that all
share (the parent, two pipes, and both workers' reading and writing). The device is never waited for by either.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from abprof.builds import environment
from abprof.builds.worker_bundle import install
from abprof.records import messages as wire
from abprof.system.processes import Worker

WORKLOAD = """
from abprof.kit import Op
API = 1
KERNEL = "none"
PRESETS = {"default": {"n": [1]}}
def inputs(case, device, seed):
    return None
def prepare(kernel, variant, case, inputs):
    raise NotImplementedError
PEERS = {"nothing": lambda case, inputs: Op(lambda: None)}
"""


def start(folder: Path, name: str) -> Worker:
    """A worker whose cell is open."""
    env = environment.worker(environment.clean(dict(os.environ), "user")[0], folder / name, "cpu", {})
    argv = (sys.executable, "-P", str(install(folder)))
    worker = Worker(argv, env=env, cwd=folder, log=folder / f"{name}.log", name=name)
    worker.call(wire.Start("cpu", name, None, {"w": str(folder / "w.py")}, str(folder)), 60)
    worker.call(wire.Open("w", {"n": 1}, "a", peer="nothing"), 60)
    return worker


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=4000)
    turns = parser.parse_args().turns
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "w.py").write_text(WORKLOAD)
        workers = [start(folder, "first"), start(folder, "second")]
        own, ends, between = [], 0, []
        for i in range(turns):
            before = time.thread_time_ns()
            turned: wire.Turned = workers[i % 2].call(wire.Turn("a", 1, "cpu_clock"), 60)
            own.append(time.thread_time_ns() - before)
            between += [turned.start - ends] if ends else []
            ends = turned.end
        for worker in workers:
            worker.stop()
    for what, values in (("parent's own", own), ("between turns", between)):
        low, *_, high = statistics.quantiles(values, n=20)
        print(
            f"{what:14} median {statistics.median(values) / 1e3:6.1f} us, 5 to 95 %: {low / 1e3:.1f} to {high / 1e3:.1f} us"
        )


if __name__ == "__main__":
    main()
