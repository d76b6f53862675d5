"""`python -m tests.benchmarks.loaded [OPTION...]`: verdicts on a CPU beside four processes that compute in bursts.

Calls of 1 to 10 ms on one thread: four do 10 % more work on the branch, eight are unchanged. Builds are cached.
"""

from __future__ import annotations

import collections
import multiprocessing
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.benchmarks.stranger import BUILD, make, measured

SIZES = {"chain": (400_000, 2_000_000), "copy": (2_000_000, 8_000_000)}
ROWS = [(op, n, more, i) for op, sizes in SIZES.items() for n in sizes for more, i in ((10.0, 0), (0.0, 0), (0.0, 1))]


def burst() -> None:
    while True:
        end = time.monotonic() + random.uniform(0.005, 0.3)
        while time.monotonic() < end:
            pass
        time.sleep(random.uniform(0, 0.2))


def main(*options: str) -> None:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "repository"
        make(path, ROWS)
        measured(path, *BUILD, "--device", "cpu", *options)
        for _ in range(4):
            multiprocessing.Process(target=burst, daemon=True).start()
        seconds, run = measured(path, "--device", "cpu", *options)
    for row in run["comparisons"]:
        print(f"{row['cell']:45} {row['verdict']:8} {row['pct']:+6.2f} %, {row['epochs']} epochs")
    counts = collections.Counter(("inject=10" in row["cell"], row["verdict"]) for row in run["comparisons"])
    print(*(f"{'+10 %' if more else 'same'} {verdict}: {count}" for (more, verdict), count in counts.items()), sep=", ")
    print(f"{seconds:.0f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
