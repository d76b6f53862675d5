"""How long after the builds the provisional rows of a run come.

    python -m tests.benchmarks.first_row demo --device cpu
    python -m tests.benchmarks.first_row main optimize_ffa --repo PATH

Runs `abprof` with these arguments, shows its lines with the seconds since it began, and then says how long after the last
build the first provisional row came, and the last cell's first.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time

BUILT = re.compile(r"^\S+ \S+: (built in|cached)")
ROW = re.compile(r"^  (.+?)  \S+ -> \S+: .* of time so far \((\d+) epochs?\)")


def main() -> int:
    began, built, rows = time.monotonic(), 0.0, dict[str, float]()
    command = [sys.executable, "-m", "abprof", *sys.argv[1:]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            now = time.monotonic() - began
            print(f"[{now:6.1f}] {line}", end="", flush=True)
            if BUILT.match(line):
                built = now
            elif row := ROW.match(line):
                rows.setdefault(row[1], now - built)
    if rows:
        print(
            f"first row {min(rows.values()):.1f} s after the last build, all {len(rows)} cells' {max(rows.values()):.1f} s"
        )
    return running.returncode


if __name__ == "__main__":
    raise SystemExit(main())
