"""`python -m tests.benchmarks.stranger [OPTION...]`: what a budget of 45 s decides of a stranger's 14 cells.

A package that imports for five seconds, calls of about 16 us to 1.3 ms on an H100; five cells take 8 to 77 % longer on
the branch. Builds are cached by a first run, which is not timed.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from abprof.extras import selfcheck

SLOWER = {("chain", 2000): 8.0, ("chain", 10_000): 15.0, ("copy", 1 << 23): 25.0, ("chain", 5000): 40.0,
          ("chain", 40_000): 77.0}  # fmt: skip
SIZES = {"chain": (500, 1000, 2000, 5000, 10_000, 20_000, 40_000), "copy": tuple(1 << n for n in range(21, 28))}
BUILD = (
    "--epochs",
    "1",
    "--regime",
    "burst",
)  # options of a run that leaves all builds in the cache, the control's too
ROWS = [(op, n, SLOWER.get((op, n), 0.0), 0) for op, sizes in SIZES.items() for n in sizes]


def make(path: Path, rows: Sequence[tuple[str, int, float, int]], importing: float = 0.0) -> None:
    """The selfcheck's repository with this matrix, and a package that takes `importing` seconds to import."""
    selfcheck.make(path)
    for branch in ("injected", "main"):
        subprocess.run(["git", "switch", "-q", branch], cwd=path, check=True)
        for name, text in (("kernels/meter/__init__.py", f"\nimport time\n\ntime.sleep({importing})\n"),
                           ("workloads/meter.py", f"\nPRESETS = {{'default': {{AXES: {[*rows]}}}}}\n")):  # fmt: skip
            with (path / name).open("a") as file:
                file.write(text)
        subprocess.run(["git", "commit", "-qam", "A matrix"], cwd=path, check=True)


class NoRunError(SystemExit):
    """abprof made no run; its last lines."""


def measured(path: Path, *options: str, sides: Sequence[str] = ("main", "injected")) -> tuple[float, dict[str, Any]]:
    """Seconds from Enter to the end, and the run. Raises NoRunError."""
    command = (sys.executable, "-m", "abprof", *sides, "--json", *options)
    began = time.monotonic()
    done = subprocess.run(command, cwd=path, capture_output=True, text=True, check=False)
    seconds, run = time.monotonic() - began, json.loads(done.stdout or "{}")
    if "comparisons" not in run:
        raise NoRunError((done.stderr + done.stdout)[-3000:])
    return seconds, run


def main(*options: str) -> None:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "repository"
        make(path, ROWS, importing=5)
        measured(path, *BUILD, *options)
        seconds, run = measured(path, "--budget", "45s", *options)
    decided = right = 0
    for row in run["comparisons"]:
        injected = float(row["cell"].split("inject=")[1].split(",")[0])
        known = row["verdict"] not in ("unclear", "broken")
        decided += known
        right += known and (row["verdict"] == "slower") == bool(injected) and row["verdict"] != "faster"
        change = "" if row["pct"] is None else f"{row['pct']:+.2f} % "
        print(f"{row['cell']:50} +{injected:g} %: {row['verdict']} {change}{row['reasons']}, {row['epochs']} epochs")
    print(f"{decided} of {len(run['comparisons'])} decided, {decided - right} wrong, {seconds:.1f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
