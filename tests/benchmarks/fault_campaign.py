"""The campaign of random faults on simulated workers: `python -m tests.benchmarks.fault_campaign FIRST LAST [--processes N]`.

Rounds from 1000 on spread their run over two devices. Prints a line for each round as it ends, with each promise that it
broke, and at the end a table: what happened how often, and how many rounds of it broke a promise.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.simulated.campaign import drawn, play


def one(number: int) -> tuple[int, list[str], float]:
    """The number, the promises that it broke, and the seconds that it took."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        return number, play(drawn(number), Path(folder)), time.monotonic() - began


def main(numbers: range, processes: int) -> int:
    """Play these rounds. 1 when a promise was broken."""
    played, failed, broke = Counter[str](), Counter[str](), 0
    with ProcessPoolExecutor(processes) as pool:
        for number, broken, seconds in pool.map(one, numbers):
            how = "broke a promise" if broken else "kept"
            print(f"round {number} {how}, {seconds:.0f} s: {drawn(number).summary}", *broken, sep="\n", flush=True)
            broke += bool(broken)
            words = {f"worker: {fault.word}" for fault in drawn(number).faults} | {f"abprof: {drawn(number).end}"}
            played.update(words)
            failed.update(words if broken else ())
    for word, many in sorted(played.items()):
        print(f"| {word} | {many} | {failed[word]} |")
    print(f"{len(numbers)} rounds, {broke} broke a promise")
    return 1 if broke else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    sys.exit(main(range(options.first, options.last), options.processes))
