"""`python -m tests.benchmarks.one_cell [OPTION...]`: seconds from Enter to the end for one cell whose builds are cached.

A changed cell of about 0.5 ms on an H100 (+1 %, threshold 0.5 %), and an unchanged one of 0.2 ms. Each is measured twice
after a run that builds and is not timed.
"""

import sys
import tempfile
from pathlib import Path

from tests.benchmarks.stranger import BUILD, make, measured

CELLS = {"changed": ("chain", 100_000, 1.0, 0), "unchanged": ("chain", 40_000, 0.0, 0)}


def main(*options: str) -> None:
    for name, row in CELLS.items():
        with tempfile.TemporaryDirectory() as place:
            path = Path(place) / "repository"
            make(path, [row])
            measured(path, *BUILD, "--all", *options)
            for _ in range(2):
                seconds, run = measured(path, "--all", "--threshold", "0.5", *options)
                (found,) = run["comparisons"]
                print(f"{name}: {found['verdict']} {found['pct']:+.2f} %, {found['epochs']} epochs, {seconds:.1f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
