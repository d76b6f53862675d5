"""`python -m tests.benchmarks.drawn_turn [--device cpu] [--profile] [CASE...]`: what --untrusted adds to ffa's calls.

CASE as in tests.benchmarks.sustained, by default full and causal, forward and backward. Prints the wall time of a
call by hand, and of one whose inputs change and whose outputs are kept; with --profile also where the host spends it.
"""

import argparse
import cProfile
import dataclasses
import os
import pstats
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from abprof.records import messages as wire
from abprof.worker.bench import Bench
from tests.benchmarks.sustained import parsed

ROOT = Path(__file__).parents[2]
CASES = [f"{mask}:{direction}:4096:32:8" for mask in ("full", "causal") for direction in ("fwd", "bwd")]
TIMERS, TURN, TURNS = {"cpu": "cpu_clock", "cuda": "cuda_event"}, 1e7, 8  # ns of the calls of a turn


def milliseconds(bench: Bench, turn: wire.Turn) -> float:
    """Return the median of the wall time of a call of some turns."""
    found = []
    for _ in range(TURNS):
        began = time.perf_counter()
        bench.turn(turn)
        found.append((time.perf_counter() - began) * 1e3 / turn.calls)
    return statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda", choices=TIMERS)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("cases", nargs="*", default=CASES)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ABPROF_BUILD_DIR"] = folder
        (Path(folder) / "base").mkdir()
        mount = wire.Mount("ffa", str(ROOT), "kernels.ffa", folder, [str(ROOT), folder])
        files = {"dense": str(ROOT / "workloads/dense.py")}
        bench = Bench(wire.Start(given.device, "base", mount, files, folder))
        bench.kernel().build(verbose=False)
        if given.device == "cuda":
            bench.memory = torch.empty(4 << 30, dtype=torch.uint8, device="cuda")
        for text in given.cases:
            case: dict[str, Any] = parsed(text) | ({"dtype": "fp32", "hd": 64} if given.device == "cpu" else {})
            opened = bench.open(wire.Open("dense", case, "base"))
            plain = wire.Turn("base", max(1, min(64, round(TURN / opened.call_ns))), TIMERS[given.device])
            shared, anew = given.device == "cuda", case["direction"] == "bwd"  # a forward comes before each backward
            drawn = dataclasses.replace(plain, draw=[1, 2, 3], outputs="base/kept", shared=shared, anew=anew)
            by_hand = milliseconds(bench, plain)
            first = bench.turn(dataclasses.replace(drawn, lead=1e6 * plain.calls))  # makes the mixtures
            drawn = dataclasses.replace(drawn, lead=2 * first.lead)
            changing = milliseconds(bench, drawn)
            seen = f"{by_hand:.3f} ms a call by hand, {changing:.3f} drawn"
            print(f"{text}: {plain.calls} calls a turn, {seen}, {first.lead / 1e6:.2f} ms of lead needed")
            if given.profile:
                with cProfile.Profile() as profile:
                    milliseconds(bench, drawn)
                pstats.Stats(profile).sort_stats("tottime").print_stats(25)
            bench.close(wire.Close())


if __name__ == "__main__":
    main()
