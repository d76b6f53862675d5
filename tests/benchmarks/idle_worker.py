"""What an idle second worker costs the first one on a CPU, under different OpenMP wait policies.

    python -m tests.benchmarks.idle_worker [--turns 150]

For each policy: one worker alone, then two live workers taking strict turns; the median call of each, the ratio of both
to alone-with-that-policy, and the scatter of the pairs' log ratio (two identical workers: it should be 0).
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import tempfile
from pathlib import Path

from abprof.builds import environment
from abprof.builds.worker_bundle import install
from abprof.records import messages as wire
from abprof.system.processes import Worker

POLICIES = {
    "as it comes": {},
    "OMP_WAIT_POLICY=PASSIVE": {"OMP_WAIT_POLICY": "PASSIVE"},
    "GOMP_SPINCOUNT=3000": {"GOMP_SPINCOUNT": "3000", "KMP_BLOCKTIME": "0"},
    "GOMP_SPINCOUNT=30000": {"GOMP_SPINCOUNT": "30000", "KMP_BLOCKTIME": "0"},
}
WORKLOAD = """
import torch
from abprof.kit import Op
API = 1
KERNEL = "none"
PRESETS = {"default": {"n": [1]}}
def inputs(case, device, seed):
    return torch.randn(1, 4, 512, 64), torch.randn(512, 512)
def prepare(kernel, variant, case, inputs):
    raise NotImplementedError
def attention(case, inputs):
    x, m = inputs
    return Op(lambda: torch.nn.functional.scaled_dot_product_attention(x, x, x) @ x.transpose(-1, -2))
PEERS = {"sdpa": attention}
"""


def start(folder: Path, name: str, more: dict[str, str]) -> Worker:
    base, _ = environment.clean(
        {k: v for k, v in os.environ.items() if not k.startswith(("GOMP", "OMP", "KMP"))}, "user"
    )
    env = environment.worker(base, folder / name, "cpu", {})
    for variable in ("GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        env.pop(variable, None)
    script = str(install(folder))
    worker = Worker((sys.executable, "-P", script), env=env | more, cwd=folder, log=folder / f"{name}.log", name=name)
    worker.call(wire.Start("cpu", name, None, {"w": str(folder / "w.py")}, str(folder)), 60)
    worker.call(wire.Open("w", {"n": 1}, "a", peer="sdpa"), 60)
    return worker


def call(worker: Worker) -> float:
    turned: wire.Turned = worker.call(wire.Turn("a", 1, "cpu_clock"), 60)
    return turned.value


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=150)
    turns = parser.parse_args().turns
    print(f"{'policy':26} {'alone us':>9} {'in turns us':>12} {'ratio':>7} {'pair median':>12} {'pair sd':>8}")
    for policy, more in POLICIES.items():
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "w.py").write_text(WORKLOAD)
            first = start(folder, "first", more)
            alone = statistics.median(call(first) for _ in range(turns))
            second = start(folder, "second", more)
            pairs = []
            for i in range(turns):
                one, two = (first, second) if i % 2 else (second, first)
                a, b = call(one), call(two)
                pairs.append((a, b) if i % 2 else (b, a))
            first.stop()
            second.stop()
        both = statistics.median(a for a, _ in pairs)
        logs = [math.log(b / a) for a, b in pairs]
        print(
            f"{policy:26} {alone / 1e3:9.0f} {both / 1e3:12.0f} {both / alone:7.2f} "
            f"{statistics.median(logs):+12.4f} {statistics.stdev(logs):8.3f}"
        )


if __name__ == "__main__":
    main()
