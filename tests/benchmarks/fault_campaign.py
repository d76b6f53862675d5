"""The campaign of random faults on simulated workers: `python -m tests.benchmarks.fault_campaign FIRST LAST [--processes N]`.

Rounds from 1000 on spread their run over two devices. Prints a line for each round as it ends, with each promise that it
broke, and at the end a table: what happened how often, and how many rounds of it broke a promise.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.simulated.campaign import drawn, play
from tests.simulated.trouble import CannotPlay

KEPT, BROKE, NOT_PLAYED = "kept", "broke", "not played"


def one(number: int) -> tuple[int, str, list[str]]:
    """The number, how it ended, and the lines to print."""
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as folder:
            broken = play(drawn(number), Path(folder))
    except CannotPlay as why:
        return number, NOT_PLAYED, [f"round {number} {NOT_PLAYED}: {why}"]
    end = BROKE if broken else KEPT
    return number, end, [f"round {number} {end}, {time.monotonic() - began:.0f} s: {drawn(number).told}", *broken]


def main(numbers: range, processes: int) -> int:
    """Play these rounds. 1 when a promise was broken."""
    played, failed, count = Counter[str](), Counter[str](), Counter[str]()
    with ProcessPoolExecutor(processes) as pool:
        for number, end, lines in pool.map(one, numbers):
            print(*lines, sep="\n", flush=True)
            count[end] += 1
            faults = {f"worker: {fault.word}" for fault in drawn(number).faults}
            words = {*faults, f"abprof: {drawn(number).end}"} if end != NOT_PLAYED else set()
            played.update(words)
            failed.update(words if end == BROKE else ())
    for word, many in sorted(played.items()):
        print(f"| {word} | {many} | {failed[word]} |")
    print(f"{count[KEPT] + count[BROKE]} rounds, {count[BROKE]} broke a promise, {count[NOT_PLAYED]} not played")
    return 1 if count[BROKE] else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    sys.exit(main(range(options.first, options.last), options.processes))
