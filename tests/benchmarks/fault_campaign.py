"""The campaign of random faults on simulated workers: `python -m tests.benchmarks.fault_campaign FIRST LAST`.

Prints each round that broke a promise, and at the end how many rounds, faults and broken promises there were.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.simulated.campaign import drawn, play


def main(first: int, last: int) -> int:
    """Play rounds FIRST to LAST - 1. 1 when a promise was broken."""
    planted: Counter[str] = Counter()
    broken = 0
    for number in range(first, last):
        round_ = drawn(number)
        planted.update(fault.word for fault in round_.faults)
        planted[round_.end] += round_.end != "none"
        with tempfile.TemporaryDirectory() as folder:
            for line in play(round_, Path(folder)):
                broken += 1
                print(line, flush=True)
    print(f"{last - first} rounds, {planted.total()} faults, {broken} broken promises")
    print(", ".join(f"{word} {count}" for word, count in planted.most_common()))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
