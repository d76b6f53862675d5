"""The campaign of random faults on simulated workers: `python -m tests.benchmarks.fault_campaign FIRST LAST [PROCESSES]`.

Prints each round that broke a promise, and at the end the table of docs/RELIABILITY.md: what happened how often, and how
many rounds of it broke a promise.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.simulated.campaign import drawn, play
from tests.simulated.trouble import CannotPlay


def one(number: int) -> tuple[int, list[str] | None, str]:
    """The number, the broken promises (None: it could not be played here), and why."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            return number, play(drawn(number), Path(folder)), ""
    except CannotPlay as why:
        return number, None, str(why)


def main(first: int, last: int, processes: int) -> int:
    """Play rounds FIRST to LAST - 1. 1 when a promise was broken."""
    began = time.monotonic()
    played: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    broken = skipped = count = 0
    with ProcessPoolExecutor(processes) as pool:
        for number, lines, why in pool.map(one, range(first, last)):
            round_ = drawn(number)
            if lines is None:
                skipped += 1
                print(f"round {number} not played: {why}", flush=True)
                continue
            count += 1
            words = {f"worker: {fault.word}" for fault in round_.faults} | {f"abprof: {round_.end}"}
            played.update(words)
            failed.update(words if lines else ())
            broken += len(lines)
            for line in lines:
                print(line, flush=True)
    for word, many in sorted(played.items()):
        print(f"| {word} | {many} | {failed[word]} |")
    seconds = time.monotonic() - began
    print(f"{count} rounds, {skipped} not played, {broken} broken promises, {seconds:.0f} s, {processes} at a time")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), int((sys.argv[3:] or ["1"])[0])))
